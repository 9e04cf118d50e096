//! Where the bytes of a connection go after its handshake: through TLS, or through a pipe in memory if both ends are in
//! this process.
//!
//! ```text
//!  handshake ─┬─ the server is in another process ─────────► TLS, to the end
//!             └─ the client offers a pipe ─┬─ not taken ───► TLS, to the end
//!                                          └─ taken ───────► each direction: TLS until its writer begins to use
//!                                                            the pipe, then the pipe, to its end
//! ```
//! The network connection stays open while the pipe is used. It shows whether the network still lets the two ends
//! communicate: once it ends, is reset, or stops answering the kernel's probes, the pipe is cut.
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

/// The pipe of a connection, if it has one, and which directions use it.
#[derive(Debug, Default)]
pub(crate) struct Passage {
    pub(crate) pipe: Option<PipeEnd>,
    /// Whether this end is a client, and the server may be in this process.
    pub(crate) offers: bool,
    /// Whether the other end writes to the pipe, and all bytes that it wrote to TLS before were read.
    reads: bool,
    /// Whether this end writes to the pipe.
    pub(crate) writes: bool,
    /// How many bytes of the application were read from TLS, and how many were written to TLS.
    read: u64,
    pub(crate) written: u64,
    /// Whether the network connection has ended and this was handled.
    witnessed: bool,
    /// The timer until the next check of the socket for errors, which is set while a write to the pipe waits and only
    /// the reader may read the socket.
    look: Option<Pin<Box<Sleep>>>,
}

impl Passage {
    /// Whether no more bytes of the application come through TLS. Unlike [`Tls::reads_pipe`], this does not register
    /// the reader's waker.
    fn is_past_tls(&self) -> bool {
        self.reads || self.pipe.as_ref().is_some_and(|pipe| pipe.begins_after(self.read))
    }
}

impl Tls {
    /// Offers a pipe to the server, once the binding of the connection is derived. The client's last handshake message
    /// is sent after that, so a server in this process finds the offer when its handshake ends.
    pub(crate) fn offer_pipe(&mut self) {
        let Some(binding) = self.binding().filter(|_| self.passage.offers) else { return };
        let carries = |alpn: Alpn| self.common().alpn_protocol() == Some(alpn.as_bytes());
        if [Alpn::Http2, Alpn::Http1, Alpn::Opaque].into_iter().any(carries) {
            self.passage.offers = false;
            self.passage.pipe = Some(pipe::offer(binding));
        }
    }

    /// Takes the pipe that a client in this process has offered.
    pub(crate) fn take_pipe(&mut self) {
        if let Some(binding) = self.binding() {
            self.passage.pipe = pipe::take(&binding);
            self.passage.writes = self.passage.pipe.is_some();
        }
    }

    /// A handle that cuts the pipe of this connection.
    pub(crate) fn pipe_cutter(&self) -> PipeCutter {
        self.passage.pipe.as_ref().map(PipeEnd::cutter).unwrap_or_default()
    }

    /// Whether reads come from the pipe. If not, registers the reader to be woken when the other end begins to write to
    /// it.
    pub(crate) fn reads_pipe(&mut self, cx: &Context<'_>) -> bool {
        let passage = &mut self.passage;
        if let Some(pipe) = passage.pipe.as_ref().filter(|_| !passage.reads) {
            passage.reads = pipe.reads(passage.read, cx);
        }
        passage.reads
    }

    /// Reads from TLS or from the pipe, depending on where the other end writes.
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
        // The other end closes the pipe before it closes the socket, so all bytes of the pipe can be read now.
        if n == 0 && read.is_ready() && self.reads_pipe(cx) {
            return self.poll_pipe(cx, out);
        }
        read
    }

    fn poll_pipe(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.peer_closed || out.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        // Yield as a socket does. Otherwise two threads that keep each other busy would never run their other tasks.
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

    /// Ready with an error if the network connection has ended although the other end still has the pipe. The pipe is
    /// then cut.
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

    /// Ready when the network connection has ended. Processes the bytes that are for the session itself.
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
            // This also sends bytes that were encrypted before this end wrote to the pipe. If the socket fails, the
            // next read fails, too.
            let _later = self.poll_send(cx);
            match ready!(self.poll_fill(cx)) {
                Ok(0) => return Poll::Ready(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => has_input = true,
                Err(error) => return Poll::Ready(error),
            }
        }
    }

    /// Like `poll_witness`, but for a writer, while bytes or a close of the other end may still arrive through TLS.
    /// Only the reader may read those from the socket: a writer would have to store them without a bound. The kernel
    /// reports no errors of a socket that is not read, so it is checked at intervals.
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

    /// Whether writes go into the pipe. Ready when all bytes that were encrypted before have been sent.
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

    /// Closes this end's direction of the pipe. To be called only if this end writes to the pipe.
    pub(crate) fn close_pipe(&mut self) {
        self.closed = true;
        if let Some(pipe) = &self.passage.pipe {
            pipe.close();
        }
    }
}
