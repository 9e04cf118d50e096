//! The ports and the user id that every part of the mesh agrees on.

/// The proxy's outbound listener, on loopback.
pub const OUTBOUND: u16 = 15001;
/// The proxy's inbound listener.
pub const INBOUND: u16 = 15006;
/// The control plane's discovery and identity service.
pub const CONTROL: u16 = 15010;
/// The proxy's admin server: `/metrics`, `/ready`, `/live`, `/config`.
pub const ADMIN: u16 = 15020;
/// The admin server of a node's agent, on the node's own network: `/metrics`, `/ready`, `/live`, `/captures`.
pub const AGENT_ADMIN: u16 = 15025;
/// The user that proxies run as; capture by netfilter exempts it.
pub const PROXY_UID: u32 = 2102;

/// Where the kernel keeps, for each network namespace, the ports that it gives nobody by itself. Whoever
/// is in the namespace may read it; only its owner may write it.
pub const RESERVED_FILE: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";

/// What a node's agent reserves in a pod's namespace once it is captured: the mark by which a proxy
/// knows, and no connection of an application gets a port of the mesh as its own.
pub const MARK: [u16; 3] = [OUTBOUND, INBOUND, ADMIN];

/// Whether the ports of [`MARK`] are among these, as the kernel writes them: `8080,15001-15006`.
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
