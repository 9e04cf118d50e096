//! The constants and structures that kernel programs and user space share: `bpf/lib/abi.h` in Rust.
//!
//! Plain values, no I/O. The loader's layout test compares every structure of [`LAYOUTS`], every [`Counter`] and every
//! [`Slot`] with the BTF of the object that the loader embeds, so that a difference between the two languages fails a
//! test.
//!
//! Read first: [`CaptureConfig`] (the configuration of a workload's programs), [`SocketAddress`] (one form for
//! addresses of both families) and [`Counter`]. The flow programs have their own module, [`flow`].

mod counter;
pub mod flow;
mod layout;

use std::net::IpAddr;

pub use counter::{Counter, Slot};
pub use layout::{Field, LAYOUTS, Layout};

/// Most prefixes that one workload excludes from capture (`MAX_EXCLUDED`).
pub const MAX_EXCLUDED: usize = 256;

/// Most original destinations that are stored at once (`MAX_INFLIGHT`).
pub const MAX_INFLIGHT: u32 = 8192;

/// Most destinations of datagrams that placeholders represent (`MAX_DATAGRAM_TARGETS`).
pub const MAX_DATAGRAM_TARGETS: u32 = 4096;

/// Most listening sockets that are registered for one port and family (`LISTENERS_PER_SLOT`).
pub const LISTENERS_PER_SLOT: u32 = 16;

/// An address and port; IPv4 in IPv4-mapped form. `ip` and `port` are in network byte order, `family`
/// is in the machine's.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketAddress {
    /// The address, 16 bytes in network order.
    pub ip: [u32; 4],
    /// The port in network order.
    pub port: u16,
    /// `AF_INET` or `AF_INET6`.
    pub family: u16,
}

/// The configuration of one workload's programs, fixed when they are loaded.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureConfig {
    /// The id of the cgroup that the proxy runs in; 0 if the proxy is recognised by its user.
    pub proxy_cgroup_id: u64,
    /// Capture only in this network namespace; 0 if the kernel has no cookies (before 5.14).
    pub netns_cookie: u64,
    /// The proxy's outbound listener, host byte order.
    pub outbound_port: u16,
    /// The proxy's inbound listener, host byte order.
    pub inbound_port: u16,
    /// The proxy's admin port, which inbound connections reach uncaptured; host byte order.
    pub admin_port: u16,
    /// While the proxy does not listen: refuse connections (1) or pass them (0).
    pub fail_closed: u8,
    /// 0 if no prefix is excluded.
    pub has_excluded: u8,
    /// The user that the proxy runs as; used if `proxy_cgroup_id` is 0.
    pub proxy_uid: u32,
    /// Which datagrams of UDP are captured: the number of a [`DatagramCapture`].
    pub datagrams: u32,
}

/// Which datagrams of UDP are captured (`enum datagram_capture`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum DatagramCapture {
    /// None.
    #[default]
    Pass,
    /// All but DNS.
    Captured,
    /// All.
    WithDns,
}

/// Key of the map of excluded prefixes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixKey {
    /// Prefix length in bits of the IPv4-mapped or IPv6 address.
    pub length: u32,
    /// The address, 16 bytes in network order.
    pub ip: [u32; 4],
}

impl CaptureConfig {
    /// The bytes as the kernel programs read them.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        bytes[0..8].copy_from_slice(&self.proxy_cgroup_id.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.netns_cookie.to_ne_bytes());
        bytes[16..18].copy_from_slice(&self.outbound_port.to_ne_bytes());
        bytes[18..20].copy_from_slice(&self.inbound_port.to_ne_bytes());
        bytes[20..22].copy_from_slice(&self.admin_port.to_ne_bytes());
        bytes[22] = self.fail_closed;
        bytes[23] = self.has_excluded;
        bytes[24..28].copy_from_slice(&self.proxy_uid.to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.datagrams.to_ne_bytes());
        bytes
    }
}

impl PrefixKey {
    /// The key of a CIDR prefix; the host bits need not be zero. `None` if `length` is longer than
    /// the address.
    #[must_use]
    pub fn new(ip: IpAddr, length: u8) -> Option<Self> {
        let (octets, bits, most) = match ip {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), u32::from(length) + 96, 32),
            IpAddr::V6(v6) => (v6.octets(), u32::from(length), 128),
        };
        (length <= most).then(|| Self { length: bits, ip: words(octets) })
    }

    /// The bytes as the kernel reads them.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        bytes[..4].copy_from_slice(&self.length.to_ne_bytes());
        for (place, word) in bytes[4..].chunks_exact_mut(4).zip(self.ip) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

impl SocketAddress {
    /// An IPv4 address, an IPv6 address, or an IPv4-mapped one, which counts as IPv4.
    #[must_use]
    pub fn new(ip: IpAddr, port: u16) -> Self {
        let (octets, family) = match ip {
            IpAddr::V4(v4) => (v4.to_ipv6_mapped().octets(), 2),
            IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => (v6.octets(), 2),
            IpAddr::V6(v6) => (v6.octets(), 10),
        };
        Self { ip: words(octets), port: port.to_be(), family }
    }

    /// The bytes as the kernel programs read them.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        for (place, word) in bytes[..16].chunks_exact_mut(4).zip(self.ip) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..18].copy_from_slice(&self.port.to_ne_bytes());
        bytes[18..20].copy_from_slice(&self.family.to_ne_bytes());
        bytes
    }
}

/// The octets as four 32-bit words, in the same order in memory.
fn words(octets: [u8; 16]) -> [u32; 4] {
    let mut words = [0; 4];
    for (word, four) in words.iter_mut().zip(octets.chunks_exact(4)) {
        *word = u32::from_ne_bytes([four[0], four[1], four[2], four[3]]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_prefix_covers_the_mapped_address() {
        let key = PrefixKey::new("10.89.0.1".parse().unwrap(), 16).unwrap();
        assert_eq!(key.length, 112);
        assert_eq!(key.to_bytes()[4..], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 89, 0, 1]);
        assert_eq!(PrefixKey::new("10.0.0.0".parse().unwrap(), 33), None);
        assert_eq!(PrefixKey::new("fd00::".parse().unwrap(), 8).unwrap().length, 8);
    }

    #[test]
    fn addresses_are_in_network_order() {
        let bytes = SocketAddress::new("10.1.2.3".parse().unwrap(), 0x1f90).to_bytes();
        assert_eq!(bytes[10..18], [0xff, 0xff, 10, 1, 2, 3, 0x1f, 0x90]);
        let mapped = SocketAddress::new("::ffff:10.1.2.3".parse().unwrap(), 0x1f90);
        assert_eq!(mapped.to_bytes(), bytes);
    }
}
