//! Sockets of sock_diag(7), by which the kernel reports of TCP sockets.

use std::io;
use std::os::fd::AsRawFd;

use nix::libc;
use nix::sys::socket::{NetlinkAddr, bind};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// Where a message has the count of unread bytes (`idiag_rqueue`): after `struct nlmsghdr`, within `struct inet_diag_msg`.
pub const UNREAD_AT: usize = 16 + 56;
/// `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY` of linux/sock_diag.h, as bits.
const GROUPS: u32 = 0b101;
/// Room for announcements that have not been read: some hundred, which are the connections that an application with
/// unread requests closes at once. The kernel caps it (`net.core.rmem_max`); those beyond are lost, which its reader counts.
const RECEIVE_BUFFER: usize = 512 << 10;

/// A socket that asks the kernel about sockets of the calling process' network namespace; nothing waits in it to be read.
///
/// # Errors
/// The system's reason.
pub fn diagnosis() -> io::Result<Socket> {
    let protocol = Protocol::from(libc::NETLINK_SOCK_DIAG);
    let socket = Socket::new(Domain::from(libc::AF_NETLINK), Type::DGRAM, Some(protocol))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A socket on which the kernel announces the sockets of the calling process' network namespace that it destroys with
/// unread bytes.
///
/// # Errors
/// The system's reason: the kernel has no sock_diag(7), or a filter of system calls refuses it.
pub fn announcements() -> io::Result<Socket> {
    let socket = diagnosis()?;
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.attach_filter(&with_unread_bytes())?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS))?;
    Ok(socket)
}

/// Passes messages of sockets with unread bytes, and drops all others.
fn with_unread_bytes() -> [SockFilter; 4] {
    use nix::libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let step = |code: u32, value, or, otherwise| {
        SockFilter::new(u16::try_from(code).unwrap_or_default(), or, otherwise, value)
    };
    [
        step(BPF_LD | BPF_W | BPF_ABS, u32::try_from(UNREAD_AT).unwrap_or_default(), 0, 0),
        step(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        step(BPF_RET | BPF_K, 0, 0, 0),
        step(BPF_RET | BPF_K, u32::MAX, 0, 0),
    ]
}
