//! A connection to an endpoint: TLS if the endpoint is meshed or an external service that uses TLS, a part of a
//! connection that others share if its proxy takes HBONE, else plain TCP.

use std::cell::Cell;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_transport::Io;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::{Alpn, TlsStream, refused_by_server};

/// A connection of either kind, so that one pool and one relay serve both.
#[derive(Debug)]
pub struct Channel {
    kind: ChannelKind,
    /// Set once the server's proxy has refused this proxy's certificate.
    refused: Rc<Cell<bool>>,
    /// Dropped together with the connection.
    _guard: Option<Rc<dyn fmt::Debug>>,
}

#[derive(Debug)]
enum ChannelKind {
    /// TCP without TLS.
    Plain(TcpStream),
    /// mTLS with another proxy, or TLS with a server outside of the mesh.
    Tls(TlsStream),
    /// Carried by a connection to another proxy, together with others.
    Carried(Box<dyn CarriedIo>),
}

/// A part of a connection that others share.
trait CarriedIo: Io + fmt::Debug {}

impl<S: Io + fmt::Debug> CarriedIo for S {}

impl Channel {
    fn new(kind: ChannelKind) -> Self {
        Self { kind, refused: Rc::default(), _guard: None }
    }

    /// A connection that `io` carries together with others.
    #[must_use]
    pub fn carried(io: impl Io + fmt::Debug + 'static) -> Self {
        Self::new(ChannelKind::Carried(Box::new(io)))
    }

    /// Keeps `guard` for as long as the connection is open.
    #[must_use]
    pub fn guarded(self, guard: Rc<dyn fmt::Debug>) -> Self {
        Self { _guard: Some(guard), ..self }
    }

    /// The protocol inside the TLS connection. `None` if the server itself is at the other end of the bytes.
    #[must_use]
    pub fn alpn(&self) -> Option<Alpn> {
        match &self.kind {
            ChannelKind::Plain(_) | ChannelKind::Carried(_) => None,
            ChannelKind::Tls(tls) => Some(tls.alpn()),
        }
    }

    /// Whether the server's proxy has refused this proxy's certificate, now or later: the users of a
    /// connection that is shared only learn that it has ended.
    #[must_use]
    pub fn refused(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.refused)
    }

    /// Notes a refusal, which comes with a read.
    fn note<T>(&self, read: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &read
            && refused_by_server(error).is_some()
        {
            self.refused.set(true);
        }
        read
    }
}

impl From<TcpStream> for Channel {
    fn from(tcp: TcpStream) -> Self {
        Self::new(ChannelKind::Plain(tcp))
    }
}

impl From<TlsStream> for Channel {
    fn from(tls: TlsStream) -> Self {
        Self::new(ChannelKind::Tls(tls))
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match &mut this.kind {
            ChannelKind::Plain(tcp) => Pin::new(tcp).poll_read(cx, out),
            ChannelKind::Tls(tls) => {
                let read = Pin::new(tls).poll_read(cx, out);
                this.note(read)
            }
            ChannelKind::Carried(io) => Pin::new(io).poll_read(cx, out),
        }
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().kind {
            ChannelKind::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            ChannelKind::Tls(tls) => Pin::new(tls).poll_write(cx, bytes),
            ChannelKind::Carried(io) => Pin::new(io).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().kind {
            ChannelKind::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
            ChannelKind::Tls(tls) => Pin::new(tls).poll_write_vectored(cx, slices),
            ChannelKind::Carried(io) => Pin::new(io).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            ChannelKind::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            ChannelKind::Tls(tls) => Pin::new(tls).poll_flush(cx),
            ChannelKind::Carried(io) => Pin::new(io).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().kind {
            ChannelKind::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            ChannelKind::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
            ChannelKind::Carried(io) => Pin::new(io).poll_shutdown(cx),
        }
    }
}

impl Io for Channel {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ready = match &mut self.kind {
            ChannelKind::Plain(tcp) => Io::poll_read_ready(tcp, cx),
            ChannelKind::Tls(tls) => tls.poll_read_ready(cx),
            ChannelKind::Carried(io) => io.poll_read_ready(cx),
        };
        self.note(ready)
    }

    fn plain(&self) -> Option<&TcpStream> {
        match &self.kind {
            ChannelKind::Plain(tcp) => Some(tcp),
            ChannelKind::Tls(_) | ChannelKind::Carried(_) => None,
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match &self.kind {
            ChannelKind::Plain(tcp) => Some(tcp),
            ChannelKind::Tls(tls) => tls.socket(),
            ChannelKind::Carried(_) => None,
        }
    }

    fn reset_on_drop(&mut self) {
        match &mut self.kind {
            ChannelKind::Plain(tcp) => tcp.reset_on_drop(),
            ChannelKind::Tls(tls) => tls.reset_on_drop(),
            ChannelKind::Carried(io) => io.reset_on_drop(),
        }
    }

    fn has_left(&self) -> bool {
        match &self.kind {
            ChannelKind::Plain(tcp) => tcp.has_left(),
            ChannelKind::Tls(tls) => tls.has_left(),
            ChannelKind::Carried(io) => io.has_left(),
        }
    }

    fn cut_report(&self) -> Option<u8> {
        match &self.kind {
            ChannelKind::Plain(_) | ChannelKind::Carried(_) => None,
            ChannelKind::Tls(tls) => tls.cut_report(),
        }
    }
}
