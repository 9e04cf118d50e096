//! Where a captured connection was meant to go.

use std::io;
use std::net::SocketAddr;

use leno_types::{OrigDst, canonical};
use socket2::SockRef;
use tokio::net::TcpStream;

/// The original destination of an accepted connection.
///
/// It is the socket's local address where its port is not the listener's: `sk_lookup` and TPROXY
/// leave the original address on the socket. Otherwise it is what `SO_ORIGINAL_DST` answers
/// (`SOL_IP` 80 or `SOL_IPV6` 80): netfilter after a REDIRECT, or the capture's `cgroup/getsockopt`
/// program. The result is canonical (IPv4-mapped addresses become IPv4).
///
/// # Errors
/// `NotFound` when nobody knows it: the connection was made to the listener itself. What the kernel
/// says when the connection is gone.
pub fn original_destination(tcp: &TcpStream, listener_port: u16) -> io::Result<OrigDst> {
    let local = canonical(tcp.local_addr()?);
    if local.port() != listener_port {
        return Ok(OrigDst(local));
    }
    let socket = SockRef::from(tcp);
    let answer = if local.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    let recorded = match answer {
        Ok(address) => address.as_socket().map(canonical),
        Err(error) if is_unknown(&error) => None,
        Err(error) => return Err(error),
    };
    // Conntrack answers for a connection that nobody redirected as well, with the listener's own
    // address; taking that for a destination would make the proxy connect to itself.
    recorded
        .filter(|destination| *destination != local)
        .map(OrigDst)
        .ok_or_else(|| not_captured(local))
}

fn not_captured(local: SocketAddr) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("no original destination: the connection was made to {local} itself"),
    )
}

/// ENOENT: not in conntrack. ENOPROTOOPT, EOPNOTSUPP: no netfilter and no program of ours.
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
    async fn a_foreign_local_port_is_the_destination() {
        for on in ["127.0.0.1:0", "[::1]:0"] {
            let (_client, server, address) = accepted(on).await;
            let other = address.port().wrapping_add(1);
            assert_eq!(original_destination(&server, other).unwrap(), OrigDst(address));
        }
    }

    #[tokio::test]
    async fn a_direct_connection_has_none() {
        for on in ["127.0.0.1:0", "[::1]:0"] {
            let (_client, server, address) = accepted(on).await;
            let error = original_destination(&server, address.port()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        }
    }
}
