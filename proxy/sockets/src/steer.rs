//! Has the kernel give new clients of a port to another one of the sockets that share it (`SO_REUSEPORT`).
#![expect(unsafe_code, reason = "no crate in use sets SO_ATTACH_REUSEPORT_CBPF")]

use std::ffi::c_int;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd as _};
use std::ptr::from_ref;

use nix::errno::Errno;
use nix::libc;

/// Clients that come from now on go to the listener of this port and family that has this place among those that listen, by when they
/// began, from 0. Where there is none, the kernel chooses one, as before. It holds until [`spread`], also for listeners that come later.
///
/// # Errors
/// The system's reason, as of a socket that shares no port.
pub fn steer(listener: &impl AsFd, place: u32) -> io::Result<()> {
    attach(listener, &mut [step(libc::BPF_RET | libc::BPF_K, place, 0, 0)])
}

/// How many bytes the connection IDs have by which [`steer_connections`] knows packets.
pub const CONNECTION_ID_BYTES: u8 = 8;

/// Packets of QUIC go to the process that their connection belongs to, where two processes share the port. This socket is of the
/// second one, whose connection IDs begin with `mark`; it gets what begins a connection, too. All others go to the first one.
/// Once that has closed its socket, everything goes to the other one.
///
/// The kernel runs it from the first byte of the payload on; a packet that is too short goes to the first process.
///
/// # Errors
/// The system's reason, as of a socket that shares no port.
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
            // A short header: the ID of this end follows (RFC 9000, 17.3.1).
            step(BPF_LD | BPF_W | BPF_ABS, 1, 0, 0),
            step(BPF_JMP | BPF_JA, 3, 0, 0),
            // A long one: the version, the length of the ID, the ID (17.2). That of a client's first packets has another length.
            step(BPF_LD | BPF_B | BPF_ABS, 5, 0, 0),
            step(BPF_JMP | BPF_JEQ | BPF_K, id_bytes, 0, 2),
            step(BPF_LD | BPF_W | BPF_ABS, 6, 0, 0),
            step(BPF_JMP | BPF_JEQ | BPF_K, u32::from_be_bytes(mark), 0, 1),
            step(BPF_RET | BPF_K, 1, 0, 0),
            step(BPF_RET | BPF_K, 0, 0, 0),
        ],
    )
}

/// The kernel spreads new clients over all listeners of this port and family again.
///
/// # Errors
/// The system's reason, but for those that leave nothing to be undone.
pub fn spread(listener: &impl AsFd) -> io::Result<()> {
    match set(listener, libc::SO_DETACH_REUSEPORT_BPF, &c_int::default()) {
        // Nothing steers them; it shares no port; the kernel cannot undo it (before Linux 5.3).
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
    // The kernel copies the program, whose steps live until it has.
    set(socket, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

fn set<T>(listener: &impl AsFd, option: c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(value)).unwrap_or_default();
    // SAFETY: the kernel reads as many bytes as the value has.
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

    /// While both processes had the port, the kernel gave half of the packets to the one that did not know their connection.
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
            // Whatever the kernel's hash of the client's address says.
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
