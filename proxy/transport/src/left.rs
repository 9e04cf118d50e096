//! Whether the program at the other end of a connection has left, or only sends no more.
//!
//! Both begin with the same FIN. On the wire they differ only once something is sent, which a program
//! that has closed its socket answers with a reset. The client of a sidecar runs on the same machine,
//! so that the kernel can be asked: it reports the client's own socket (sock_diag(7)), with an inode as
//! long as a program holds it.

use std::net::SocketAddr;

use leno_types::canonical;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::diag;

/// What is known of the program at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It has closed the connection, and reads no more.
    Left,
    /// It holds the connection, though it may send no more.
    Here,
    /// Nothing on this side can tell, for as long as the connection lasts: the program is on another machine, or
    /// what is below the stream does not say.
    Unknown,
}

/// What the kernel knows of the program that made the connection.
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
        // An error is of the question, not of the client: the kernel may answer the next one.
        Ok(Some(_)) | Err(_) => Presence::Here,
    }
}

/// Where the client's socket is connected to under netfilter, whose REDIRECT is seen on this side only. Under eBPF the
/// client's socket is connected to this one, and the kernel names an original destination too.
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
    async fn of_a_stream_that_is_not_plain_only_a_reset_is_known() {
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
    async fn a_client_that_only_sends_no_more_has_not_left() {
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
