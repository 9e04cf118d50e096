//! Whether the program at the other end of a connection has left, or only sends no more.
//!
//! Both begin with the same FIN. On the wire they differ only once something is sent, which a program
//! that has closed its socket answers with a reset. The client of a sidecar runs on the same machine,
//! so that the kernel can be asked: it reports the client's own socket (sock_diag(7)), with an inode as
//! long as a program holds it.

use leno_types::canonical;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::diag;

/// Whether the program that made the connection from this machine has closed it, and reads no more.
/// `false` where the kernel does not know: the program is on another machine.
#[must_use]
pub fn has_left(tcp: &TcpStream) -> bool {
    let (Ok(client), Ok(local)) = (tcp.peer_addr(), tcp.local_addr()) else {
        // The connection was reset.
        return true;
    };
    let (client, local) = (canonical(client), canonical(local));
    // Netfilter's REDIRECT is seen on this side only: the client's socket has the original destination.
    let socket = SockRef::from(tcp);
    let redirected =
        || if local.is_ipv4() { socket.original_dst_v4() } else { socket.original_dst_v6() };
    let found = match diag::find(client, local) {
        Ok(None) => match redirected().ok().and_then(|address| address.as_socket()) {
            Some(original) => diag::find(client, canonical(original)),
            None => Ok(None),
        },
        answer => answer,
    };
    matches!(found, Ok(Some(client)) if client.inode == 0)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::Listener;

    #[tokio::test]
    async fn a_client_that_only_sends_no_more_has_not_left() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = Listener::bind(address.parse().unwrap()).unwrap();
            let mut client = TcpStream::connect(listener.address()).await.unwrap();
            let (mut accepted, _) = listener.accept().await.unwrap();
            assert!(!has_left(&accepted));
            client.shutdown().await.unwrap();
            assert_eq!(accepted.read(&mut [0]).await.unwrap(), 0);
            assert!(!has_left(&accepted), "{address}: half-closed");
            drop(client);
            assert!(has_left(&accepted), "{address}: closed");
        }
    }
}
