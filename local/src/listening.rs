//! Checks in the kernel's tables whether a process listens on its ports. No connection is made, so the application
//! does not notice the check.

mod diag;

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// The interval of checks.
const POLL: Duration = Duration::from_millis(20);
/// `TCP_LISTEN` in the kernel's tables, in hexadecimal.
const LISTEN: &str = "0A";

/// Returns when processes in the network namespace of process `pid` listen on all of `ports`, on any address, or
/// when `bound` has passed. Returns the ports that are still closed.
pub async fn until(pid: i32, ports: &[u16], bound: Duration) -> Vec<u16> {
    let end = tokio::time::Instant::now() + bound;
    loop {
        let closed = closed(pid, ports);
        if closed.is_empty() || tokio::time::Instant::now() >= end {
            return closed;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Formats ports for messages.
#[must_use]
pub fn shown(ports: &[u16]) -> String {
    let all: Vec<String> = ports.iter().map(u16::to_string).collect();
    match all.as_slice() {
        [one] => format!("port {one}"),
        all => format!("ports {}", all.join(", ")),
    }
}

/// The `ports` on which no process in the network namespace of process `pid` listens.
#[must_use]
pub fn closed(pid: i32, ports: &[u16]) -> Vec<u16> {
    if ports.is_empty() { Vec::new() } else { Listeners::of(pid).closed(ports) }
}

/// The addresses on which processes in a network namespace listen.
#[derive(Debug)]
pub struct Listeners(Vec<SocketAddr>);

impl Listeners {
    /// The listeners in the network namespace of process `pid`; none if the process has ended.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        // The tables are read if the caller has no right to enter the namespace, or if the kernel has no
        // sock_diag(7).
        Self(diag::listeners(pid).unwrap_or_else(|_| of_tables(pid)))
    }

    /// The ports among `ports` on which no process listens.
    #[must_use]
    pub fn closed(&self, ports: &[u16]) -> Vec<u16> {
        let open: BTreeSet<u16> = self.0.iter().map(SocketAddr::port).collect();
        ports.iter().copied().filter(|port| !open.contains(port)).collect()
    }

    /// The ports among `ports` that clients on other machines can reach in only one address family, because
    /// processes listen in only that one.
    #[must_use]
    pub fn one_family(&self, ports: &[u16]) -> OneFamily {
        let mut families = OneFamily::default();
        for port in ports {
            let own = || self.0.iter().filter(|one| one.port() == *port && !one.ip().is_loopback());
            // A socket on [::] serves both families, unless it has IPV6_V6ONLY, which the kernel does not show.
            let v4 = own().any(|one| one.is_ipv4() || one.ip().is_unspecified());
            let v6 = own().any(SocketAddr::is_ipv6);
            match (v4, v6) {
                (true, false) => _ = families.v4.insert(*port),
                (false, true) => _ = families.v6.insert(*port),
                _ => {}
            }
        }
        families
    }
}

/// Ports that are open in only one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OneFamily {
    v4: BTreeSet<u16>,
    v6: BTreeSet<u16>,
}

impl OneFamily {
    /// Whether `port` is open, but only in the other family than that of `address`.
    #[must_use]
    pub fn closes(&self, address: IpAddr, port: u16) -> bool {
        let other = if address.is_ipv4() { &self.v6 } else { &self.v4 };
        other.contains(&port)
    }
}

/// The listeners in the network namespace of process `pid`, by its tables; empty if the process has ended.
fn of_tables(pid: i32) -> Vec<SocketAddr> {
    let table = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    [table("tcp"), table("tcp6")].iter().flat_map(|table| listening(table)).collect()
}

/// The listeners in `/proc/net/tcp` or `tcp6` (proc(5)): the second field is the local address, the fourth the state.
fn listening(table: &str) -> impl Iterator<Item = SocketAddr> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next()?;
        let state = fields.nth(1)?;
        let (address, port) = local.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (state == LISTEN).then(|| Some(SocketAddr::new(ip(address)?, port))).flatten()
    })
}

/// Parses an address as the kernel prints it: each 32 bits as a number in this machine's byte order.
fn ip(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for start in (0..text.len()).step_by(8) {
        let word = u32::from_str_radix(text.get(start..start + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let v4 = <[u8; 4]>::try_from(bytes.as_slice()).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from);
    v4.or_else(|_| v6()).ok().map(|ip| ip.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn the_kernels_table_is_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n   \
             1: 0200590A:C350 0300590A:0050 01 00000000:00000000 00:00000000\n   \
             2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 0\n";
        let found: Vec<String> = listening(table).map(|one| one.to_string()).collect();
        assert_eq!(found, ["127.0.0.1:8080", "[::1]:80"]);
    }

    #[test]
    fn a_port_that_is_open_in_one_family_alone_is_found_out() {
        let bind = |address: &str| {
            let listener = std::net::TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            (listener, port)
        };
        let (four, both, loopback) = (bind("0.0.0.0:0"), bind("[::]:0"), bind("127.0.0.1:0"));
        let own = std::process::id().try_into().unwrap();
        let found = Listeners::of(own).one_family(&[four.1, both.1, loopback.1, 0]);
        let (v4, v6): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap());
        assert!(found.closes(v6, four.1) && !found.closes(v4, four.1), "{found:?}");
        for port in [both.1, loopback.1, 0] {
            assert!(!found.closes(v6, port) && !found.closes(v4, port), "{port}: {found:?}");
        }
    }

    #[tokio::test]
    async fn a_listener_is_seen_and_an_absent_one_is_waited_for_within_the_bound() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = std::process::id().try_into().unwrap();
        assert_eq!(until(own, &[port], Duration::from_secs(10)).await, [0; 0]);
        assert_eq!(until(own, &[], Duration::ZERO).await, [0; 0]);
        drop(listener);
        assert_eq!(until(own, &[port, 0], Duration::from_millis(1)).await, [port, 0]);
    }
}
