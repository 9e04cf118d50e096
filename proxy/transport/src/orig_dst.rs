//! Reads the original destination of captured connections.

use std::io;
use std::net::SocketAddr;

use leno_types::{OrigDst, canonical};
use socket2::SockRef;
use tokio::net::TcpStream;

/// The original destination of an accepted connection.
///
/// The result is the socket's local address if the port differs from the listener's: `sk_lookup` and TPROXY leave the
/// original address on the socket. Otherwise the result is the answer of `SO_ORIGINAL_DST` (`SOL_IP` 80 or `SOL_IPV6`
/// 80), which comes from netfilter after a REDIRECT or from the capture's `cgroup/getsockopt` program. Either address
/// is canonical (IPv4-mapped addresses become IPv4).
///
/// # Errors
/// `NotFound` if there is no original destination, because the connection was made to the listener itself. The system's
/// error if the connection is gone.
pub fn original_destination(tcp: &TcpStream, listener_port: u16) -> io::Result<OrigDst> {
    let local = canonical(tcp.local_addr()?);
    if local.port() != listener_port {
        return Ok(OrigDst(local));
    }
    let recorded = recorded(tcp, local.is_ipv4())?;
    // Conntrack also answers for connections that were not redirected, with the listener's own address. As a
    // destination, it would make the proxy connect to itself.
    recorded
        .filter(|destination| *destination != local)
        .map(OrigDst)
        .ok_or_else(|| not_captured(local))
}

/// Like [`original_destination`], for a listener that gets its connections by netfilter's REDIRECT. Such a connection
/// costs one system call less, because `SO_ORIGINAL_DST` is queried first.
///
/// # Errors
/// The errors of [`original_destination`].
pub fn redirected_destination(tcp: &TcpStream, listener: SocketAddr) -> io::Result<OrigDst> {
    match recorded(tcp, listener.is_ipv4())? {
        // Conntrack returns the listener's own address for connections that were not redirected.
        Some(destination) if destination.port() != listener.port() => Ok(OrigDst(destination)),
        _ => original_destination(tcp, listener.port()),
    }
}

/// The answer to `SO_ORIGINAL_DST`. `None` if the kernel has none for this connection.
fn recorded(tcp: &TcpStream, is_ipv4: bool) -> io::Result<Option<SocketAddr>> {
    let socket = SockRef::from(tcp);
    match if is_ipv4 { socket.original_dst_v4() } else { socket.original_dst_v6() } {
        Ok(address) => Ok(address.as_socket().map(canonical)),
        Err(error) if is_unknown(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn not_captured(local: SocketAddr) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("no original destination: the connection was made to {local} itself"),
    )
}

/// ENOENT: the connection is not in conntrack. ENOPROTOOPT, EOPNOTSUPP: there is neither netfilter nor a program of the
/// mesh.
fn is_unknown(error: &io::Error) -> bool {
    use nix::libc;
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOPROTOOPT | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Listener;

    async fn accepted(on: &str) -> (TcpStream, TcpStream, SocketAddr) {
        let listener = Listener::bind(on.parse().unwrap()).unwrap();
        let client = TcpStream::connect(listener.address()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        (client, server, listener.address())
    }

    #[tokio::test]
    async fn a_local_port_other_than_the_listeners_is_the_destination() {
        for on in ["127.0.0.1:0", "[::1]:0"] {
            let (_client, server, address) = accepted(on).await;
            let other = address.port().wrapping_add(1);
            assert_eq!(original_destination(&server, other).unwrap(), OrigDst(address));
            let listener = SocketAddr::new(address.ip(), other);
            assert_eq!(redirected_destination(&server, listener).unwrap(), OrigDst(address));
        }
    }

    #[tokio::test]
    async fn a_direct_connection_has_no_original_destination() {
        for on in ["127.0.0.1:0", "[::1]:0"] {
            let (_client, server, address) = accepted(on).await;
            let error = original_destination(&server, address.port()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
            let error = redirected_destination(&server, address).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        }
    }
}
