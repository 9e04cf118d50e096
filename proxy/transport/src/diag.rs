//! Queries the kernel about single TCP sockets of this thread's network namespace, and parses its announcements of
//! destroyed sockets (sock_diag(7)).

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::PoisonError;

use leno_sockets::{BY_FAMILY, HEADER, UNREAD_AT, field, query};
use leno_types::canonical;
use nix::libc;

use crate::sockets;

/// `INET_DIAG_INFO` of linux/inet_diag.h: `struct tcp_info`.
const INFO: u16 = 2;
/// The length of `struct inet_diag_msg`.
const ANSWER: usize = 72;
/// The offsets of fields of `struct inet_diag_msg`, from the beginning of the message.
const FAMILY_AT: usize = HEADER;
const STATE_AT: usize = HEADER + 1;
const PORTS_AT: usize = HEADER + 4;
const ADDRESSES_AT: usize = HEADER + 8;
const INODE_AT: usize = HEADER + 68;
/// The offset of `tcpi_bytes_received` in `struct tcp_info` (Linux 4.2).
const RECEIVED_AT: usize = 128;
/// The size of a buffer for one message. The two structures with their headers take some 400 bytes.
pub(crate) const ROOM: usize = 1024;

/// The kernel's information about a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiagSocket {
    /// The state, as numbered in net/tcp_states.h.
    pub(crate) state: u8,
    /// 0 if no process holds the socket: it was closed, or not accepted yet.
    pub(crate) inode: u32,
}

/// A TCP socket that the kernel has destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Destroyed {
    /// The socket's own address, and the address to which it was connected.
    pub(crate) ends: (SocketAddr, SocketAddr),
    /// The bytes that were received in order. The end of the stream counts as one.
    pub(crate) received: u64,
    /// How many of these bytes no process has read.
    pub(crate) unread: u32,
}

/// The socket that is bound to `local` and connected to `remote`, or else a listener on `local`; `None` if there is
/// neither.
pub(crate) fn find(local: SocketAddr, remote: SocketAddr) -> io::Result<Option<DiagSocket>> {
    let kernel = sockets::diagnosis()?;
    let mut kernel = kernel.lock().unwrap_or_else(PoisonError::into_inner);
    kernel.write_all(&request(local, remote))?;
    // The kernel has answered by the time the write returns.
    let mut answer = [0; ROOM];
    let length = kernel.read(&mut answer)?;
    let answer = answer.get(..length).unwrap_or_default();
    // Otherwise the answer is an error: ENOENT, or the kernel does not support the query.
    Ok(read_found(answer))
}

fn read_found(message: &[u8]) -> Option<DiagSocket> {
    is_of_socket(message).then_some(())?;
    Some(DiagSocket { state: *message.get(STATE_AT)?, inode: native(message, INODE_AT)? })
}

/// Parses the message in which the kernel announces that it has destroyed a TCP socket.
pub(crate) fn read_destroyed(message: &[u8]) -> Option<Destroyed> {
    is_of_socket(message).then_some(())?;
    let ip = |at: usize| -> Option<IpAddr> {
        if libc::c_int::from(*message.get(FAMILY_AT)?) == libc::AF_INET {
            return Some(IpAddr::from(field::<4>(message, at)?));
        }
        Some(IpAddr::from(field::<16>(message, at)?))
    };
    let address = |index: usize| {
        let port =
            u16::from_be_bytes(field(message, PORTS_AT.checked_add(index.checked_mul(2)?)?)?);
        let ip = ip(ADDRESSES_AT.checked_add(index.checked_mul(16)?)?)?;
        Some(canonical(SocketAddr::new(ip, port)))
    };
    let info = attribute(message.get(HEADER + ANSWER..)?, INFO)?;
    Some(Destroyed {
        ends: (address(0)?, address(1)?),
        received: u64::from_ne_bytes(field(info, RECEIVED_AT)?),
        unread: native(message, UNREAD_AT)?,
    })
}

fn is_of_socket(message: &[u8]) -> bool {
    let kind = field(message, 4).map(u16::from_ne_bytes);
    kind == Some(BY_FAMILY) && message.len() >= HEADER + ANSWER
}

/// The contents of the attribute (`struct nlattr`) of type `wanted`. Attributes begin at multiples of four bytes.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(field(attributes, 0)?));
        let kind = u16::from_ne_bytes(field(attributes, 2)?);
        let contents = attributes.get(4..length)?;
        if kind == wanted {
            return Some(contents);
        }
        attributes = attributes.get(length.checked_next_multiple_of(4)?..)?;
    }
}

fn native(message: &[u8], at: usize) -> Option<u32> {
    field(message, at).map(u32::from_ne_bytes)
}

/// The query for the socket with these ends.
fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let ports = [local.port(), remote.port()].into_iter().flat_map(u16::to_be_bytes);
    let addresses = [local.ip(), remote.ip()].into_iter().flat_map(address);
    // Sockets on any interface, with any cookie (INET_DIAG_NOCOOKIE).
    let rest = [0; 4].into_iter().chain([u8::MAX; 8]);
    // Sockets in any state.
    query(0, (family, u32::MAX), ports.chain(addresses).chain(rest))
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
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The kernel is trusted, but messages of another kernel version must not make the proxy panic.
        #[test]
        fn any_message_is_parsed_or_refused(mut message in prop::collection::vec(any::<u8>(), 0..ROOM)) {
            if message.len() > 6 {
                message[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
            }
            let _ = (read_found(&message), read_destroyed(&message));
        }
    }
}
