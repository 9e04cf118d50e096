//! The addresses of this network namespace.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use leno_types::canonical;

use crate::sockets;

/// How old the list may get before [`LocalAddresses::refresh`] reads it again. Addresses of a workload are
/// set before its proxy starts; a later one is seen with the first connection after this long, until then
/// the inbound hop's loop guard covers it.
const REFRESH: Duration = Duration::from_secs(5);

/// The addresses of this namespace. The kernel is asked for them when connections are made, at most once
/// every five seconds, and not for each request.
#[derive(Debug, Default)]
pub struct LocalAddresses {
    addresses: RefCell<Vec<IpAddr>>,
    read_at: Cell<Option<Instant>>,
}

impl LocalAddresses {
    /// An empty list that reads the kernel's on first use.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether a connection to `ip` would stay in this namespace: loopback, the unspecified address
    /// or an address of an interface, by the list that was read last.
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

    /// Reads the list again if it is old. A list that cannot be read stays as it was.
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
/// The system's reason.
pub fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    sockets::addresses().map_or_else(leno_sockets::interface_addresses, Ok)
}

/// Where an application of this workload may listen that was called at `dialled`: there, or, when it
/// is bound to loopback only, on loopback of either family.
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
