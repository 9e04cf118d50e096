//! HTTP/2 servers and clients that use the `h2` crate, which shares no code with the proxy.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::ext::Protocol;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

/// How long a client waits for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// What the server does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerBehaviour {
    /// Responds 200 with a small body.
    Good,
    /// Responds 200 with a small body once it has read the request's body.
    AfterBody,
    /// Responds 200 with this many bytes, as fast as the client's window allows.
    Large(usize),
    /// Sends nothing for as long as the client waits, and does not read the request's body.
    Stall,
    /// Sends a head and half of a body, then nothing.
    Quiet,
    /// Sends this many pieces of a body, each after this wait.
    Trickle(u32, Duration),
    /// Sends back what it receives, in response to extended CONNECT.
    Echo,
    /// Responds with a gRPC status and no message.
    Grpc(u8),
    /// Refuses the stream with REFUSED_STREAM.
    Refuse,
    /// Ends the stream without an error and without a response.
    CutOff,
    /// Stops reading and writing on this connection.
    Freeze,
}

/// Chooses what to do with a request. The arguments are the numbers of its connection and of the request, both
/// from 0.
pub(crate) type Script = fn(usize, usize) -> ServerBehaviour;

/// A server. Its thread ends with the process.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: Mutex<Vec<String>>,
    connections: AtomicUsize,
    open: AtomicUsize,
}

/// A response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    /// The length of the body.
    pub(crate) bytes: usize,
    /// Why the response ended early.
    pub(crate) error: Option<String>,
}

/// The body of a request: this many pieces, each sent after a wait.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Upload {
    pub(crate) pieces: u32,
    pub(crate) every: Duration,
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

impl Server {
    pub(crate) fn start(script: Script) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("it is bound");
        let server = Self { address, state: Arc::default() };
        let state = Arc::clone(&server.state);
        std::thread::spawn(move || {
            runtime().block_on(async {
                let listener = TcpListener::from_std(listener).expect("a runtime is running");
                while let Ok((stream, _)) = listener.accept().await {
                    let number = state.connections.fetch_add(1, Ordering::Relaxed);
                    state.open.fetch_add(1, Ordering::Relaxed);
                    let state = Arc::clone(&state);
                    tokio::spawn(async move {
                        // Broken connections are checked by the test, so the error is ignored.
                        serve(stream, number, script, &state).await.unwrap_or_default();
                        state.open.fetch_sub(1, Ordering::Relaxed);
                    });
                }
            });
        });
        server
    }

    /// The `x-id` of all requests in the order of their arrival. For a request without that header, its path.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.state.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many connections the server has accepted.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Relaxed)
    }
}

async fn serve(stream: TcpStream, number: usize, script: Script, state: &State) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut builder = h2::server::Builder::new();
    let mut connection = builder.enable_connect_protocol().handshake::<_, Bytes>(stream).await?;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        let id = request.headers().get("x-id").and_then(|id| id.to_str().ok());
        let id = id.unwrap_or(request.uri().path()).to_owned();
        let place = {
            let mut seen = state.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push(id);
            seen.len() - 1
        };
        match script(number, place) {
            ServerBehaviour::Freeze => pending().await,
            does => tokio::spawn(answer(does, request.into_body(), respond)),
        };
    }
    Ok(())
}

async fn answer(
    does: ServerBehaviour,
    body: RecvStream,
    mut respond: SendResponse<Bytes>,
) -> Result<()> {
    let response = Response::new(());
    match does {
        ServerBehaviour::Good => {
            respond.send_response(response, false)?.send_data(Bytes::from_static(b"ok"), true)?;
        }
        ServerBehaviour::AfterBody => {
            receive(body).await?;
            respond.send_response(response, false)?.send_data(Bytes::from_static(b"ok"), true)?;
        }
        ServerBehaviour::Large(bytes) => {
            let send = respond.send_response(response, false)?;
            send_all(send, bytes).await?;
        }
        ServerBehaviour::Refuse => respond.send_reset(h2::Reason::REFUSED_STREAM),
        ServerBehaviour::CutOff => respond.send_reset(h2::Reason::NO_ERROR),
        ServerBehaviour::Stall | ServerBehaviour::Freeze => {
            std::future::poll_fn(|cx| respond.poll_reset(cx)).await?;
        }
        ServerBehaviour::Quiet => {
            let mut send = respond.send_response(response, false)?;
            send.send_data(Bytes::from_static(b"half-"), false)?;
            std::future::poll_fn(|cx| send.poll_reset(cx)).await?;
        }
        ServerBehaviour::Trickle(pieces, every) => {
            let send = respond.send_response(response, false)?;
            trickle(send, Upload { pieces, every }).await?;
        }
        ServerBehaviour::Echo => echo(body, respond.send_response(response, false)?).await?,
        ServerBehaviour::Grpc(status) => {
            let builder = Response::builder().header("content-type", "application/grpc");
            respond
                .send_response(builder.header("grpc-status", status.to_string()).body(())?, true)?;
        }
    }
    Ok(())
}

/// Sends this many bytes, as the flow-control windows permit.
async fn send_all(mut send: SendStream<Bytes>, mut left: usize) -> Result<()> {
    while left > 0 {
        send.reserve_capacity(left.min(16 * 1024));
        let capacity = std::future::poll_fn(|cx| send.poll_capacity(cx)).await;
        let part = capacity.context("the stream ended")??.min(left);
        left -= part;
        send.send_data(Bytes::from(vec![0; part]), left == 0)?;
    }
    Ok(())
}

async fn trickle(mut send: SendStream<Bytes>, what: Upload) -> Result<()> {
    for _ in 0..what.pieces {
        sleep(what.every).await;
        send.send_data(Bytes::from_static(b"piece"), false)?;
    }
    Ok(send.send_data(Bytes::new(), true)?)
}

async fn echo(mut body: RecvStream, mut send: SendStream<Bytes>) -> Result<()> {
    while let Some(bytes) = body.data().await {
        let bytes = bytes?;
        body.flow_control().release_capacity(bytes.len())?;
        send.send_data(bytes, false)?;
    }
    Ok(send.send_data(Bytes::new(), true)?)
}

/// Reads a body; returns its length.
async fn receive(mut body: RecvStream) -> Result<usize> {
    let mut count = 0;
    while let Some(bytes) = body.data().await {
        let bytes = bytes?;
        count += bytes.len();
        body.flow_control().release_capacity(bytes.len())?;
    }
    Ok(count)
}

/// Sends a request on its own connection; returns the response.
pub(crate) fn ask(to: SocketAddr, request: Request<()>, upload: Upload) -> Reply {
    let asked = async {
        let (mut sender, connection) = connect(to).await?;
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        sender = sender.ready().await?;
        let (response, send) = sender.send_request(request, upload.pieces == 0)?;
        if upload.pieces > 0 {
            // If the proxy resets the stream, the response shows that.
            tokio::spawn(async move { trickle(send, upload).await.unwrap_or_default() });
        }
        let response = response.await?;
        let status = response.status().as_u16();
        let reply = Reply { status, headers: response.headers().clone(), ..Reply::default() };
        Ok(match receive(response.into_body()).await {
            Ok(bytes) => Reply { bytes, ..reply },
            Err(error) => Reply { error: Some(error.to_string()), ..reply },
        })
    };
    let asked = async { timeout(LIMIT, asked).await.context("no end of a response")? };
    let failed =
        |error: anyhow::Error| Reply { error: Some(error.to_string()), ..Reply::default() };
    runtime().block_on(asked).unwrap_or_else(failed)
}

/// How long an upload may take before it counts as stuck; much longer than a busy machine needs.
const UPLOAD_LIMIT: Duration = Duration::from_secs(5);

/// Uploads this many bytes on its own connection; returns the response.
pub(crate) fn upload(to: SocketAddr, request: Request<()>, bytes: usize) -> Reply {
    let asked = async {
        let (sender, connection) = connect(to).await?;
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        let (response, send) = sender.ready().await?.send_request(request, false)?;
        send_all(send, bytes).await?;
        let response = response.await?;
        Ok(Reply { status: response.status().as_u16(), ..Reply::default() })
    };
    let asked = async { timeout(UPLOAD_LIMIT, asked).await.context("no end of an upload")? };
    let failed =
        |error: anyhow::Error| Reply { error: Some(error.to_string()), ..Reply::default() };
    runtime().block_on(asked).unwrap_or_else(failed)
}

/// Streams that a client holds open. Dropping this closes its connections.
pub(crate) struct OpenStreams {
    _end: tokio::sync::oneshot::Sender<()>,
}

/// Runs a client on its own thread until the returned value is dropped.
fn hold<T>(client: impl AsyncFnOnce() -> Result<T> + Send + 'static) -> Result<OpenStreams> {
    let (end, ended) = tokio::sync::oneshot::channel();
    let (begin, begun) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let (held, outcome) = match client().await {
                Ok(held) => (Some(held), Ok(())),
                Err(error) => (None, Err(error)),
            };
            // Both calls fail if the test has ended.
            let _ = begin.send(outcome);
            let _ = ended.await;
            drop(held);
        });
    });
    begun.recv_timeout(LIMIT).context("the client has not begun")??;
    Ok(OpenStreams { _end: end })
}

/// Sends `count` requests on one connection, grants no window for the responses, and keeps the streams open.
pub(crate) fn hold_responses(to: SocketAddr, count: usize) -> Result<OpenStreams> {
    hold(async move || {
        let stream = TcpStream::connect(to).await?;
        let mut builder = h2::client::Builder::new();
        let (mut sender, connection) =
            builder.initial_window_size(0).handshake::<_, Bytes>(stream).await?;
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        let mut held = Vec::new();
        for _ in 0..count {
            sender = sender.ready().await?;
            let request = Request::builder().uri("http://web/").body(())?;
            held.push(sender.send_request(request, true)?.0.await?);
        }
        Ok((sender, held))
    })
}

/// Starts `count` uploads, each on its own connection and larger than all windows together.
pub(crate) fn hold_uploads(to: SocketAddr, count: usize) -> Result<OpenStreams> {
    const BYTES: usize = 64 << 20;
    hold(async move || {
        let mut held = Vec::new();
        for _ in 0..count {
            let (sender, connection) = connect(to).await?;
            tokio::spawn(async move { connection.await.unwrap_or_default() });
            let request = Request::builder().method("POST").uri("http://web/").body(())?;
            let mut sender = sender.ready().await?;
            let (response, send) = sender.send_request(request, false)?;
            tokio::spawn(async move { send_all(send, BYTES).await.unwrap_or_default() });
            held.push((sender, response));
        }
        Ok(held)
    })
}

pub(crate) type Connecting =
    (h2::client::SendRequest<Bytes>, h2::client::Connection<TcpStream, Bytes>);

pub(crate) async fn connect(to: SocketAddr) -> Result<Connecting> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(h2::client::handshake(stream).await?)
}

/// Opens a tunnel with extended CONNECT (RFC 8441), and sends pieces through it until it ends or `upload` is
/// complete. Returns how many pieces came back, and why it ended early.
pub(crate) fn tunnel(to: SocketAddr, upload: Upload) -> (u32, Option<String>) {
    let mut returned = 0;
    let tunnel = async {
        let (mut sender, connection) = connect(to).await?;
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        // When the first response has arrived, so have the proxy's SETTINGS.
        let first = Request::builder().uri("http://web/first").body(())?;
        sender = sender.ready().await?;
        receive(sender.send_request(first, true)?.0.await?.into_body()).await?;
        let mut request = Request::builder().method("CONNECT").uri("http://web/tunnel").body(())?;
        request.extensions_mut().insert(Protocol::from_static("websocket"));
        sender = sender.ready().await?;
        let (response, mut send) = sender.send_request(request, false)?;
        let response = response.await?;
        anyhow::ensure!(response.status() == 200, "{response:?}");
        let mut body = response.into_body();
        for _ in 0..upload.pieces {
            sleep(upload.every).await;
            send.send_data(Bytes::from_static(b"piece"), false)?;
            let bytes = body.data().await.context("the tunnel ended")??;
            body.flow_control().release_capacity(bytes.len())?;
            returned += 1;
        }
        send.send_data(Bytes::new(), true)?;
        receive(body).await?;
        Ok(())
    };
    let ended = runtime().block_on(async { timeout(LIMIT, tunnel).await.context("no end")? });
    (returned, ended.err().map(|error: anyhow::Error| error.to_string()))
}
