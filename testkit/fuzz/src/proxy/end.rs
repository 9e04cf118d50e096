//! Scripted ends of connections.
//!
//! The planes hold a `TcpStream` whose descriptor is one end of a Unix socket pair. Bytes arrive at the other end
//! as soon as they are written, so a run depends on neither the network nor the machine's load.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use socket2::SockRef;
use tokio::net::TcpStream;

/// The size of the kernel's send buffer at the planes' end. It is small, so that slow readers have an effect.
const SEND_BUFFER: usize = 16 * 1024;
/// Most bytes of one read.
const CHUNK: usize = 64 * 1024;

/// The scripted end of a connection.
#[derive(Debug)]
pub(crate) struct ScriptedEnd {
    socket: Option<UnixStream>,
    /// All bytes that were read.
    pub(crate) inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Whether the other side has closed or reset the connection.
    pub(crate) ended: bool,
    /// Whether this side has stopped reading.
    pub(crate) is_deaf: bool,
    /// Whether this side shuts down its sending direction once everything is written.
    finishes: bool,
}

/// A connection: the planes' end and the scripted end.
pub(crate) fn pair() -> (TcpStream, ScriptedEnd) {
    let (near, far) = UnixStream::pair().expect("a descriptor is free");
    for socket in [&near, &far] {
        socket.set_nonblocking(true).expect("a socket can be made non-blocking");
    }
    let near = stream(near);
    let end = ScriptedEnd {
        socket: Some(far),
        inbox: Vec::new(),
        outbox: Vec::new(),
        ended: false,
        is_deaf: false,
        finishes: false,
    };
    (near, end)
}

/// A socket in the type that the planes accept.
fn stream(socket: UnixStream) -> TcpStream {
    SockRef::from(&socket).set_send_buffer_size(SEND_BUFFER).expect("sockets have buffers");
    let socket = std::net::TcpStream::from(OwnedFd::from(socket));
    TcpStream::from_std(socket).expect("the runtime waits for sockets")
}

impl ScriptedEnd {
    /// Queues bytes, which are sent when there is room.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        if self.socket.is_some() {
            self.outbox.extend_from_slice(bytes);
        }
    }

    /// Shuts down the sending direction once everything is sent.
    pub(crate) fn finish(&mut self) {
        self.finishes = true;
    }

    /// Closes the connection at once. The other side sees a reset if it has sent bytes that were not read.
    pub(crate) fn close(&mut self) {
        self.socket = None;
        self.outbox.clear();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.socket.is_none()
    }

    /// How many bytes are still queued.
    pub(crate) fn unsent(&self) -> usize {
        self.outbox.len()
    }

    /// Reads and writes as much as possible; returns whether anything moved.
    pub(crate) fn pump(&mut self) -> bool {
        let moved = self.write();
        self.read() || moved
    }

    fn write(&mut self) -> bool {
        let Some(socket) = &mut self.socket else { return false };
        let mut written = 0;
        while written < self.outbox.len() {
            match socket.write(&self.outbox[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The other side has closed the connection.
                Err(_) => {
                    self.outbox.clear();
                    break;
                }
            }
        }
        self.outbox.drain(..written.min(self.outbox.len()));
        if self.finishes && self.outbox.is_empty() {
            self.finishes = false;
            // Fails only if the connection is already closed.
            let _gone = socket.shutdown(Shutdown::Write);
            return true;
        }
        written > 0
    }

    fn read(&mut self) -> bool {
        let Some(socket) = self.socket.as_mut().filter(|_| !self.ended && !self.is_deaf) else {
            return false;
        };
        let filled = self.inbox.len();
        self.inbox.resize(filled + CHUNK, 0);
        let read = socket.read(&mut self.inbox[filled..]);
        let count = *read.as_ref().unwrap_or(&0);
        self.inbox.truncate(filled + count);
        match read {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Ok(0) | Err(_) => self.ended = true,
            Ok(_) => {}
        }
        true
    }
}
