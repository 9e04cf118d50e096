//! Pipes for `splice`, from a pool: a relay holds a pipe only while bytes are in it.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::libc;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::budget::{self, Charge};

/// The size of a pipe, with which bulk relays were fastest in measurements.
const PIPE_BYTES: usize = 256 * 1024;

/// How many bytes are read into a pipe while memory is short. They stay in the pipe until the other side reads them.
const PIPE_BYTES_SHORT: usize = 16 * 1024;

/// How many free pipes a worker keeps, which take 16 descriptors.
const MAX_FREE: usize = 8;

thread_local! {
    static FREE: RefCell<Vec<PipeEnds>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
struct PipeEnds {
    read: OwnedFd,
    write: OwnedFd,
}

/// A pipe and the number of bytes in it. If it is empty when it is dropped, it returns to the pool.
#[derive(Debug)]
pub(super) struct Pipe {
    ends: Option<PipeEnds>,
    held: usize,
    /// The charge for bytes that stay in the pipe because the socket accepts none.
    charge: Option<Charge>,
}

/// Closes the free pipes of this thread.
pub(crate) fn trim_pipes() {
    FREE.with_borrow_mut(|free| *free = Vec::new());
}

/// The number of free pipes of this thread.
#[cfg(test)]
pub(super) fn free() -> usize {
    FREE.with_borrow(Vec::len)
}

impl Pipe {
    /// Takes a pipe from the pool, or creates one.
    ///
    /// # Errors
    /// No descriptor is left, or the user's limit of pipe memory (`pipe-user-pages-soft`) is reached.
    pub(super) fn take() -> io::Result<Self> {
        let ends = match FREE.with_borrow_mut(Vec::pop) {
            Some(ends) => ends,
            None => PipeEnds::new()?,
        };
        Ok(Self { ends: Some(ends), held: 0, charge: None })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Moves bytes from the socket into the pipe. The pipe must be empty, so that "would block" can only mean that the
    /// socket has no bytes. 0 is the end of the stream.
    pub(super) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        debug_assert!(self.is_empty());
        let most = if budget::is_short() { PIPE_BYTES_SHORT } else { PIPE_BYTES };
        loop {
            ready!(from.poll_read_ready(cx))?;
            let ends = self.ends();
            match from.try_io(Interest::READABLE, || moved(from, &ends.write, most)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n) => {
                    self.held = n;
                    return Poll::Ready(Ok(n));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Moves bytes from the pipe to the socket.
    #[expect(clippy::arithmetic_side_effects, reason = "no more leaves the pipe than it holds")]
    pub(super) fn poll_drain(
        &mut self,
        cx: &mut Context<'_>,
        to: &TcpStream,
    ) -> Poll<io::Result<usize>> {
        loop {
            if to.poll_write_ready(cx)?.is_pending() {
                self.charge.get_or_insert_with(|| Charge::new(self.held));
                return Poll::Pending;
            }
            let ends = self.ends();
            match to.try_io(Interest::WRITABLE, || moved(&ends.read, to, self.held)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(n) => {
                    self.held -= n;
                    self.charge = None;
                    return Poll::Ready(Ok(n));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn ends(&self) -> &PipeEnds {
        self.ends.as_ref().expect("taken only on drop")
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if self.held > 0 {
            return;
        }
        // At the end of the thread the pool no longer exists, and the pipe is closed.
        let ends = self.ends.take();
        let _ended = FREE.try_with(|free| {
            let mut free = free.borrow_mut();
            if free.len() < MAX_FREE {
                free.extend(ends);
            }
        });
    }
}

impl PipeEnds {
    fn new() -> io::Result<Self> {
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let bytes = libc::c_int::try_from(PIPE_BYTES).expect("256 KiB fit");
        fcntl(&write, FcntlArg::F_SETPIPE_SZ(bytes))?;
        Ok(Self { read, write })
    }
}

fn moved(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    let flags = SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK;
    splice(from, None, to, None, most, flags).map_err(io::Error::from)
}

/// Whether the error means that the socket does not support `splice`, for example because it is in a sockmap.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS))
}
