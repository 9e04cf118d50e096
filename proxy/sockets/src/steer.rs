//! Makes the kernel deliver new clients of a port to one of the sockets that share it (`SO_REUSEPORT`).
#![expect(unsafe_code, reason = "no crate in use sets SO_ATTACH_REUSEPORT_CBPF")]

use std::ffi::c_int;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::from_ref;

use nix::errno::Errno;
use nix::libc;

/// From now on, new clients go to one listener among those that share this port and family: the one at position
/// `place`, in the order in which they began to listen, counted from 0. If there is no such listener, the kernel
/// chooses one. This holds until [`spread`], also for listeners that are added later.
///
/// # Errors
/// The system's reason, for example that the socket does not share its port.
pub fn steer(listener: &impl AsFd, place: u32) -> io::Result<()> {
    attach(listener, &mut [step(libc::BPF_RET | libc::BPF_K, place, 0, 0)])
}

/// The length in bytes of the connection IDs by which [`steer_connections`] recognises packets.
pub const CONNECTION_ID_BYTES: u8 = 8;

/// While two processes share a port, delivers each QUIC packet to the process that has its connection. `socket` belongs
/// to the second process, whose connection IDs begin with `mark`; it also gets packets that begin a connection. All
/// other packets go to the first process. Once that has closed its socket, all packets go to the second.
///
/// The kernel runs the filter on the payload; a packet that is too short goes to the first process.
///
/// # Errors
/// The system's reason, for example that the socket does not share its port.
pub fn steer_connections(socket: &impl AsFd, mark: [u8; 4]) -> io::Result<()> {
    use nix::libc::{
        BPF_ABS, BPF_B, BPF_JA, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W,
    };
    const LONG_HEADER: u32 = 0x80;
    let id_bytes = u32::from(CONNECTION_ID_BYTES);
    attach(
        socket,
        &mut [
            step(BPF_LD | BPF_B | BPF_ABS, 0, 0, 0),
            step(BPF_JMP | BPF_JSET | BPF_K, LONG_HEADER, 2, 0),
            // A short header: the connection ID of the receiver follows (RFC 9000, 17.3.1).
            step(BPF_LD | BPF_W | BPF_ABS, 1, 0, 0),
            step(BPF_JMP | BPF_JA, 3, 0, 0),
            // A long header: the version, the length of the ID and the ID follow (17.2). The ID in a client's first
            // packets has another length.
            step(BPF_LD | BPF_B | BPF_ABS, 5, 0, 0),
            step(BPF_JMP | BPF_JEQ | BPF_K, id_bytes, 0, 2),
            step(BPF_LD | BPF_W | BPF_ABS, 6, 0, 0),
            step(BPF_JMP | BPF_JEQ | BPF_K, u32::from_be_bytes(mark), 0, 1),
            step(BPF_RET | BPF_K, 1, 0, 0),
            step(BPF_RET | BPF_K, 0, 0, 0),
        ],
    )
}

/// Makes the kernel spread new clients over all listeners of this port and family again.
///
/// # Errors
/// The system's reason, except if there is nothing to undo.
pub fn spread(listener: &impl AsFd) -> io::Result<()> {
    match set(listener, libc::SO_DETACH_REUSEPORT_BPF, &c_int::default()) {
        // Nothing was steered, the socket does not share its port, or the kernel cannot undo it (before Linux 5.3).
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::ENOENT | libc::EINVAL | libc::ENOPROTOOPT)
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}

fn attach(socket: &impl AsFd, steps: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(steps.len()).unwrap_or_default();
    let program = libc::sock_fprog { len, filter: steps.as_mut_ptr() };
    // The kernel copies the program during the call, and its steps live that long.
    set(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

fn set<T>(listener: &impl AsFd, option: c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(value)).unwrap_or_default();
    // SAFETY: the kernel reads as many bytes as `value` has.
    let set = unsafe {
        libc::setsockopt(
            listener.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            from_ref(value).cast(),
            length,
        )
    };
    Errno::result(set)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};
    use std::time::Duration;

    use socket2::SockRef;

    use super::*;

    fn shared(address: &str) -> UdpSocket {
        let socket = crate::udp(false).unwrap();
        SockRef::from(&socket).set_reuse_port(true).unwrap();
        let address: SocketAddr = address.parse().unwrap();
        SockRef::from(&socket).bind(&address.into()).unwrap();
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(false).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    }

    /// Regression: while both processes had the port, the kernel delivered half of the packets to the process that did
    /// not know their connection.
    #[test]
    fn packets_of_connections_go_to_their_process_and_new_clients_to_the_second() {
        let first = shared("127.0.0.1:0");
        let second = shared(&first.local_addr().unwrap().to_string());
        steer_connections(&second, *b"next").unwrap();
        let short = |id: &[u8]| [&[0x40_u8][..], id, &[0; 20]].concat();
        let long = |id: &[u8]| {
            let length = u8::try_from(id.len()).unwrap();
            [&[0xc0, 0, 0, 0, 1, length][..], id, &[0; 20]].concat()
        };
        let sent_to = |packet: &[u8], by: &UdpSocket| {
            // The result must not depend on the kernel's hash of the client's address.
            for _ in 0..16 {
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                client.send_to(packet, by.local_addr().unwrap()).unwrap();
                let (_, from) = by.recv_from(&mut [0; 64]).unwrap();
                assert_eq!(from, client.local_addr().unwrap());
            }
        };
        sent_to(&short(b"before-1"), &first);
        sent_to(&short(b"next-345"), &second);
        sent_to(&long(b"before-1"), &first);
        sent_to(&long(b"next-345"), &second);
        sent_to(&long(b"chosen-by-the-client"), &second);
        drop(first);
        sent_to(&short(b"before-1"), &second);
        sent_to(&short(b"next-345"), &second);
    }
}
