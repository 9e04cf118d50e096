//! One direction of a relay.
#![expect(clippy::arithmetic_side_effects, reason = "bytes moved, which do not reach 2^64")]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncWrite, ReadBuf};

use super::pipe::{self, Pipe};
use super::{Ended, Side};
use crate::{Buffer, Io, budget};

/// After how many bytes a direction between plain sockets continues with `splice`. A pipe costs two descriptors and two
/// more system calls for each piece, which is not worth it for small streams.
const SPLICE_AFTER: u64 = 256 * 1024;

/// How many reads are made in one poll before other tasks run.
const MAX_READS_PER_POLL: u32 = 32;

/// How many bytes are written in one poll before other tasks run, plus or minus one piece. This takes half a
/// millisecond to a millisecond.
const MAX_BYTES_PER_POLL: u64 = 2 * 1024 * 1024;

/// How many bytes are read at a time while memory is short.
const READ_SHORT: usize = 4 * 1024;

/// How a direction moves bytes. An error ends it in any state.
///
/// ```text
/// Copy ──more than SPLICE_AFTER, both sockets plain──► Splice
///  │ ◄──no pipe, or no splice on these sockets──────────┤      (never spliced again)
///  └──────────── end of the source read ────────────────┘
///                           ▼
///            Shutdown of the sink's write half ──► Done
/// ```
#[derive(Debug, Default)]
enum State {
    #[default]
    Copy,
    Splice,
    Shutdown,
    Done,
}

/// One direction of a relay, which reads from its source and writes to its sink.
#[derive(Debug, Default)]
pub(super) struct Direction {
    state: State,
    /// Bytes that were read and not written yet. `None` if there are none.
    held: Option<Buffer>,
    /// The pipe with bytes that were spliced into it and not out of it yet.
    pipe: Option<Pipe>,
    /// Set if splicing has failed: these sockets do not support it, or no pipe could be created.
    never_splice: bool,
    /// Whether the sink may still buffer written bytes, as TLS does.
    unflushed: bool,
    /// How many bytes were written to the sink.
    moved: u64,
}

/// An error, and whether it occurred where this direction reads or where it writes.
#[derive(Debug)]
pub(super) enum Failed {
    Reading(io::Error),
    Writing(io::Error),
}

impl Failed {
    /// Converts to the result of the relay; this direction reads from `from`.
    pub(super) fn seen_from(self, from: Side) -> Ended {
        let (side, error) = match self {
            Self::Reading(error) => (from, error),
            Self::Writing(error) => (from.other(), error),
        };
        Ended::Failed { side, error }
    }
}

impl Direction {
    /// A direction whose first bytes were already read.
    pub(super) fn holding(bytes: Vec<u8>) -> Self {
        let held = (!bytes.is_empty()).then(|| Buffer::holding(bytes));
        Self { held, ..Self::default() }
    }

    /// How many bytes were written so far.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// Whether the source is not being read, because it has ended or the sink accepts no bytes. During that time an
    /// error of the source is not noticed.
    pub(super) fn is_deaf(&self) -> bool {
        let holds = self.held.is_some() || self.pipe.as_ref().is_some_and(|pipe| !pipe.is_empty());
        holds || matches!(self.state, State::Shutdown | State::Done)
    }

    /// Moves as many bytes as possible without blocking. Ready when this direction has ended.
    pub(super) fn poll<R: Io, W: Io>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<Result<(), Failed>> {
        loop {
            self.state = match self.state {
                State::Copy => ready!(self.poll_copy(cx, from, to))?,
                State::Splice => ready!(self.poll_splice(cx, from, to))?,
                State::Shutdown => {
                    let shut = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    end_of_shutdown(shut).map_err(Failed::Writing)?;
                    State::Done
                }
                State::Done => return Poll::Ready(Ok(())),
            };
        }
    }

    fn poll_copy<R: Io, W: Io>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<Result<State, Failed>> {
        let enough = self.moved + MAX_BYTES_PER_POLL;
        for _ in 0..MAX_READS_PER_POLL {
            ready!(self.poll_write_held(cx, to))?;
            if self.moved >= enough {
                break;
            }
            let in_kernel = self.moved > SPLICE_AFTER && !self.never_splice;
            if in_kernel && from.plain().is_some() && to.plain().is_some() {
                return Poll::Ready(Ok(State::Splice));
            }
            let mut buffer = Buffer::take();
            let most = if budget::is_short() { READ_SHORT } else { crate::RELAY_BUFFER };
            let mut space = ReadBuf::new(buffer.unfilled());
            let mut space = space.take(most);
            match Pin::new(&mut *from).poll_read(cx, &mut space) {
                Poll::Pending => {
                    drop(buffer);
                    return self.poll_flush(cx, to);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Failed::Reading(error))),
                Poll::Ready(Ok(())) => {}
            }
            let n = space.filled().len();
            if n == 0 {
                return Poll::Ready(Ok(State::Shutdown));
            }
            buffer.fill(n);
            self.held = Some(buffer);
        }
        again(cx)
    }

    fn poll_write_held<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
    ) -> Poll<Result<(), Failed>> {
        while let Some(buffer) = &mut self.held {
            let Poll::Ready(wrote) = Pin::new(&mut *to).poll_write(cx, buffer.filled()) else {
                if budget::is_short() {
                    buffer.shrink();
                }
                return Poll::Pending;
            };
            let n = wrote.and_then(some).map_err(Failed::Writing)?;
            self.moved += n as u64;
            self.unflushed = true;
            buffer.consume(n);
            if buffer.filled().is_empty() {
                self.held = None;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Flushes bytes that the sink, if it is TLS, still buffers. Called when there is nothing to read, before the task
    /// waits.
    fn poll_flush<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        to: &mut W,
    ) -> Poll<Result<State, Failed>> {
        if self.unflushed {
            ready!(Pin::new(&mut *to).poll_flush(cx)).map_err(Failed::Writing)?;
            self.unflushed = false;
        }
        Poll::Pending
    }

    fn poll_splice<R: Io, W: Io>(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut R,
        to: &mut W,
    ) -> Poll<Result<State, Failed>> {
        let (Some(from), Some(to)) = (from.plain(), to.plain()) else {
            self.never_splice = true;
            return Poll::Ready(Ok(State::Copy));
        };
        let enough = self.moved + MAX_BYTES_PER_POLL;
        while self.moved < enough {
            let mut pipe = match self.pipe.take().map_or_else(Pipe::take, Ok) {
                Ok(pipe) => pipe,
                Err(_no_pipe) => {
                    self.never_splice = true;
                    return Poll::Ready(Ok(State::Copy));
                }
            };
            while !pipe.is_empty() {
                match pipe.poll_drain(cx, to) {
                    Poll::Pending => {
                        self.pipe = Some(pipe);
                        return Poll::Pending;
                    }
                    Poll::Ready(wrote) => {
                        self.moved += wrote.and_then(some).map_err(Failed::Writing)? as u64;
                    }
                }
            }
            match ready!(pipe.poll_fill(cx, from)) {
                Err(error) if pipe::is_unsupported(&error) => {
                    self.never_splice = true;
                    return Poll::Ready(Ok(State::Copy));
                }
                Err(error) => return Poll::Ready(Err(Failed::Reading(error))),
                Ok(0) => return Poll::Ready(Ok(State::Shutdown)),
                Ok(_) => self.pipe = Some(pipe),
            }
        }
        again(cx)
    }
}

fn some(n: usize) -> io::Result<usize> {
    if n == 0 {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(n)
}

/// Requests that the task is polled again after the other tasks.
fn again<T>(cx: &Context<'_>) -> Poll<T> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

/// The sink may have closed its connection before the end of this direction is passed on to it. This is not a failure:
/// the sink has ended its own direction before, so nothing of that is lost.
fn end_of_shutdown(shut: io::Result<()>) -> io::Result<()> {
    match shut {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}
