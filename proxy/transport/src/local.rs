//! The IP addresses of the interfaces in this network namespace.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use leno_types::canonical;

use crate::sockets;

/// The age at which [`LocalAddresses::refresh`] reads the list again. A workload usually has its addresses before its
/// proxy starts. An address that is added later is not noticed for up to this time. A connection to it may meanwhile be
/// sent back to this proxy, whose inbound side detects such loops.
const REFRESH: Duration = Duration::from_secs(5);

/// The addresses of the interfaces in this namespace. They are read from the kernel when connections are opened, at
/// most once every five seconds, and not for each request.
#[derive(Debug, Default)]
pub struct LocalAddresses {
    addresses: RefCell<Vec<IpAddr>>,
    read_at: Cell<Option<Instant>>,
}

impl LocalAddresses {
    /// An empty list, which is filled on first use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a connection to `ip` would stay in this namespace: `ip` is a loopback address, the unspecified address,
    /// or the address of an interface in the list that was last read.
    #[must_use]
    pub fn is_local(&self, ip: IpAddr) -> bool {
        let ip = canonical((ip, 0).into()).ip();
        if ip.is_loopback() || ip.is_unspecified() {
            return true;
        }
        if self.read_at.get().is_none() {
            self.refresh();
        }
        self.addresses.borrow().contains(&ip)
    }

    /// Reads the list again if it is old. If that fails, the old list is kept.
    pub fn refresh(&self) {
        let now = Instant::now();
        if self.read_at.get().is_some_and(|read_at| now.duration_since(read_at) < REFRESH) {
            return;
        }
        self.read_at.set(Some(now));
        if let Ok(addresses) = interface_addresses() {
            *self.addresses.borrow_mut() = addresses;
        }
    }
}

/// The addresses of the interfaces of this thread's network namespace.
///
/// # Errors
/// The error of getifaddrs(3).
pub fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    sockets::addresses().map_or_else(leno_sockets::interface_addresses, Ok)
}

/// The addresses on which an application of this workload may listen if a client connected to `dialled`: that address,
/// or loopback of either family if the application is bound to loopback only.
#[must_use]
pub fn own_addresses(dialled: SocketAddr) -> [SocketAddr; 3] {
    let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, dialled.port()));
    let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, dialled.port()));
    if dialled.is_ipv4() { [dialled, v4, v6] } else { [dialled, v6, v4] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_and_interfaces_are_local_and_documentation_addresses_are_not() {
        let local = LocalAddresses::new();
        for text in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::ffff:127.0.0.1"] {
            assert!(local.is_local(text.parse().unwrap()), "{text}");
        }
        for text in ["192.0.2.1", "2001:db8::1"] {
            assert!(!local.is_local(text.parse().unwrap()), "{text}");
        }
        for ip in interface_addresses().unwrap() {
            assert!(local.is_local(ip), "{ip}");
        }
    }
}
