//! TLS over a socket. If both ends are in this process, bytes go through a pipe in memory after the handshake instead
//! ([`crate::passage`]).
//!
//! Buffers exist only while they hold bytes: an idle connection has none. A read takes as many bytes from the socket as
//! fit into one buffer (64 KiB), or at most one record while memory is short. A write is encrypted into one buffer and
//! sent at once; bytes that the socket does not accept are sent before anything else.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "lengths are the lesser of both sides' room"
)]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use leno_transport::{Buffer, Io, Peeked, budget};
use rustls::CommonState;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::TlsStream;
use crate::binding::{self, Binding};
use crate::cut;
use crate::passage::Passage;
#[cfg(test)]
use crate::pipe::PipeEnd;
use crate::session::{Incoming, MAX_PLAINTEXT, MAX_RECORD, Outgoing, Plaintext, Session, Step};

/// A connection before, during and after its handshake.
#[derive(Debug)]
pub(crate) struct Tls {
    /// The in-memory pipe of this connection, if it has one. Must be declared before the socket: it is then dropped
    /// first, so that the other end learns how the pipe ended before it sees the socket end.
    pub(crate) passage: Passage,
    tcp: TcpStream,
    pub(crate) session: Session,
    pub(crate) incoming: Incoming,
    /// Decrypted bytes that were not passed to the reader yet. A read returns them first.
    pub(crate) held: Option<Buffer>,
    outgoing: Outgoing,
    /// Whether a read may return bytes without waiting for the socket: rustls holds records for which the last reader
    /// had no room, or bytes were received together with the end of the handshake.
    pub(crate) more: bool,
    /// Whether the peer has ended its direction.
    pub(crate) peer_closed: bool,
    /// Whether this end has ended its direction.
    pub(crate) closed: bool,
    /// A secret that only the two ends of this connection can derive ([`Binding`]). `None` until the handshake has
    /// derived it, and for servers outside of the mesh.
    binding: Option<Binding>,
    /// The code that the server's proxy sent to say why it cut the connection ([`crate::cut`]), if any.
    pub(crate) report: Option<u8>,
}

impl Tls {
    /// The result is boxed, because the state of rustls takes a kilobyte and connections are moved often.
    pub(crate) fn new(tcp: impl Into<Peeked<TcpStream>>, session: Session) -> Box<Self> {
        let (read, tcp) = tcp.into().into_parts();
        Box::new(Self {
            passage: Passage::default(),
            tcp,
            session,
            incoming: Incoming::parked(read),
            held: None,
            outgoing: Outgoing::default(),
            more: false,
            peer_closed: false,
            closed: false,
            binding: None,
            report: None,
        })
    }

    pub(crate) fn common(&self) -> &CommonState {
        self.session.common()
    }

    /// [`Self::binding`], once it was derived.
    pub(crate) fn binding(&self) -> Option<Binding> {
        self.binding
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether the connection holds no bytes, and no memory for bytes.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.passage.pipe.as_ref().is_none_or(PipeEnd::is_empty)
            && self.incoming.is_empty()
            && self.outgoing.is_empty()
            && self.held.is_none()
    }

    /// Ready when a read may return something.
    pub(crate) fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.more || self.held.is_some() || self.peer_closed {
            return Poll::Ready(Ok(()));
        }
        if self.reads_pipe(cx)
            && let Some(pipe) = &mut self.passage.pipe
            && pipe.poll_readable(cx).is_ready()
        {
            return Poll::Ready(Ok(()));
        }
        self.poll_socket(cx)
    }

    /// Ready when the socket has something to read. Frees unused room before it waits.
    fn poll_socket(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ready = self.tcp.poll_read_ready(cx);
        if ready.is_pending() {
            self.incoming.park();
        }
        ready
    }

    /// Ready when both sides have finished and this side's last flight was passed to the kernel.
    pub(crate) fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            // rustls delivers the binding through a thread-local variable. Empty it first: a failed step of another
            // connection may have left its binding there.
            binding::take();
            let step = self.step(None, 0, cx)?;
            self.binding = binding::take().or(self.binding);
            self.offer_pipe();
            ready!(self.poll_send(cx))?;
            if !self.common().is_handshaking() {
                self.more = step == Step::Full || !self.incoming.is_empty();
                return Poll::Ready(Ok(()));
            }
            if self.peer_closed || ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Runs one step of the session. After an error, also tries to send the alert.
    pub(crate) fn step(
        &mut self,
        out: Option<&mut ReadBuf<'_>>,
        before: usize,
        cx: &mut Context<'_>,
    ) -> io::Result<Step> {
        let is_client = matches!(self.session, Session::Client(_));
        let plaintext = Plaintext {
            out,
            before,
            held: &mut self.held,
            binding: self.binding.as_ref().filter(|_| is_client),
            report: &mut self.report,
        };
        let outgoing = &mut self.outgoing;
        self.session.step(&mut self.incoming, plaintext, outgoing, &mut self.peer_closed).map_err(
            |error| {
                // The error of this step is returned, even if sending the alert fails, too: the peer may already have
                // left.
                let _alert = self.poll_send(cx);
                io::Error::new(io::ErrorKind::InvalidData, error)
            },
        )
    }

    /// Sends `report` to the other end: through the pipe if this end writes to it, otherwise as a last record. Returns
    /// false if the record could not be passed to the kernel completely.
    fn report(&mut self, report: u8) -> bool {
        if let Some(pipe) = self.passage.pipe.as_mut().filter(|_| self.passage.writes) {
            pipe.report(report);
            return true;
        }
        let Some(binding) = self.binding else { return false };
        let cx = &mut Context::from_waker(Waker::noop());
        matches!(self.poll_open(cx), Poll::Ready(Ok(())))
            && matches!(self.encrypt(cx, &cut::mark(&binding, report)), Poll::Ready(Ok(_)))
            && self.outgoing.is_empty()
    }

    /// Reads bytes from the socket into `incoming`. 0 is the end of the connection; without a `close_notify` before it,
    /// the connection was cut.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Wait first, so that no buffer is allocated for a read that must wait.
        ready!(self.poll_socket(cx))?;
        let Some(buffer) = self.incoming.room() else {
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        };
        let most = match budget::is_short() {
            true => MAX_RECORD.saturating_sub(buffer.filled().len()).max(1),
            false => buffer.unfilled().len(),
        };
        let room = buffer.unfilled();
        let most = most.min(room.len());
        let mut space = ReadBuf::new(&mut room[..most]);
        let read = Pin::new(&mut self.tcp).poll_read(cx, &mut space);
        let n = space.filled().len();
        buffer.fill(n);
        if n == 0 {
            self.incoming.park();
        }
        read.map_ok(|()| n)
    }

    /// Sends the bytes that are already encrypted.
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(bytes) = self.outgoing.next() {
            let Poll::Ready(written) = Pin::new(&mut self.tcp).poll_write(cx, bytes) else {
                if budget::is_short() {
                    self.outgoing.park();
                }
                return Poll::Pending;
            };
            let n = written?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.outgoing.sent(n);
        }
        Poll::Ready(Ok(()))
    }

    /// Ready when no bytes wait to be sent and the session can encrypt.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        loop {
            ready!(self.poll_send(cx))?;
            let step = self.step(None, 0, cx)?;
            self.more = false;
            match step {
                Step::Open if self.outgoing.is_empty() => return Poll::Ready(Ok(())),
                Step::Open => {}
                Step::NeedInput | Step::Full => {
                    return Poll::Ready(Err(io::Error::other("not connected")));
                }
            }
        }
    }

    /// Reads decrypted bytes: those in `held` first, then those of the next records. 0 bytes are the end of the peer's
    /// direction.
    pub(crate) fn poll_decrypted(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = out.filled().len();
        self.read_held(out);
        loop {
            if out.remaining() == 0 || (out.filled().len() > before && !self.more) {
                return Poll::Ready(Ok(()));
            }
            if self.more || !self.incoming.is_empty() {
                self.more = self.step(Some(out), before, cx)? == Step::Full;
            }
            if out.filled().len() > before || self.peer_closed {
                return Poll::Ready(Ok(()));
            }
            // Bytes of the session itself (a ticket, a key update) should not wait for the next write.
            let _sent_or_later = self.poll_send(cx)?;
            if ready!(self.poll_fill(cx))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    fn read_held(&mut self, out: &mut ReadBuf<'_>) {
        if let Some(held) = &mut self.held {
            let n = held.filled().len().min(out.remaining());
            out.put_slice(&held.filled()[..n]);
            held.consume(n);
            if held.filled().is_empty() {
                self.held = None;
            }
        }
    }

    /// Encrypts bytes, and sends as many of them as the socket accepts. The rest is sent before the next write.
    fn encrypt(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut buffer = Buffer::take();
        self.session.encrypt(&mut self.incoming, bytes, &mut buffer).map_err(io::Error::other)?;
        self.outgoing.put(buffer);
        self.passage.written += bytes.len() as u64;
        match self.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(bytes.len())),
        }
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self.get_mut().tls;
        let read = this.poll_bytes(cx, out);
        if budget::is_short() {
            // It may take a long time until the reader reads the rest.
            this.incoming.park();
            if let Some(held) = &mut this.held {
                held.shrink();
            }
        }
        read
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self.get_mut().tls;
        if ready!(this.poll_writes_pipe(cx))? {
            return this.poll_write_pipe(cx, &[IoSlice::new(bytes)]);
        }
        ready!(this.poll_open(cx))?;
        let n = bytes.len().min(MAX_PLAINTEXT);
        this.encrypt(cx, &bytes[..n])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self.get_mut().tls;
        if ready!(this.poll_writes_pipe(cx))? {
            return this.poll_write_pipe(cx, slices);
        }
        ready!(this.poll_open(cx))?;
        let mut filled = slices.iter().filter(|slice| !slice.is_empty());
        let first = filled.next().map_or(&[][..], |slice| slice);
        if first.len() >= MAX_PLAINTEXT || filled.next().is_none() {
            return this.encrypt(cx, &first[..first.len().min(MAX_PLAINTEXT)]);
        }
        // One record for a head and its body costs less than two, even if the bytes are copied.
        let mut gathered = Buffer::take();
        for slice in slices {
            let n = slice.len().min(MAX_PLAINTEXT - gathered.filled().len());
            gathered.unfilled()[..n].copy_from_slice(&slice[..n]);
            gathered.fill(n);
        }
        this.encrypt(cx, gathered.filled())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().tls.poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self.get_mut().tls;
        if ready!(this.poll_writes_pipe(cx))? {
            // The socket stays open: the other direction may still need it, and if it were closed, the other end would
            // take that for a failure of the network.
            this.close_pipe();
            return Poll::Ready(Ok(()));
        }
        if !this.closed {
            ready!(this.poll_open(cx))?;
            let mut buffer = Buffer::take();
            this.session.close(&mut this.incoming, &mut buffer).map_err(io::Error::other)?;
            this.outgoing.put(buffer);
            this.closed = true;
        }
        ready!(this.poll_send(cx))?;
        Pin::new(&mut this.tcp).poll_shutdown(cx)
    }
}

impl Io for TlsStream {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tls.poll_read_ready(cx)
    }

    fn socket(&self) -> Option<&TcpStream> {
        Some(&self.tls.tcp)
    }

    fn reset_on_drop(&mut self) {
        if let Some(pipe) = &mut self.tls.passage.pipe {
            pipe.reset_on_drop();
        }
        self.tls.tcp.reset_on_drop();
    }

    /// Cuts the connection. The report is only sent to a peer that has proven an identity: only that is surely a proxy,
    /// which does not pass the report on as bytes of the stream. Without a report, or if it cannot be sent, this is a
    /// reset.
    fn cut(&mut self, report: Option<u8>) {
        match report {
            // The connection is dropped without an alert, so that it looks cut.
            Some(report) if self.identity().is_some() && self.tls.report(report) => {}
            _ => self.reset_on_drop(),
        }
    }

    fn cut_report(&self) -> Option<u8> {
        self.tls.report
    }
}
