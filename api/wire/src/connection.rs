//! One HTTP/2 connection, the transport of the generated clients.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tonic::body::Body;
use tower_service::Service;

/// The HTTP/2 receive window of a stream and of the connection, in bytes. It is large, so that the endpoints of a
/// service with thousands of pods arrive in few round trips.
const WINDOW: u32 = 1 << 20;

/// An open connection. Dropping the value closes the connection.
#[derive(Debug)]
pub struct ClientConnection {
    sender: SendRequest<Body>,
    /// Drives the connection. It ends when this value is dropped or the server closes.
    task: JoinHandle<()>,
}

impl ClientConnection {
    /// Begins HTTP/2 on a stream whose server is authenticated. `keep_alive` is how often a silent connection is
    /// probed, and how long the reply may take: a server that vanished without closing the connection is noticed within
    /// the sum of both.
    ///
    /// # Errors
    /// The server does not speak HTTP/2.
    pub async fn open(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        keep_alive: Option<(Duration, Duration)>,
    ) -> Result<Self, hyper::Error> {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        if let Some((interval, timeout)) = keep_alive {
            builder
                .timer(TokioTimer::new())
                .keep_alive_interval(interval)
                .keep_alive_timeout(timeout)
                .keep_alive_while_idle(true);
        }
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of a client broke");
            }
        });
        Ok(Self { sender, task })
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Service<http::Request<Body>> for ClientConnection {
    type Response = http::Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
