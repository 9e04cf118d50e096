//! Sockets for sock_diag(7), the kernel's interface that reports the state of TCP sockets.

use std::io;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{NetlinkAddr, bind};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// The type of queries, and of messages about sockets (`SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h).
pub const BY_FAMILY: u16 = 20;
/// The length of `struct nlmsghdr`, with which each message begins.
pub const HEADER: usize = 16;
/// The length of `struct inet_diag_req_v2`.
const REQUEST: usize = 56;
/// The length of `struct inet_diag_sockid`, the description of a socket that ends a query.
pub const SOCKET_ID: usize = 48;
/// The offset in a message of the count of unread bytes (`idiag_rqueue`): within `struct inet_diag_msg`.
pub const UNREAD_AT: usize = HEADER + 56;
/// The value of that count if only a FIN is unread, which the kernel counts as a byte. This is the case if the other
/// program closes first, as most clients do. The kernel writes the count in the machine's byte order, but a filter
/// loads it in network byte order.
const FIN_ALONE: u32 = 1_u32.to_be();
/// The multicast groups `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY` (linux/sock_diag.h), as bits.
const GROUPS: u32 = 0b101;
/// Room for some hundred announcements that were not read yet: as many as connections with unread requests that an
/// application closes at once. The kernel caps it (`net.core.rmem_max`). Announcements beyond it are lost, which the
/// reader counts.
const RECEIVE_BUFFER: usize = 512 << 10;

/// A socket for queries about sockets of the calling process' network namespace. No announcements arrive on it.
///
/// # Errors
/// The system's reason.
pub fn diagnosis() -> io::Result<Socket> {
    let protocol = Protocol::from(libc::NETLINK_SOCK_DIAG);
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::DGRAM, Some(protocol))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A query for TCP sockets of an address family that are in one of these states (bits, as numbered in net/tcp_states.h).
/// `flags` are those of netlink, beside `NLM_F_REQUEST`; `socket` is a `struct inet_diag_sockid`.
#[must_use]
pub fn query(
    flags: libc::c_int,
    (family, states): (libc::c_int, u32),
    socket: impl IntoIterator<Item = u8>,
) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
    // Sequence number and port are zero, because each query has one answer.
    bytes.extend([0; 8]);
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.extend(socket);
    bytes
}

/// A field of a message. `None` if the message is too short.
#[must_use]
pub fn field<const N: usize>(message: &[u8], at: usize) -> Option<[u8; N]> {
    message.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// A socket on which the kernel announces sockets of the calling process' network namespace that were destroyed with
/// unread bytes.
///
/// # Errors
/// The system's reason: the kernel has no sock_diag(7), or a filter of system calls refuses it.
pub fn announcements() -> io::Result<Socket> {
    let socket = diagnosis()?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.attach_filter(&with_unread_bytes())?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    Ok(socket)
}

/// A filter that passes messages about sockets with unread bytes, and drops all others.
fn with_unread_bytes() -> [SockFilter; 5] {
    use nix::libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let step = |code: u32, value, or, otherwise| {
        SockFilter::new(u16::try_from(code).unwrap_or_default(), or, otherwise, value)
    };
    [
        step(BPF_LD | BPF_W | BPF_ABS, u32::try_from(UNREAD_AT).unwrap_or_default(), 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, FIN_ALONE, 0, 1),
        step(BPF_RET | BPF_K, 0, 0, 0),
        step(BPF_RET | BPF_K, u32::MAX, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;

    /// The offset in a message of the ports of a socket, its own first: after `struct nlmsghdr` and four bytes.
    const PORTS_AT: usize = 16 + 4;
    /// How long the test waits at most: longer than any machine needs.
    const LIMIT: Duration = Duration::from_secs(60);
    /// How long the test waits for announcements of sockets that were destroyed earlier, after the announcement that it
    /// expects.
    const LATE: Duration = Duration::from_millis(50);

    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn port_of(client: &TcpStream) -> u16 {
        client.local_addr().unwrap().port()
    }

    /// The ports of the next announced socket. `None`, after a millisecond, if there is no announcement.
    fn next(announcements: &mut Socket) -> Option<[u16; 2]> {
        let mut message = [0; 1024];
        match announcements.read(&mut message) {
            Ok(bytes) => {
                assert!(bytes >= PORTS_AT + 4, "{bytes}");
                let port = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
                Some([port(PORTS_AT), port(PORTS_AT + 2)])
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                sleep(Duration::from_millis(1));
                None
            }
        }
    }

    #[test]
    fn sockets_that_were_closed_in_order_are_not_announced() {
        let mut announcements = announcements().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut in_order = Vec::new();
        for is_client_first in [true, false].repeat(4) {
            let (mut client, mut server) = connect(&listener);
            in_order.push(port_of(&client));
            client.write_all(b"read").unwrap();
            server.read_exact(&mut [0; 4]).unwrap();
            let (first, mut second) =
                if is_client_first { (client, server) } else { (server, client) };
            drop(first);
            assert_eq!(second.read(&mut [0; 1]).unwrap(), 0);
        }
        let (mut client, server) = connect(&listener);
        client.write_all(b"unread").unwrap();
        drop(server);
        let (begun, mut announced_at) = (Instant::now(), None);
        while announced_at.is_none_or(|at: Instant| at.elapsed() < LATE) {
            assert!(begun.elapsed() < LIMIT, "unread bytes are not announced");
            // Other tests close connections at the same time; their announcements are skipped.
            let own = listener.local_addr().unwrap().port();
            let Some(ports) = next(&mut announcements).filter(|ports| ports.contains(&own)) else {
                continue;
            };
            assert!(!ports.iter().any(|port| in_order.contains(port)), "{ports:?}: {in_order:?}");
            assert!(ports.contains(&port_of(&client)), "{ports:?}");
            announced_at = Some(Instant::now());
        }
    }
}
