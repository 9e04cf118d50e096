//! The addresses that keys are fetched from: none of this machine or of its cloud.

use std::net::{IpAddr, Ipv4Addr};

/// Whether keys may be fetched from an address, whatever name has led to it.
pub(crate) fn is_permitted(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let within = match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => {
            let [first, second, third, .., last, end] = ip.segments();
            let v4 = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
            match (first, second) {
                // NAT64 (RFC 6052, RFC 8215), and 6to4 (RFC 3056).
                (0x64, 0xff9b) => Some(v4(last, end)),
                (0x2002, high) => Some(v4(high, third)),
                // IPv4-compatible (RFC 4291 section 2.5.5.1).
                (0, 0) => Some(v4(last, end)),
                _ => None,
            }
        }
    };
    !leno_index::is_reserved(ip) && within.is_none_or(|ip| !leno_index::is_reserved(ip.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CVE-2026-41413: Istio fetched keys from wherever a tenant's document pointed to.
    #[test]
    fn cve_2026_41413_no_keys_are_fetched_from_the_machine_or_its_cloud() {
        for text in [
            "127.0.0.1",
            "127.8.9.10",
            "0.0.0.0",
            "169.254.169.254",
            "169.254.1.1",
            "224.0.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
        ] {
            assert!(!is_permitted(text.parse().expect("an address")), "{text}");
        }
        for text in ["10.0.0.1", "192.0.2.1", "2001:db8::1", "fd00::1", "64:ff9b::c000:201"] {
            assert!(is_permitted(text.parse().expect("an address")), "{text}");
        }
    }
}
