//! Whether the program at the other end of a connection has left, or only sends no more.
//!
//! Both begin with the same FIN. On the wire they differ only once something is sent, which a program
//! that has closed its socket answers with a reset. The client of a sidecar runs on the same machine,
//! so that the kernel can be asked: it reports the client's own socket (sock_diag(7)), with an inode as
//! long as a program holds it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};

use leno_types::canonical;
use nix::libc;
use socket2::SockRef;
use tokio::net::TcpStream;

use crate::sockets;

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;
/// Bytes of `struct nlmsghdr`, of `struct inet_diag_req_v2` and of `struct inet_diag_msg`.
const HEADER: usize = 16;
const REQUEST: usize = 56;
const ANSWER: usize = 72;
/// Where `struct inet_diag_msg` has `idiag_inode`.
const INODE_AT: usize = 68;

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
    let inode = match inode(client, local) {
        Ok(None) => match redirected().ok().and_then(|address| address.as_socket()) {
            Some(original) => inode(client, canonical(original)),
            None => Ok(None),
        },
        answer => answer,
    };
    matches!(inode, Ok(Some(0)))
}

/// The inode of the socket that is bound to `local` and connected to `remote`: 0 if no program holds
/// it any more, `None` if there is no such socket.
fn inode(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
    let mut kernel = sockets::diagnosis()?;
    kernel.write_all(&request(local, remote))?;
    // The kernel has answered when the write returns.
    let mut answer = [0; 512];
    let length = kernel.read(&mut answer)?;
    let answer = answer.get(..length).unwrap_or_default();
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    if kind != Some(BY_FAMILY) || length < HEADER + ANSWER {
        // An error: ENOENT, or the kernel was built without the answer.
        return Ok(None);
    }
    let inode = answer.get(HEADER + INODE_AT..HEADER + INODE_AT + 4);
    Ok(inode.and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes))
}

/// Asks for one socket: `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut bytes = Vec::with_capacity(HEADER + REQUEST);
    bytes.extend(((HEADER + REQUEST) as u32).to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    // Sequence number and port: one question, one answer.
    bytes.extend([0; 8]);
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    // In any state.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    bytes.extend(address(local.ip()));
    bytes.extend(address(remote.ip()));
    // On any interface, with any cookie (INET_DIAG_NOCOOKIE).
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([u8::MAX; 8]);
    bytes
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
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
