//! Accepts connections, completes their handshakes concurrently, and passes them to the server.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::metrics::{GaugeGuard, Metrics};
use crate::peer::{ConnectionPeer, PeerCertificate};
use crate::shares::{ConnectionShare, ConnectionShares, UNPROVEN_TIME};

/// Longest handshake. A normal handshake takes milliseconds, so a client that takes longer is stalling on purpose.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Most connections that have completed their handshake and wait for the server.
const HANDED_ON: usize = 64;

/// A connection after its handshake. It fails when its [`ConnectionShare`], its place among the connections, is given
/// to another client, or at `end`.
pub(crate) struct IncomingConnection<S = TlsStream<TcpStream>> {
    stream: S,
    peer: ConnectionPeer,
    share: ConnectionShare,
    /// When the connection must end if its client has shown no certificate; otherwise `None`.
    end: Option<Pin<Box<Sleep>>>,
    counted: GaugeGuard,
}

/// Accepts connections until the receiver is dropped.
pub(crate) fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    metrics: Arc<Metrics>,
) -> mpsc::Receiver<io::Result<IncomingConnection>> {
    let (sender, receiver) = mpsc::channel(HANDED_ON);
    tokio::spawn(async move {
        let shares = ConnectionShares::default();
        loop {
            let (stream, address) = tokio::select! {
                accepted = leno_program::accept("connection", || listener.accept()) => accepted,
                () = sender.closed() => return,
            };
            let Some(share) = shares.unproven(address.ip()) else {
                metrics.connections_refused.increment();
                continue;
            };
            let counted = GaugeGuard::new(&metrics, |metrics| &metrics.connections);
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            let (shares, metrics) = (shares.clone(), Arc::clone(&metrics));
            tokio::spawn(async move {
                match handshake(&acceptor, stream, address, share).await {
                    Ok((stream, peer, share)) => {
                        let Some(share) = promote(&shares, share, &peer) else {
                            metrics.connections_refused.increment();
                            return;
                        };
                        let connection = IncomingConnection::new(stream, peer, share, counted);
                        // Sending fails if the server is ending.
                        drop(sender.send(Ok(connection)).await);
                    }
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

/// Exchanges the share for one of the certificate's identity, if the client has shown a certificate. `None` if the
/// identity or the address has reached its bound.
fn promote(
    shares: &ConnectionShares,
    share: ConnectionShare,
    peer: &ConnectionPeer,
) -> Option<ConnectionShare> {
    match &peer.certificate {
        Some(certificate) => shares.proven(share, certificate.identity.clone()),
        None => Some(share),
    }
}

async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    mut share: ConnectionShare,
) -> io::Result<(TlsStream<TcpStream>, ConnectionPeer, ConnectionShare)> {
    stream.set_nodelay(true)?;
    let accepted = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let stream = tokio::select! {
        accepted = accepted => accepted??,
        () = poll_fn(|context| share.poll_lost(context)) => return Err(lost()),
    };
    let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let certificate = match leaf {
        None => None,
        Some(leaf) => Some(
            PeerCertificate::read(leaf)
                .ok_or_else(|| io::Error::other("the client's certificate is not an X509-SVID"))?,
        ),
    };
    Ok((stream, ConnectionPeer { address, certificate }, share))
}

fn lost() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "its place was given to another client")
}

impl<S> IncomingConnection<S> {
    fn new(stream: S, peer: ConnectionPeer, share: ConnectionShare, counted: GaugeGuard) -> Self {
        let unproven = peer.certificate.is_none();
        let end = unproven.then(|| Box::pin(tokio::time::sleep(UNPROVEN_TIME)));
        Self { stream, peer, share, end, counted }
    }

    fn count(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = &written {
            self.counted.metrics().sent_bytes.add(*bytes as u64);
        }
        written
    }

    /// Ready when the connection must end. It is polled with each read, because HTTP/2 always waits for the next
    /// one.
    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        if self.share.poll_lost(context).is_ready() {
            return Poll::Ready(lost());
        }
        let Some(end) = &mut self.end else { return Poll::Pending };
        end.as_mut().poll(context).map(|()| {
            let reason = format!("no certificate was shown within {UNPROVEN_TIME:?}");
            io::Error::new(io::ErrorKind::TimedOut, reason)
        })
    }
}

impl Connected for IncomingConnection {
    type ConnectInfo = ConnectionPeer;

    fn connect_info(&self) -> ConnectionPeer {
        self.peer.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for IncomingConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(error) = self.poll_end(context) {
            return Poll::Ready(Err(error));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for IncomingConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.count(written)
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::Instant;

    use super::*;

    fn connection(
        certificate: Option<PeerCertificate>,
    ) -> (IncomingConnection<DuplexStream>, DuplexStream) {
        let (client, stream) = duplex(64);
        let peer = ConnectionPeer { address: ([10, 0, 0, 1], 1).into(), certificate };
        let shares = ConnectionShares::default();
        let share = shares.unproven(peer.address.ip()).unwrap();
        let share = promote(&shares, share, &peer).unwrap();
        let counted = GaugeGuard::new(&Arc::default(), |metrics| &metrics.connections);
        (IncomingConnection::new(stream, peer, share, counted), client)
    }

    /// Regression: a client that never shows a certificate must not keep its slot for long, even if it keeps
    /// sending.
    #[tokio::test(start_paused = true)]
    async fn a_client_without_a_certificate_holds_its_place_for_a_time_only() {
        let begin = Instant::now();
        let (mut silent, _client) = connection(None);
        let ended = silent.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begin.elapsed(), UNPROVEN_TIME);
        let (mut busy, mut client) = connection(None);
        tokio::spawn(async move {
            while client.write_all(b"ping").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(4)).await;
            }
        });
        let mut read = 0;
        while busy.read(&mut [0; 4]).await.is_ok() {
            read += 1;
        }
        assert_eq!(read, 8, "sending does not extend its time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_with_a_certificate_stays() {
        let identity = "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap();
        let not_after = std::time::SystemTime::UNIX_EPOCH;
        let (mut proven, client) = connection(Some(PeerCertificate { identity, not_after }));
        let read = tokio::time::timeout(UNPROVEN_TIME * 100, proven.read(&mut [0; 8])).await;
        assert!(read.is_err(), "it waits");
        drop(client);
        assert_eq!(proven.read(&mut [0; 8]).await.unwrap(), 0);
    }
}
