//! A connection that carries messages with descriptors (unix(7), `SCM_RIGHTS`).

#![expect(
    unsafe_code,
    reason = "descriptors travel in control messages, whose macros are unsafe in every binding"
)]

use std::fs;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen,
    shutdown, socket, socketpair,
};
use nix::sys::stat::fstat;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most descriptors in one message. The kernel's limit is 253.
pub const MAX_DESCRIPTORS: usize = 32;
/// The backlog of the listener. Usually at most one connection waits, which is that of the next supervisor.
const WAITING: i32 = 4;
/// Longest message, in bytes. It contains some addresses, or a path.
pub(crate) const MAX_MESSAGE: usize = 16 * 1024;
/// Room for the control message of [`MAX_DESCRIPTORS`] descriptors, in words so that it is aligned.
const CONTROL: usize = 4 + MAX_DESCRIPTORS / 2;

/// One end of a connection that preserves the boundaries of messages. The kernel drops descriptors that exceed the
/// receiver's `RLIMIT_NOFILE`.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// A listener to which processes of root can connect a [`Channel`].
#[derive(Debug)]
pub struct ChannelListener(OwnedFd);

impl Channel {
    /// Creates a connection and returns both ends.
    ///
    /// # Errors
    /// The system's reason, for example that no descriptor is left.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok((Self(one), Self(other)))
    }

    /// Connects to the process that listens at this path.
    ///
    /// # Errors
    /// The system's reason, for example that no process listens, or that this process has no permission to
    /// connect.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let own = unix_socket()?;
        connect(own.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self(own))
    }

    /// Another handle of the same end. The end is closed when all handles are dropped.
    ///
    /// # Errors
    /// The system's reason, for example that no descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    /// Sends a message with copies of the descriptors.
    ///
    /// # Errors
    /// `BrokenPipe` if the other end is closed; otherwise the system's reason.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        if bytes.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message is too long"));
        }
        send(self.0.as_fd(), &bytes, descriptors)
    }

    /// Receives the next message with its descriptors; `None` once the other end is closed. The kernel drops
    /// descriptors that exceed this process' `RLIMIT_NOFILE`, so the caller must compare their number with the message.
    ///
    /// # Errors
    /// `InvalidData` if the message cannot be parsed; `WouldBlock` if there is none and the channel is non-blocking;
    /// otherwise the system's reason.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let Some((bytes, descriptors)) = receive(self.0.as_fd())? else { return Ok(None) };
        Ok(Some((serde_json::from_slice(&bytes)?, descriptors)))
    }

    /// Whether both are handles of the same end.
    ///
    /// # Errors
    /// The system's reason.
    pub fn is_same(&self, other: &Self) -> io::Result<bool> {
        let (own, other) = (fstat(&self.0)?, fstat(&other.0)?);
        Ok((own.st_dev, own.st_ino) == (other.st_dev, other.st_ino))
    }

    /// Whether the other end is closed.
    ///
    /// # Errors
    /// The system's reason.
    pub fn is_closed(&self) -> io::Result<bool> {
        let mut asked = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        poll(&mut asked, PollTimeout::ZERO)?;
        Ok(asked.iter().any(|end| end.any().unwrap_or(true)))
    }

    /// Whether any message that was sent through a handle of this end was not received yet.
    ///
    /// # Errors
    /// The system's reason.
    pub fn has_unreceived(&self) -> io::Result<bool> {
        let mut memory: libc::c_int = 0;
        // SAFETY: the call, `SIOCOUTQ`, which has the same number as `TIOCOUTQ`, writes one number.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::TIOCOUTQ, &raw mut memory) };
        if done == 0 { Ok(memory > 0) } else { Err(io::Error::last_os_error()) }
    }

    /// Closes the connection for both ends, even if there are other handles.
    pub fn shut_down(&self) {
        // Fails only if the connection has already ended.
        let _ended = shutdown(self.0.as_raw_fd(), Shutdown::Both);
    }

    /// Makes this end non-blocking, for all handles: instead of waiting it fails with `WouldBlock`.
    ///
    /// # Errors
    /// The system's reason.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let flags = OFlag::from_bits_truncate(fcntl(&self.0, FcntlArg::F_GETFL)?);
        fcntl(&self.0, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(())
    }
}

impl ChannelListener {
    /// Listens at a path, and replaces the socket of an earlier process. Only root may connect.
    ///
    /// # Errors
    /// The system's reason.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let own = unix_socket()?;
        bind(own.as_raw_fd(), &UnixAddr::new(path)?)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
        listen(&own, Backlog::new(WAITING)?)?;
        Ok(Self(own))
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// The system's reason, for example that no descriptor is left.
    pub fn accept(&self) -> io::Result<Channel> {
        let accepted = accept4(self.0.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
        // SAFETY: the descriptor was just created for this process, and has no other owner.
        Ok(Channel(unsafe { OwnedFd::from_raw_fd(accepted) }))
    }
}

fn unix_socket() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

impl From<OwnedFd> for Channel {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn send(to: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut control = [0_u64; CONTROL];
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a `msghdr` of zero bytes is valid: it has null pointers with the length 0.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let length =
            u32::try_from(size_of_val(descriptors)).map_err(|_| io::ErrorKind::InvalidInput)?;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the macros compute lengths, and pointers into `control`. It has room for MAX_DESCRIPTORS, which
        // the caller has checked, and is aligned like a `cmsghdr`.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(length) as _;
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(length) as _;
            let places = libc::CMSG_DATA(first).cast::<RawFd>();
            for (index, descriptor) in descriptors.iter().enumerate() {
                places.add(index).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    loop {
        // SAFETY: the header points to `part` and `control`, which exist longer than the call.
        let sent = unsafe { libc::sendmsg(to.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
        match io::Error::last_os_error() {
            _ if sent >= 0 => return Ok(()),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

fn receive(from: BorrowedFd<'_>) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut control = [0_u64; CONTROL];
    // Not filled with zeros, so that only the pages with the message are touched: brokers keep few pages.
    let mut bytes: Vec<u8> = Vec::with_capacity(MAX_MESSAGE);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: MAX_MESSAGE };
    // SAFETY: a `msghdr` of zero bytes is valid, as in `send`.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = std::mem::size_of_val(&control) as _;
    let length = loop {
        // SAFETY: the header points to `part` and `control`, which exist longer than the call.
        let length =
            unsafe { libc::recvmsg(from.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        match (usize::try_from(length), io::Error::last_os_error()) {
            (Ok(length), _) => break length,
            (Err(_), error) if error.kind() == io::ErrorKind::Interrupted => {}
            (Err(_), error) => return Err(error),
        }
    };
    let descriptors = descriptors(&header);
    if header.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message was cut"));
    }
    // SAFETY: the kernel has written `length` bytes, which are no more than `MAX_MESSAGE`, the capacity.
    unsafe { bytes.set_len(length) };
    // Senders never send an empty message, so no bytes mean that the other end is closed.
    Ok((length > 0).then_some((bytes, descriptors)))
}

/// Takes the descriptors of a received message.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the length of a control message includes its header; a descriptor has a size"
)]
fn descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: the kernel has filled in the control messages and their length, and the macros stay within these.
    // Each descriptor was just created for this process, and is taken only once.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(header);
        while let Some(message) = next.as_ref() {
            if message.cmsg_level == libc::SOL_SOCKET && message.cmsg_type == libc::SCM_RIGHTS {
                let bytes = message.cmsg_len - libc::CMSG_LEN(0) as usize;
                let places = libc::CMSG_DATA(next).cast::<RawFd>();
                for index in 0..bytes / size_of::<RawFd>() {
                    found.push(OwnedFd::from_raw_fd(places.add(index).read_unaligned()));
                }
            }
            next = libc::CMSG_NXTHDR(header, next);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::{MemberReport, SocketRequest};

    #[test]
    fn a_message_arrives_with_its_descriptors() {
        let (one, other) = Channel::pair().unwrap();
        let want = SocketRequest { ipv6: true, udp: false, count: 3 };
        let (mut near, far) = UnixStream::pair().unwrap();
        one.send(&want, &[far.as_fd(); MAX_DESCRIPTORS]).unwrap();
        one.send(&want, &[]).unwrap();
        drop((one, far));
        let (said, mut descriptors) = other.receive::<SocketRequest>().unwrap().unwrap();
        assert_eq!((said, descriptors.len()), (want, MAX_DESCRIPTORS));
        UnixStream::from(descriptors.remove(0)).write_all(b"x").unwrap();
        near.read_exact(&mut [0]).unwrap();
        let (_, descriptors) = other.receive::<SocketRequest>().unwrap().unwrap();
        assert!(descriptors.is_empty());
        assert!(other.receive::<SocketRequest>().unwrap().is_none(), "the other end is closed");
    }

    #[test]
    fn a_channel_is_connected_by_its_path_and_lasts_as_long_as_one_of_its_handles() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("supervisor.sock");
        let error = Channel::connect(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        drop(ChannelListener::bind(&path).unwrap());
        let listener = ChannelListener::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let near = Channel::connect(&path).unwrap();
        let far = listener.accept().unwrap();
        let also_near = near.try_clone().unwrap();
        drop(near);
        also_near.send(&SocketRequest { ipv6: false, udp: false, count: 1 }, &[]).unwrap();
        assert!(far.receive::<SocketRequest>().unwrap().is_some());
        drop(also_near);
        assert!(far.receive::<SocketRequest>().unwrap().is_none());
    }

    #[test]
    fn an_end_is_recognised_and_shows_whether_the_other_one_is_closed() {
        let (one, other) = Channel::pair().unwrap();
        assert!(one.is_same(&one.try_clone().unwrap()).unwrap());
        assert!(!one.is_same(&other).unwrap());
        one.send(&SocketRequest { ipv6: false, udp: false, count: 1 }, &[]).unwrap();
        assert!(!one.is_closed().unwrap() && !other.is_closed().unwrap());
        drop(one);
        assert!(other.is_closed().unwrap());
    }

    #[test]
    fn what_was_not_received_is_seen_by_each_handle_of_the_sender() {
        let (one, other) = Channel::pair().unwrap();
        let held = one.try_clone().unwrap();
        assert!(!held.has_unreceived().unwrap());
        for _ in 0..2 {
            one.send(&(), &[other.as_fd()]).unwrap();
        }
        for left in [true, false] {
            assert!(held.has_unreceived().unwrap() && !other.has_unreceived().unwrap());
            other.receive::<()>().unwrap().unwrap();
            assert_eq!(held.has_unreceived().unwrap(), left);
        }
        one.send(&(), &[]).unwrap();
        drop(other);
        assert!(!held.has_unreceived().unwrap(), "it will never be received");
    }

    #[test]
    fn a_message_that_cannot_be_parsed_is_an_error() {
        let (one, other) = Channel::pair().unwrap();
        one.send(&SocketRequest { ipv6: false, udp: false, count: 1 }, &[]).unwrap();
        let error = other.receive::<MemberReport>().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let (_near, far) = UnixStream::pair().unwrap();
        let error = one.send(&1, &[far.as_fd(); MAX_DESCRIPTORS + 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
