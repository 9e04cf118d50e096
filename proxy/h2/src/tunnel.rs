//! The bytes of a CONNECT (RFC 9113 section 8.5), used like a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use leno_transport::{Io, Presence};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::code::Code;
use crate::error::Reset;
use crate::piece::Piece;
use crate::stream::Stream;

/// The largest number of bytes that one write copies: as many as may wait in a stream
/// ([`Limits::send_bytes`](crate::Limits::send_bytes)).
const WRITE_BYTES: usize = 64 * 1024;

/// The code of a tunnel that ends before its END_STREAM. RFC 9113 section 8.5 defines it for a connection that was
/// reset. Implementations treat CANCEL and NO_ERROR as an orderly end.
const CUT: Code = Code::CONNECT_ERROR;

/// The two directions of a stream whose CONNECT was answered with 200.
///
/// A shutdown sends END_STREAM. A tunnel that is dropped without a shutdown, or after [`Io::reset_on_drop`], is reset,
/// so that the other end does not mistake the received bytes for all bytes. If the tunnel is not read, the window of
/// the stream slows down the sender.
#[derive(Debug)]
pub struct Tunnel {
    /// `None` only while this value is dropped.
    stream: Option<Stream>,
    /// Bytes that were received and not read yet.
    received: Piece,
    /// Whether the other end has sent END_STREAM.
    ended: bool,
    /// Whether END_STREAM was sent.
    shut: bool,
    /// Whether the tunnel must end with a reset.
    is_cut: bool,
}

impl Tunnel {
    /// A tunnel over the bytes of `stream`. Both heads must have been sent and received.
    #[must_use]
    pub fn new(stream: Stream) -> Self {
        let received = Piece::default();
        Self { stream: Some(stream), received, ended: false, shut: false, is_cut: false }
    }

    /// Ready when there are bytes to read, or at the end of the tunnel.
    fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Err(gone())) };
        while self.received.is_empty() && !self.ended {
            match ready!(stream.poll_data(cx)) {
                Ok(Some(piece)) => self.received = piece,
                Ok(None) => self.ended = true,
                Err(reset) => return Poll::Ready(Err(broken(reset))),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_received(cx))?;
        let part = this.received.split_to(out.remaining());
        out.put_slice(&part);
        if this.received.is_empty() {
            // Even an empty piece would keep its chunk allocated.
            this.received = Piece::default();
        }
        if let Some(stream) = this.stream.as_mut().filter(|_| !part.is_empty()) {
            stream.release(part.len());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let Some(stream) = this.stream.as_mut().filter(|_| !this.shut) else {
            return Poll::Ready(Err(gone()));
        };
        ready!(stream.poll_capacity(cx)).map_err(broken)?;
        let part = bytes.get(..WRITE_BYTES).unwrap_or(bytes);
        stream.send_data(part, false);
        Poll::Ready(Ok(part.len()))
    }

    /// Does nothing, because the connection's driver writes the queued bytes.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(stream) = this.stream.as_mut().filter(|_| !this.shut) {
            stream.send_data(Piece::default(), true);
            this.shut = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Io for Tunnel {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_received(cx)
    }

    fn reset_on_drop(&mut self) {
        self.is_cut = true;
    }

    fn presence(&self) -> Presence {
        match &self.stream {
            Some(stream) if stream.reset_reason().is_none() => Presence::Here,
            _ => Presence::Left,
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take().filter(|_| self.is_cut || !self.shut) {
            stream.reset(CUT);
        }
    }
}

fn broken(reset: Reset) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, reset)
}

fn gone() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

#[cfg(test)]
mod tests;
