//! Socket addresses that have a certain meaning, so that the compiler notices if they are mixed up.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The original destination of a captured connection: the address that the application dialled (outbound), or the
/// address that a client dialled (inbound).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OrigDst(pub SocketAddr);

impl fmt::Display for OrigDst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Converts an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`, RFC 4291 section 2.5.5.2) to IPv4, and
/// clears flow label and scope, so that equal destinations compare equal.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_become_ipv4() {
        let mapped: SocketAddr = "[::ffff:10.1.2.3]:80".parse().unwrap();
        assert_eq!(canonical(mapped), "10.1.2.3:80".parse().unwrap());
        let v6: SocketAddr = "[fd00::1]:80".parse().unwrap();
        assert_eq!(canonical(v6), v6);
    }
}
