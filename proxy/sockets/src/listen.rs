//! Sockets that listen, and sockets that connect.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::libc;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use crate::steer::spread;

/// How many connections may wait to be accepted: a burst that one worker (a thread of the proxy) accepts within some 50
/// ms. The kernel reduces this to `net.core.somaxconn` (4096 by default).
pub const BACKLOG: i32 = 4096;

/// The backlog of the admin server, to which few clients connect: scrapers of metrics and health probes.
pub const ADMIN_BACKLOG: i32 = 128;

/// How long a listener that closes waits for pending handshakes: longer than a round trip to a client in the same
/// region.
pub const LAST_HANDSHAKES: Duration = Duration::from_millis(100);

/// After how much silence the kernel probes a connection, and how often before it ends the connection: after 5 s + 3 x
/// 3 s without any answer. While sent bytes are unacknowledged, the kernel sends no probes.
const PROBE_AFTER: Duration = Duration::from_secs(5);
const PROBE_INTERVAL: Duration = Duration::from_secs(3);
const PROBES: u32 = 3;

/// The settings of the kernel's probes (TCP keep-alive).
pub const PROBING: TcpKeepalive =
    TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL).with_retries(PROBES);

/// A socket that listens at `address`. It shares its port with other sockets that were created in this way
/// (`SO_REUSEPORT`). Port 0 selects a free one.
///
/// # Errors
/// The system's reason: the port belongs to another user, the address family is disabled, ...
pub fn listener(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = bound(address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Makes a bound socket listen; it then shares new clients with the other listeners of its port. Does nothing if it
/// listens already.
///
/// If an earlier process has steered all clients to the position that this listener gets ([`steer`](crate::steer)),
/// that is undone at once. Otherwise this listener would get all clients: even before its process can serve, and, if it
/// belongs to one of several workers, the clients of all of them.
///
/// # Errors
/// The system's reason.
pub fn listen(socket: &impl AsFd, backlog: i32) -> io::Result<()> {
    let listener = SockRef::from(socket);
    if listener.is_listener()? {
        return Ok(());
    }
    listener.listen(backlog)?;
    spread(socket)
}

/// Like [`listener`], but the socket does not listen yet.
///
/// # Errors
/// The errors of [`listener`].
pub fn bound(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    // Accepted sockets inherit both options, which saves system calls for each of them.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&PROBING)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// An unconnected TCP socket that does not block.
///
/// # Errors
/// The system's reason.
pub fn tcp(ipv6: bool) -> io::Result<OwnedFd> {
    let family = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(family, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A UDP socket that does not block and is neither bound nor connected.
///
/// # Errors
/// The system's reason.
pub fn udp(ipv6: bool) -> io::Result<OwnedFd> {
    let family = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(family, Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Whether the error means that the machine does not support a family of addresses.
#[must_use]
pub fn is_no_family(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_socket_that_is_bound_alone_takes_no_connection() {
        let address =
            |socket: &OwnedFd| SockRef::from(socket).local_addr().unwrap().as_socket().unwrap();
        let bound = bound("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = TcpStream::connect(address(&bound)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        // Another listener has the same port.
        let listener = listener(address(&bound)).unwrap();
        TcpStream::connect(address(&listener)).unwrap();
    }

    /// Regression: all clients were sent to the process that had begun to listen last, before it could serve.
    #[test]
    fn one_that_begins_to_listen_after_a_succession_takes_its_part_alone() {
        let first = listener("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = SockRef::from(&first).local_addr().unwrap().as_socket().unwrap();
        let second = listener(address).unwrap();
        crate::steer(&first, 1).unwrap();
        drop(first);
        let third = bound(address).unwrap();
        listen(&third, BACKLOG).unwrap();
        // The number of clients, of 64, that each listener gets. With so many, each of two gets some unless they are
        // steered.
        let clients = |listeners: [&OwnedFd; 2]| {
            let clients: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
            let accept = |listener: &OwnedFd| {
                let listener = std::net::TcpListener::from(listener.try_clone().unwrap());
                std::iter::from_fn(|| listener.accept().ok()).count()
            };
            let mut counts = [0, 0];
            while counts[0] + counts[1] < clients.len() {
                counts = [0, 1].map(|at| counts[at] + accept(listeners[at]));
            }
            counts
        };
        let both = |counts: [usize; 2]| counts[0] > 0 && counts[1] > 0;
        assert!(both(clients([&second, &third])));
        crate::steer(&third, 1).unwrap();
        // Calling `listen` on a socket that listens already changes nothing.
        listen(&second, BACKLOG).unwrap();
        assert_eq!(clients([&second, &third]), [0, 64]);
        drop(second);
        let fourth = listener(address).unwrap();
        assert!(both(clients([&third, &fourth])));
    }

    #[test]
    fn the_want_of_a_family_is_told_from_other_errors() {
        let of = |code| is_no_family(&io::Error::from_raw_os_error(code));
        assert!(of(libc::EAFNOSUPPORT) && of(libc::EADDRNOTAVAIL) && !of(libc::EADDRINUSE));
    }
}
