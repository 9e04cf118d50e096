//! Where the bytes of a connection go after its handshake: into TLS, or into memory if both ends are of this process.
//!
//! ```text
//!  handshake ─┬─ the server is elsewhere ─► TLS, to the end
//!             └─ the client offers a pipe ─► TLS until the other end has taken it ─► the pipe, to its end
//! ```
//! The connection over the network stays open beside the pipe, as the witness that the network lets one end talk to the
//! other: once it ends, is reset, or its other end answers no more probes of the kernel, the pipe is cut.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "bytes that a connection has moved are counted"
)]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use leno_transport::{SILENCE, is_unanswered};
use tokio::io::ReadBuf;
use tokio::task::coop;
use tokio::time::{Instant, Sleep, sleep};

use crate::pipe::{self, PipeCutter, PipeEnd, PipeEnding};
use crate::session::{Session, Step};
use crate::stream::Alpn;
use crate::tls::Tls;

/// The pipe of a connection, if it has one, and how far it is used.
#[derive(Debug, Default)]
pub(crate) struct Passage {
    pub(crate) pipe: Option<PipeEnd>,
    /// This end is a client, and the server may be of this process.
    pub(crate) offers: bool,
    /// The other end writes to the pipe, and all that it wrote to TLS was read.
    reads: bool,
    /// This end writes to the pipe.
    pub(crate) writes: bool,
    /// Bytes of the application that were read from TLS, and written to it.
    read: u64,
    pub(crate) written: u64,
    /// The connection over the network has ended.
    witnessed: bool,
    /// While a write waits that must not read the socket: when it looks at the socket's errors next.
    look: Option<Pin<Box<Sleep>>>,
}

impl Passage {
    /// Whether nothing of the application comes by TLS any more. Leaves the reader's waker alone, unlike
    /// [`Tls::reads_pipe`].
    fn is_past_tls(&self) -> bool {
        self.reads || self.pipe.as_ref().is_some_and(|pipe| pipe.begins_after(self.read))
    }
}

impl Tls {
    /// Offers a pipe to the server, once the name of the connection is derived. Our last message of the handshake is sent
    /// after that, so that a server of this process finds it when its handshake is done.
    pub(crate) fn offer_pipe(&mut self) {
        let Some(binding) = self.binding().filter(|_| self.passage.offers) else { return };
        let carries = |alpn: Alpn| self.common().alpn_protocol() == Some(alpn.as_bytes());
        if [Alpn::Http2, Alpn::Http1, Alpn::Opaque].into_iter().any(carries) {
            self.passage.offers = false;
            self.passage.pipe = Some(pipe::offer(binding));
        }
    }

    /// Takes the pipe that a client of this process has offered.
    pub(crate) fn take_pipe(&mut self) {
        if let Some(binding) = self.binding() {
            self.passage.pipe = pipe::take(&binding);
            self.passage.writes = self.passage.pipe.is_some();
        }
    }

    /// What cuts the pipe of this connection.
    pub(crate) fn pipe_cutter(&self) -> PipeCutter {
        self.passage.pipe.as_ref().map(PipeEnd::cutter).unwrap_or_default()
    }

    /// Whether reads come from the pipe.
    pub(crate) fn reads_pipe(&mut self, cx: &Context<'_>) -> bool {
        let passage = &mut self.passage;
        if let Some(pipe) = passage.pipe.as_ref().filter(|_| !passage.reads) {
            passage.reads = pipe.reads(passage.read, cx);
        }
        passage.reads
    }

    /// Reads from wherever the other end writes to.
    pub(crate) fn poll_bytes(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.reads_pipe(cx) {
            return self.poll_pipe(cx, out);
        }
        let before = out.filled().len();
        let read = self.poll_decrypted(cx, out);
        let n = out.filled().len().saturating_sub(before);
        self.passage.read += n as u64;
        // The other end leaves the pipe before it closes the socket, so that all of it is seen now.
        if n == 0 && read.is_ready() && self.reads_pipe(cx) {
            return self.poll_pipe(cx, out);
        }
        read
    }

    fn poll_pipe(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.peer_closed || out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // As of a socket: two threads that keep each other busy leave the other tasks of both their turns.
        let turn = ready!(coop::poll_proceed(cx));
        if let Poll::Ready(error) = self.poll_cut(cx) {
            return Poll::Ready(Err(error));
        }
        let Some(pipe) = &mut self.passage.pipe else {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        };
        let read = ready!(pipe.poll_read(cx, out));
        turn.made_progress();
        Poll::Ready(match read {
            None => Ok(()),
            Some(PipeEnding::Closed) => {
                self.peer_closed = true;
                Ok(())
            }
            Some(PipeEnding::Cut(report)) => {
                if matches!(self.session, Session::Client(_)) {
                    self.report = report.or(self.report);
                }
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Some(PipeEnding::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
        })
    }

    /// Ready with the error when the connection over the network has ended while the other end still has the pipe, which is
    /// cut then.
    fn poll_cut(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.passage.witnessed {
            return Poll::Pending;
        }
        let error = match self.passage.is_past_tls() {
            true => ready!(self.poll_witness(cx)),
            false => ready!(self.poll_failure(cx)),
        };
        self.passage.witnessed = true;
        match &self.passage.pipe {
            Some(pipe) if !pipe.is_over() => {
                pipe.cutter().cut();
                Poll::Ready(error)
            }
            _ => Poll::Pending,
        }
    }

    /// Ready when the connection over the network has ended. What the session itself receives is processed.
    fn poll_witness(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let mut has_input = self.more || !self.incoming.is_empty();
        loop {
            if has_input {
                match self.step(None, 0, cx) {
                    Ok(step) => self.more = step == Step::Full,
                    Err(error) => return Poll::Ready(error),
                }
                if self.held.is_some() {
                    return Poll::Ready(io::ErrorKind::InvalidData.into());
                }
            }
            // What was encrypted before this end wrote to the pipe, too. A socket that fails fails the next read.
            let _later = self.poll_send(cx);
            match ready!(self.poll_fill(cx)) {
                Ok(0) => return Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => has_input = true,
                Err(error) => return Poll::Ready(error),
            }
        }
    }

    /// The same for a writer while the client's bytes in TLS, or its end there, are left to the reader: to read the socket
    /// would take them from it, and there is no room for all of them. It tells of errors only when it is asked.
    fn poll_failure(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        loop {
            let look = self.passage.look.get_or_insert_with(|| Box::pin(sleep(SILENCE)));
            ready!(look.as_mut().poll(cx));
            look.as_mut().reset(Instant::now() + SILENCE);
            if let Some(error) = self.socket().take_error().unwrap_or_else(Some) {
                return Poll::Ready(error);
            }
            if is_unanswered(self.socket()) {
                return Poll::Ready(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Whether writes go into the pipe. Ready once all that was encrypted before is sent.
    pub(crate) fn poll_writes_pipe(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let is_taken = |pipe: &PipeEnd| pipe.is_taken();
        if !self.passage.writes && !self.closed && self.passage.pipe.as_ref().is_some_and(is_taken)
        {
            ready!(self.poll_send(cx))?;
            if let Some(pipe) = &self.passage.pipe {
                pipe.begin_writing(self.passage.written);
                self.passage.writes = true;
            }
        }
        Poll::Ready(Ok(self.passage.writes))
    }

    pub(crate) fn poll_write_pipe(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let turn = ready!(coop::poll_proceed(cx));
        let pipe = self.passage.pipe.as_mut().filter(|_| !self.closed);
        let Some(pipe) = pipe else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let written = pipe.poll_write(cx, slices);
        if written.is_pending()
            && let Poll::Ready(error) = self.poll_cut(cx)
        {
            return Poll::Ready(Err(error));
        }
        if written.is_ready() {
            self.passage.look = None;
            turn.made_progress();
        }
        written
    }

    /// Ends the direction that this end writes, if that is the pipe.
    pub(crate) fn close_pipe(&mut self) {
        self.closed = true;
        if let Some(pipe) = &self.passage.pipe {
            pipe.close();
        }
    }
}
