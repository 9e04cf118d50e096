//! Accepts connections, completes their handshakes apart from each other, and hands them on.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::metrics::{Held, Metrics};
use crate::peer::{Peer, PeerCertificate};

/// Most connections at once: one or two of each proxy, for twice the proxies of a large mesh.
pub const MAX_CONNECTIONS: usize = 16_384;
/// Longest handshake; an honest one takes milliseconds, so this is a client that stalls.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Handshakes done that wait for the server to take them.
const HANDED_ON: usize = 64;
/// Pause after a failed accept, so that a full descriptor table is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// One connection after its handshake.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    /// Frees the connection's place when it ends.
    _place: Place,
}

/// One of the [`MAX_CONNECTIONS`].
struct Place {
    _permit: OwnedSemaphorePermit,
    _counted: Held,
}

/// Accepts until the receiver is dropped.
pub(crate) fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    metrics: Arc<Metrics>,
) -> mpsc::Receiver<io::Result<Connection>> {
    let (sender, receiver) = mpsc::channel(HANDED_ON);
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = sender.closed() => return,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&places).try_acquire_owned() else {
                metrics.connections_refused.increment();
                continue;
            };
            let counted = Held::new(&metrics, |metrics| &metrics.connections);
            let place = Place { _permit: permit, _counted: counted };
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            let metrics = Arc::clone(&metrics);
            tokio::spawn(async move {
                match handshake(&acceptor, stream, address, place).await {
                    // Not taken: the server is ending.
                    Ok(connection) => drop(sender.send(Ok(connection)).await),
                    Err(error) => {
                        metrics.handshakes_failed.increment();
                        tracing::debug!(client = %address, %error, "handshake failed");
                    }
                }
            });
        }
    });
    receiver
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    place: Place,
) -> io::Result<Connection> {
    stream.set_nodelay(true)?;
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await??;
    let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = match leaf {
        None => None,
        Some(leaf) => Some(
            PeerCertificate::read(leaf)
                .ok_or_else(|| io::Error::other("the client's certificate is not an X509-SVID"))?,
        ),
    };
    Ok(Connection { stream, peer: Peer { address, certificate }, _place: place })
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
