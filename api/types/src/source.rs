//! The address that an application sees as its client when that is not the client's own address.
//!
//! The proxy connects to the application from a stand-in address: an address that no host has, so
//! that no rule about clients matches it by accident. It is neither a loopback address, which
//! applications trust, nor the workload's own. The node's agent routes it to loopback in the
//! workload's network namespace. Kernel programs then show the application the client's own
//! address, which the proxy passes to them in a socket option.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The IPv4 dummy address of RFC 7600, section 4.8: valid as a source, never as a destination.
pub const STAND_IN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// The equivalent in the IPv6 dummy prefix, 100:0:0:1::/64 of RFC 9780.
pub const STAND_IN_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 1, 0, 0, 0, 8);

/// The level of the socket option that passes the client's address. The kernel itself has no such
/// level and answers `ENOPROTOOPT`.
pub const CLIENT_LEVEL: i32 = 0x4c65_6e6f;
/// The socket option. Its value is a `sockaddr_in6`; an IPv4 address is in IPv4-mapped form.
pub const CLIENT_OPTION: i32 = 1;

/// The stand-in address of the same family as `other`.
#[must_use]
pub fn stand_in(other: &SocketAddr) -> IpAddr {
    if other.is_ipv4() { STAND_IN_V4.into() } else { STAND_IN_V6.into() }
}
