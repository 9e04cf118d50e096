//! The TCP listeners of a network namespace, by sock_diag(7).
//!
//! For sock_diag(7), the kernel searches only the listeners. For `/proc/PID/net/tcp` it also searches the table of
//! connections, which all namespaces share: about 10 ms of CPU for each table on a machine with 24 GB of memory,
//! even if there is no connection.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;

use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_packet_sock_diag::{AF_INET, AF_INET6, IPPROTO_TCP, SockDiagMessage};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use rtnetlink::packet_core::{
    NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};

use crate::netns::on_own_thread;

/// The size of the receive buffer. The kernel never returns more than 32 KiB at once.
const ROOM: usize = 32 * 1024;

/// The listeners in the network namespace of process `pid`.
///
/// # Errors
/// When the process has ended, the caller may not enter its namespace, or the kernel has no sock_diag(7).
pub(super) fn listeners(pid: i32) -> io::Result<Vec<SocketAddr>> {
    let netns = File::open(format!("/proc/{pid}/ns/net"))?;
    let kernel = on_own_thread(|| -> nix::Result<_> {
        setns(&netns, CloneFlags::CLONE_NEWNET)?;
        let (flags, protocol) = (SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag);
        socket(AddressFamily::Netlink, SockType::Datagram, flags, protocol)
    })?;
    let mut kernel = File::from(kernel);
    let mut found = Vec::new();
    let mut room = vec![0; ROOM];
    for (family, any) in [(AF_INET, SocketId::new_v4()), (AF_INET6, SocketId::new_v6())] {
        kernel.write_all(&request(family, any))?;
        loop {
            let length = kernel.read(&mut room)?;
            if take_in(room.get(..length).unwrap_or_default(), &mut found)? {
                break;
            }
        }
    }
    Ok(found)
}

/// Encodes the request for all listeners of an address family.
fn request(family: u8, any: SocketId) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let wanted = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::LISTEN,
        socket_id: any,
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(wanted).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Adds the listeners in these messages of the kernel to `found`. Returns whether the last message was among them.
fn take_in(mut messages: &[u8], found: &mut Vec<SocketAddr>) -> io::Result<bool> {
    while !messages.is_empty() {
        let message: NetlinkMessage<SockDiagMessage> =
            NetlinkMessage::deserialize(messages).map_err(io::Error::other)?;
        let length = message.header.length as usize;
        match message.payload {
            NetlinkPayload::Done(_) => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(socket)) => {
                let SocketId { source_address, source_port, .. } = socket.header.socket_id;
                found.push(SocketAddr::new(source_address.to_canonical(), source_port));
            }
            _ => {}
        }
        messages = messages.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h, and `NLMSG_ERROR` and `NLMSG_DONE` of linux/netlink.h.
    const BY_FAMILY: u16 = 20;
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    /// Offsets of the fields of `struct inet_diag_msg`, from the beginning of the message.
    const HEADER: usize = 16;
    const FAMILY_AT: usize = HEADER;
    const PORT_AT: usize = HEADER + 4;
    const ADDRESS_AT: usize = HEADER + 8;

    /// A message of the kernel about a listener.
    fn message(family: libc::c_int, port: u16, ip: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 88];
        bytes[..4].copy_from_slice(&88_u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
        bytes[FAMILY_AT] = family as u8;
        bytes[PORT_AT..PORT_AT + 2].copy_from_slice(&port.to_be_bytes());
        bytes[ADDRESS_AT..ADDRESS_AT + ip.len()].copy_from_slice(ip);
        bytes
    }

    #[test]
    fn messages_are_read_up_to_the_last_one() {
        let mut done = vec![0; HEADER];
        done[0] = 16;
        done[4..6].copy_from_slice(&DONE.to_ne_bytes());
        let all = [
            message(libc::AF_INET, 8080, &[10, 0, 0, 1]),
            message(libc::AF_INET6, 80, &[0; 16]),
            done,
        ];
        let mut found = Vec::new();
        assert!(!take_in(&all[..2].concat(), &mut found).unwrap());
        assert_eq!(found, ["10.0.0.1:8080", "[::]:80"].map(|at| at.parse().unwrap()));
        assert!(take_in(&all.concat(), &mut found).unwrap());
        for cut in 1..88 {
            // A message that is cut off must be an error, not a shorter list.
            assert!(cut < 4 || take_in(&all[0][..cut], &mut Vec::new()).is_err(), "{cut}");
        }
    }

    #[test]
    fn an_error_of_the_kernel_is_returned() {
        let mut refused = message(0, 0, &[]);
        refused[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        refused[HEADER..HEADER + 4].copy_from_slice(&(-libc::ENOENT).to_ne_bytes());
        let error = take_in(&refused, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }

    /// Needs root, because the test enters a namespace.
    #[test]
    fn listeners_are_found_and_connections_are_not() {
        if !nix::unistd::geteuid().is_root() {
            let require = std::env::var("LENO_REQUIRE").unwrap_or_default();
            assert!(!require.contains("root"), "needs root");
            eprintln!("skipped: needs root");
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let client = TcpStream::connect(at).unwrap();
        let found = listeners(std::process::id().cast_signed()).unwrap();
        assert!(found.contains(&at), "{found:?}");
        assert!(!found.contains(&client.local_addr().unwrap()), "{found:?}");
        assert!(listeners(-1).is_err());
    }
}
