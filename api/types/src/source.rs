//! The address that an application sees as its client's address, if that is not the client's own address.
//!
//! The proxy connects to the application from a stand-in address. No host has this address, so that no rule about
//! clients matches it by accident. It is neither a loopback address, which applications trust, nor the workload's own.
//! The node's agent routes it to loopback in the workload's network namespace. Kernel programs can then show the
//! application the client's own address, which the proxy passes to them in a socket option.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The IPv4 dummy address of RFC 7600, section 4.8, which is valid as a source and never as a destination.
pub const STAND_IN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// The corresponding address in the IPv6 dummy prefix, 100:0:0:1::/64 of RFC 9780.
pub const STAND_IN_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 1, 0, 0, 0, 8);

/// The level of the socket option that passes the client's address. The kernel itself has no such
/// level and answers `ENOPROTOOPT`.
pub const CLIENT_LEVEL: i32 = 0x4c65_6e6f;
/// The socket option. Its value is a `sockaddr_in6`; an IPv4 address is in IPv4-mapped form.
pub const CLIENT_OPTION: i32 = 1;

/// The placeholders of IPv4: loopback addresses, each of which stands for a destination of datagrams that the workload
/// has sent. Kernel programs choose one for each destination and rewrite datagrams to it, so that the proxy receives
/// them. The proxy reads the destination of a placeholder through [`CLIENT_LEVEL`].
pub const PLACEHOLDERS_V4: (Ipv4Addr, u8) = (Ipv4Addr::new(127, 64, 0, 0), 10);
/// The IPv6 placeholders, in the dummy prefix. The node's agent routes them to loopback.
pub const PLACEHOLDERS_V6: (Ipv6Addr, u8) = (Ipv6Addr::new(0x100, 0, 0, 1, 1, 0, 0, 0), 96);

/// The number of a placeholder, which is the name of the socket option of [`CLIENT_LEVEL`] that reads its destination,
/// a `sockaddr_in6`; `None` for any other address.
#[must_use]
pub fn placeholder_number(ip: IpAddr) -> Option<u32> {
    match ip {
        IpAddr::V4(v4) => {
            let (first, mask) = (PLACEHOLDERS_V4.0.to_bits(), u32::MAX << 22);
            (v4.to_bits() & mask == first).then_some(v4.to_bits() & !mask)
        }
        IpAddr::V6(v6) => {
            let (first, mask) = (PLACEHOLDERS_V6.0.to_bits(), u128::MAX << 32);
            let number = u32::try_from(v6.to_bits() & !mask).ok()?;
            (v6.to_bits() & mask == first).then_some(number)
        }
    }
}

/// The stand-in address of the same family as `other`.
#[must_use]
pub fn stand_in(other: &SocketAddr) -> IpAddr {
    if other.is_ipv4() { STAND_IN_V4.into() } else { STAND_IN_V6.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_of_both_families_have_the_same_numbers() {
        let number = |text: &str| placeholder_number(text.parse().unwrap());
        assert_eq!(number("127.64.0.0"), Some(0));
        assert_eq!(number("127.127.255.255"), Some(0x3f_ffff));
        assert_eq!(number("100:0:0:1:1::"), Some(0));
        assert_eq!(number("100:0:0:1:1::3f:ffff"), Some(0x3f_ffff));
        for other in
            ["127.0.0.1", "127.128.0.0", "10.64.0.0", "::1", "100:0:0:1::8", "100:0:0:1:1:1::"]
        {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
