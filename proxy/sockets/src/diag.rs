//! Sockets of sock_diag(7), by which the kernel reports of TCP sockets.

use std::io;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{NetlinkAddr, bind};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// Where a message has the count of unread bytes (`idiag_rqueue`): after `struct nlmsghdr`, within `struct inet_diag_msg`.
pub const UNREAD_AT: usize = 16 + 56;
/// The same count, as a filter loads it, of a socket where only the end of what the other side has sent was not read: the kernel
/// counts a FIN as a byte. It is unread wherever a program closes first, which most clients do.
const FIN_ALONE: u32 = 1_u32.to_be();
/// `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY` of linux/sock_diag.h, as bits.
const GROUPS: u32 = 0b101;
/// Room for announcements that have not been read: some hundred, which are the connections that an application with
/// unread requests closes at once. The kernel caps it (`net.core.rmem_max`); those beyond are lost, which its reader counts.
const RECEIVE_BUFFER: usize = 512 << 10;

/// A socket that asks the kernel about sockets of the calling process' network namespace; nothing waits in it to be read.
///
/// # Errors
/// The system's reason.
pub fn diagnosis() -> io::Result<Socket> {
    let protocol = Protocol::from(libc::NETLINK_SOCK_DIAG);
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::DGRAM, Some(protocol))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A socket on which the kernel announces the sockets of the calling process' network namespace that it destroys with
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

/// Passes messages of sockets with unread bytes, and drops all others.
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

    /// Where a message has the ports of a socket, its own first: after `struct nlmsghdr` and four bytes.
    const PORTS_AT: usize = 16 + 4;
    /// Longer than any machine takes.
    const LIMIT: Duration = Duration::from_secs(60);
    /// How much later than a message those may come of sockets that were destroyed before.
    const LATE: Duration = Duration::from_millis(50);

    fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn port_of(client: &TcpStream) -> u16 {
        client.local_addr().unwrap().port()
    }

    /// The ports of the next socket that is announced within a moment, if any is.
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
            // Other tests close connections at the same time.
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
