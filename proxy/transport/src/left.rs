//! Finds out whether the program at the other end of a connection has closed it, or only its sending side.
//!
//! Both begin with the same FIN. On the wire they differ only once something is sent: the kernel answers with a reset
//! if the program has closed its socket. The client of a sidecar runs on the same machine, so the kernel can be
//! queried. It reports the client's own socket (sock_diag(7)), which has an inode as long as a program holds the
//! socket.

use std::net::SocketAddr;

use leno_types::canonical;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::diag;

/// Whether the process at the other end of a connection still holds its socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The process has closed the connection, and does not read any more.
    Left,
    /// The process still has the connection open, although it may send nothing more.
    Here,
    /// Not known, and will not be known as long as the connection exists: the process is on another machine, or the
    /// stream does not report it.
    Unknown,
}

/// Whether the process that opened the connection still holds its socket, according to the kernel.
#[must_use]
pub fn presence(tcp: &TcpStream) -> Presence {
    let (Ok(client), Ok(local)) = (tcp.peer_addr(), tcp.local_addr()) else {
        // The connection was reset.
        return Presence::Left;
    };
    let (client, local) = (canonical(client), canonical(local));
    let found = match diag::find(client, local) {
        Ok(None) => match redirected_from(tcp, local) {
            Some(original) if original != local => diag::find(client, original),
            _ => Ok(None),
        },
        answer => answer,
    };
    match found {
        Ok(Some(client)) if client.inode == 0 => Presence::Left,
        Ok(None) => Presence::Unknown,
        // An error says something about the query and not about the client: the next query may succeed.
        Ok(Some(_)) | Err(_) => Presence::Here,
    }
}

/// The address to which the client's socket is connected under netfilter, whose REDIRECT is visible only on this side.
/// Under eBPF the client's socket is connected to this socket, although the kernel also reports an original
/// destination.
fn redirected_from(tcp: &TcpStream, local: SocketAddr) -> Option<SocketAddr> {
    let socket = SockRef::from(tcp);
    let original =
        if local.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    original.ok()?.as_socket().map(canonical)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::{Counted, Io, Listener};

    #[tokio::test]
    async fn for_an_encrypted_stream_only_a_reset_shows_that_the_client_has_left() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let client = TcpStream::connect(listener.address()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        let mut accepted = Counted::new(accepted);
        assert_eq!(accepted.presence(), Presence::Unknown);
        client.set_zero_linger().unwrap();
        drop(client);
        accepted.read(&mut [0]).await.unwrap_err();
        assert_eq!(accepted.presence(), Presence::Left);
    }

    #[tokio::test]
    async fn a_client_that_has_only_shut_down_sending_has_not_left() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = Listener::bind(address.parse().unwrap()).unwrap();
            let mut client = TcpStream::connect(listener.address()).await.unwrap();
            let (mut accepted, _) = listener.accept().await.unwrap();
            assert_eq!(presence(&accepted), Presence::Here);
            client.shutdown().await.unwrap();
            assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
            assert_eq!(presence(&accepted), Presence::Here, "{address}: half-closed");
            drop(client);
            assert_eq!(presence(&accepted), Presence::Left, "{address}: closed");
        }
    }
}
