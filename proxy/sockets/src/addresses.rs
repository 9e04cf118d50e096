//! The addresses of a network namespace.

use std::io;
use std::net::IpAddr;

/// How many addresses are returned. A workload's namespace has about four.
const MAX_ADDRESSES: usize = 256;

/// The addresses of the interfaces of the calling process' network namespace.
///
/// # Errors
/// The system's reason.
pub fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let interfaces = nix::ifaddrs::getifaddrs().map_err(io::Error::from)?;
    let ip_of = |interface: nix::ifaddrs::InterfaceAddress| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    };
    Ok(interfaces.filter_map(ip_of).take(MAX_ADDRESSES).collect())
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_is_among_the_addresses() {
        let addresses = interface_addresses().unwrap();
        assert!(addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{addresses:?}");
    }
}
