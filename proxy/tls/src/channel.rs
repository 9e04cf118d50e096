//! A connection to an endpoint: TLS if the endpoint is meshed or is an external service that uses TLS, a tunnel inside
//! a shared connection if the endpoint's proxy accepts HBONE (CONNECT over HTTP/2 and mTLS), otherwise plain TCP.

use std::cell::Cell;
use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_transport::{Io, Presence};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::{Alpn, TlsStream, refused_by_server};

/// A connection in plaintext or with TLS, or a tunnel. One pool and one relay can serve all three kinds.
#[derive(Debug)]
pub struct Channel {
    kind: ChannelKind,
    /// Set when the server's proxy has refused this proxy's certificate.
    refused: Rc<Cell<bool>>,
    /// A value that is dropped together with the connection.
    _guard: Option<Rc<dyn fmt::Debug>>,
}

#[derive(Debug)]
enum ChannelKind {
    /// TCP without TLS.
    Plain(TcpStream),
    /// mTLS with another proxy, or TLS with a server outside of the mesh.
    Tls(TlsStream),
    /// A tunnel, which a connection to another proxy carries together with other tunnels.
    Carried(Box<dyn CarriedIo>),
}

/// A tunnel inside a connection that other tunnels share.
trait CarriedIo: Io + fmt::Debug {}

impl<S: Io + fmt::Debug> CarriedIo for S {}

impl Channel {
    fn new(kind: ChannelKind) -> Self {
        Self { kind, refused: Rc::default(), _guard: None }
    }

    /// A tunnel `io`, which is inside a connection with other tunnels.
    #[must_use]
    pub fn carried(io: impl Io + fmt::Debug + 'static) -> Self {
        Self::new(ChannelKind::Carried(Box::new(io)))
    }

    /// Keeps `guard` for as long as the connection is open.
    #[must_use]
    pub fn guarded(self, guard: Rc<dyn fmt::Debug>) -> Self {
        Self { _guard: Some(guard), ..self }
    }

    /// The protocol inside the TLS connection. `None` for plain TCP and for a tunnel, whose bytes go to the server
    /// itself.
    #[must_use]
    pub fn alpn(&self) -> Option<Alpn> {
        match &self.kind {
            ChannelKind::Plain(_) | ChannelKind::Carried(_) => None,
            ChannelKind::Tls(tls) => Some(tls.alpn()),
        }
    }

    /// A flag that is set when the server's proxy refuses this proxy's certificate. Without it, the users of a shared
    /// connection only learn that the connection has ended.
    #[must_use]
    pub fn refused(&self) -> Rc<Cell<bool>> {
        Rc::clone(&self.refused)
    }

    fn io(&self) -> &dyn Io {
        match &self.kind {
            ChannelKind::Plain(tcp) => tcp,
            ChannelKind::Tls(tls) => tls,
            ChannelKind::Carried(io) => &**io,
        }
    }

    fn io_mut(&mut self) -> &mut dyn Io {
        match &mut self.kind {
            ChannelKind::Plain(tcp) => tcp,
            ChannelKind::Tls(tls) => tls,
            ChannelKind::Carried(io) => &mut **io,
        }
    }

    /// Sets `refused` if the result of a read shows that the server's proxy has refused this proxy's certificate.
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
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(self.io_mut()).poll_read(cx, out);
        self.note(read)
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.io_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(self.io_mut()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io_mut()).poll_shutdown(cx)
    }
}

impl Io for Channel {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ready = self.io_mut().poll_read_ready(cx);
        self.note(ready)
    }

    fn plain(&self) -> Option<&TcpStream> {
        self.io().plain()
    }

    fn socket(&self) -> Option<&TcpStream> {
        self.io().socket()
    }

    fn reset_on_drop(&mut self) {
        self.io_mut().reset_on_drop();
    }

    fn presence(&self) -> Presence {
        self.io().presence()
    }

    fn cut_report(&self) -> Option<u8> {
        self.io().cut_report()
    }
}
