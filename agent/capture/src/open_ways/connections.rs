//! Finds TCP connections of a network namespace that bypass its proxy, in /proc/net/tcp (proc_net(5)).

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use leno_types::authorization::Cidr;
use leno_types::{canonical, ports};

use crate::command::inside;
use crate::error::Error;

/// Most sockets that are read, which is more than a pod and its proxy use. Each takes a few hundred bytes of text.
const MAX_SOCKETS: usize = 65_536;

/// `TCP_ESTABLISHED` and `TCP_LISTEN` of net/tcp_states.h.
const ESTABLISHED: u8 = 0x01;
const LISTEN: u8 = 0x0a;

/// A TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    local: SocketAddr,
    remote: SocketAddr,
    state: u8,
    user: u32,
    /// The inode of the socket; 0 if no program holds it.
    inode: u64,
}

/// The TCP sockets of a namespace, except listeners; `None` if there are more than [`MAX_SOCKETS`].
pub(super) fn read(netns: &Path) -> Result<Option<Vec<Socket>>, Error> {
    inside(netns, || {
        let mut sockets = Vec::new();
        for name in ["tcp", "tcp6"] {
            let path = format!("/proc/thread-self/net/{name}");
            let file = match File::open(&path) {
                // The kernel has no IPv6.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                file => file.map_err(Error::io(format!("open {path}")))?,
            };
            for line in BufReader::new(file).lines() {
                let line = line.map_err(Error::io(format!("read {path}")))?;
                sockets.extend(parse(&line).filter(|socket| socket.state != LISTEN));
                if sockets.len() > MAX_SOCKETS {
                    return Ok(None);
                }
            }
        }
        Ok(Some(sockets))
    })
}

/// The connections of applications at whose other end there is no socket of the proxy.
///
/// ```text
///  outbound                                    inbound
///  application ──► proxy, local port 15001     proxy ──► application, from a stand-in address or the client's
///  local A          remote A                   local B    remote B, local C
///                                              remote C
/// ```
pub(super) fn past_the_proxy(
    sockets: &[Socket],
    proxy_users: &[u32],
    excluded: &[(IpAddr, u8)],
) -> Vec<String> {
    let is_proxys = |socket: &Socket| {
        // The kernel shows no user for a socket that was not accepted yet, or that is already closed.
        proxy_users.contains(&socket.user)
            || socket.inode == 0
            || [ports::OUTBOUND, ports::INBOUND].contains(&socket.local.port())
    };
    let (proxys, applications): (Vec<&Socket>, Vec<&Socket>) =
        sockets.iter().partition(|socket| is_proxys(socket));
    let ends: HashSet<(SocketAddr, Option<SocketAddr>)> = proxys
        .iter()
        .map(|one| match one.local.port() {
            ports::OUTBOUND => (one.remote, None),
            _ => (one.remote, Some(one.local)),
        })
        .collect();
    let excluded: Vec<Cidr> =
        excluded.iter().filter_map(|(prefix, length)| Cidr::new(*prefix, *length)).collect();
    let is_excluded = |ip| excluded.iter().any(|block| block.contains(ip));
    let past = applications.into_iter().filter(|one| {
        let leads_out = one.state == ESTABLISHED
            && !one.remote.ip().is_loopback()
            && one.local.port() != ports::ADMIN
            && !is_excluded(one.remote.ip());
        let is_steered =
            ends.contains(&(one.local, None)) || ends.contains(&(one.local, Some(one.remote)));
        leads_out && !is_steered
    });
    past.map(|one| format!("{} with {}", one.local, one.remote)).collect()
}

/// Parses a line of the table; `None` for the first line, which has the names of the columns.
fn parse(line: &str) -> Option<Socket> {
    let mut words = line.split_whitespace();
    let local = address(words.nth(1)?)?;
    let remote = address(words.next()?)?;
    let state = u8::from_str_radix(words.next()?, 16).ok()?;
    // The fields in between are the queues, the timer and the retransmissions.
    let user = words.nth(3)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    Some(Socket { local, remote, state, user, inode })
}

/// An address as the kernel prints it: words of 32 bits in the machine's order, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = ip.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?))
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPLICATION: u32 = 1000;
    const PROXY: u32 = 2102;

    fn socket(local: &str, remote: &str, user: u32) -> Socket {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        Socket { local, remote, state: ESTABLISHED, user, inode: 7 }
    }

    fn past(sockets: &[Socket]) -> Vec<String> {
        let excluded = [("10.0.9.0".parse().unwrap(), 24)];
        past_the_proxy(sockets, &[PROXY], &excluded)
    }

    #[cfg(target_endian = "little")]
    #[test]
    fn the_table_of_the_kernel_is_read() {
        let line = "   1: 0200004D:1F90 0100004D:C350 01 00000000:00000000 00:00000000 00000000  1000        0 21 1 0";
        assert_eq!(
            parse(line),
            Some(Socket { inode: 21, ..socket("77.0.0.2:8080", "77.0.0.1:50000", 1000) })
        );
        let mapped = "0000000000000000FFFF00000200004D:0050";
        assert_eq!(address(mapped), Some("77.0.0.2:80".parse().unwrap()));
        let v6 = "000077FD000000000000000002000000:0050";
        assert_eq!(address(v6), Some("[fd77::2]:80".parse().unwrap()));
        assert_eq!(parse("  sl  local_address rem_address   st tx_queue rx_queue tr"), None);
    }

    #[test]
    fn a_connection_without_a_socket_of_the_proxy_is_past_it() {
        let older = socket("10.0.0.2:40000", "10.1.0.1:80", APPLICATION);
        let entered = socket("10.0.0.2:8080", "10.0.0.1:50000", APPLICATION);
        let own = socket("10.0.0.2:41000", "10.1.0.1:80", PROXY);
        assert_eq!(
            past(&[older, entered, own]),
            ["10.0.0.2:40000 with 10.1.0.1:80", "10.0.0.2:8080 with 10.0.0.1:50000"]
        );
    }

    #[test]
    fn what_is_steered_or_left_alone_is_not_past_the_proxy() {
        // With netfilter, the client's socket shows the original destination.
        let redirected = [
            socket("10.0.0.2:40000", "10.1.0.1:80", APPLICATION),
            socket("10.0.0.2:15001", "10.0.0.2:40000", PROXY),
        ];
        // With eBPF, the client's socket is connected to the listener.
        let connected = [
            socket("127.0.0.1:40000", "127.0.0.1:15001", APPLICATION),
            socket("127.0.0.1:15001", "127.0.0.1:40000", PROXY),
        ];
        let inbound = [
            socket("10.0.0.2:8080", "192.0.0.8:33000", APPLICATION),
            socket("192.0.0.8:33000", "10.0.0.2:8080", PROXY),
        ];
        let excluded = [socket("10.0.0.2:42000", "10.0.9.1:53", APPLICATION)];
        let closing = [Socket { state: 8, ..socket("10.0.0.2:43000", "10.1.0.1:80", APPLICATION) }];
        for sockets in [&redirected[..], &connected, &inbound, &excluded, &closing] {
            assert!(past(sockets).is_empty(), "{sockets:?}");
        }
        // The proxy has not accepted the connection yet, or it has closed it while the application still has
        // unread bytes.
        for half in [
            socket("10.0.0.2:15001", "10.0.0.2:40000", 0),
            socket("10.0.0.2:15001", "10.0.0.2:40000", PROXY),
        ] {
            let unheld = Socket { inode: 0, ..half };
            assert!(past(&[redirected[0], unheld]).is_empty());
        }
        let other = socket("10.0.0.2:15001", "10.0.0.2:40001", PROXY);
        assert_eq!(past(&[redirected[0], other]).len(), 1, "of another connection");
    }
}
