//! The ports and the user ID that all parts of the mesh use.

/// The proxy's outbound listener, on loopback.
pub const OUTBOUND: u16 = 15001;
/// The proxy's inbound listener.
pub const INBOUND: u16 = 15006;
/// The port on which proxies accept HBONE: HTTP/2 CONNECT in mTLS, which Istio's ambient mode uses.
pub const HBONE: u16 = 15008;
/// The port on which proxies accept datagrams of other proxies over QUIC. This is UDP, so it can have the same number
/// as HBONE, which is TCP.
pub const DATAGRAMS: u16 = 15008;
/// The control plane's discovery and identity service.
pub const CONTROL: u16 = 15010;
/// The proxy's admin server: `/metrics`, `/ready`, `/live`, `/config`.
pub const ADMIN: u16 = 15020;
/// The admin server of a node's agent, on the node's own network: `/metrics`, `/ready`, `/live`, `/captures`.
pub const AGENT_ADMIN: u16 = 15025;
/// The user of proxies. Capture by netfilter exempts this user.
pub const PROXY_UID: u32 = 2102;

/// The file with the ports that the kernel does not assign by itself. Each network namespace has its own. Every process
/// in the namespace may read it; only the owner of the namespace may write it.
pub const RESERVED_FILE: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// The ports that a node's agent reserves in a pod's namespace after capturing it. The reservation shows the pod's
/// proxy that the pod is captured. It also prevents that a connection of an application gets one of these ports as its
/// local port.
pub const MARK: [u16; 3] = [OUTBOUND, INBOUND, ADMIN];

/// Whether this list contains the ports of [`MARK`]. It is in the kernel's format: `8080,15001-15006`.
#[must_use]
pub fn are_marked(reserved: &str) -> bool {
    let ranges: Vec<(u16, u16)> = reserved.trim().split(',').filter_map(range).collect();
    MARK.iter().all(|port| ranges.iter().any(|(first, last)| (first..=last).contains(&port)))
}

fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_all_of_its_ports() {
        for marked in ["15001,15006,15020\n", "80,15000-15010,15020", "1-65535"] {
            assert!(are_marked(marked), "{marked}");
        }
        for other in ["", "\n", "15001,15006", "15001-15006", "15001,15020-15006,x"] {
            assert!(!are_marked(other), "{other}");
        }
    }
}
