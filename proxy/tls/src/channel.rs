//! A connection to an endpoint: TLS if the endpoint is meshed or an external service that uses TLS,
//! else plain TCP.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use leno_http::Io;
use leno_transport::Stream;
use leno_types::Identity;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::{Alpn, MeshStream};

/// A connection of either kind, so that one pool and one relay serve both.
#[derive(Debug)]
pub struct Channel {
    way: Way,
    /// Dropped together with the connection.
    _guard: Option<Rc<dyn fmt::Debug>>,
}

#[derive(Debug)]
enum Way {
    /// TCP without TLS.
    Plain(TcpStream),
    /// mTLS with another proxy, or TLS with a server outside of the mesh.
    Mesh(MeshStream),
}

impl Channel {
    /// Keeps `guard` for as long as the connection is open.
    #[must_use]
    pub fn guarded(self, guard: Rc<dyn fmt::Debug>) -> Self {
        Self { _guard: Some(guard), ..self }
    }

    /// The TLS connection. `None` if this is plain TCP.
    pub fn mesh_mut(&mut self) -> Option<&mut MeshStream> {
        match &mut self.way {
            Way::Plain(_) => None,
            Way::Mesh(mesh) => Some(mesh),
        }
    }
}

impl Channel {
    /// The identity that the server has proven. `None` for plain TCP, and for servers outside of
    /// the mesh.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        match &self.way {
            Way::Plain(_) => None,
            Way::Mesh(mesh) => mesh.identity(),
        }
    }
}

impl Channel {
    /// The protocol inside the TLS connection. `None` for plain TCP.
    #[must_use]
    pub fn alpn(&self) -> Option<Alpn> {
        match &self.way {
            Way::Plain(_) => None,
            Way::Mesh(mesh) => Some(mesh.alpn()),
        }
    }
}

impl From<TcpStream> for Channel {
    fn from(tcp: TcpStream) -> Self {
        Self { way: Way::Plain(tcp), _guard: None }
    }
}

impl From<MeshStream> for Channel {
    fn from(mesh: MeshStream) -> Self {
        Self { way: Way::Mesh(mesh), _guard: None }
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.get_mut().way {
            Way::Plain(tcp) => Pin::new(tcp).poll_read(cx, out),
            Way::Mesh(mesh) => Pin::new(mesh).poll_read(cx, out),
        }
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().way {
            Way::Plain(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Way::Mesh(mesh) => Pin::new(mesh).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().way {
            Way::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, slices),
            Way::Mesh(mesh) => Pin::new(mesh).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().way {
            Way::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Way::Mesh(mesh) => Pin::new(mesh).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().way {
            Way::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Way::Mesh(mesh) => Pin::new(mesh).poll_shutdown(cx),
        }
    }
}

impl Stream for Channel {
    fn plain(&self) -> Option<&TcpStream> {
        match &self.way {
            Way::Plain(tcp) => Some(tcp),
            Way::Mesh(_) => None,
        }
    }

    fn socket(&self) -> Option<&TcpStream> {
        match &self.way {
            Way::Plain(tcp) => Some(tcp),
            Way::Mesh(mesh) => mesh.socket(),
        }
    }

    fn abort(&mut self) {
        match &mut self.way {
            Way::Plain(tcp) => tcp.abort(),
            Way::Mesh(mesh) => mesh.abort(),
        }
    }
}

impl Io for Channel {
    fn poll_read_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.way {
            Way::Plain(tcp) => Io::poll_read_ready(tcp, cx),
            Way::Mesh(mesh) => Io::poll_read_ready(mesh, cx),
        }
    }

    fn reset_on_drop(&mut self) {
        self.abort();
    }

    fn is_unanswered(&self) -> bool {
        self.socket().is_some_and(leno_transport::is_unanswered)
    }
}
