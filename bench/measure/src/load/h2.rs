//! HTTP/2 slots: requests, unary gRPC calls, and messages on streams that stay open.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{Method, Request, Response};
use tokio::sync::Mutex;

use super::dialler::{Dialler, RequestFailure, RequestOutcome};
use super::plan::{ClusterTarget, Protocol};

/// The flow-control window of streams and connections, in bytes. It is large enough that it does not delay a response.
const WINDOW: u32 = 4 * 1024 * 1024;
/// A slot, which carries one stream at a time on a connection that several slots share.
pub(super) struct Slot {
    shared: Rc<SharedConnection>,
    /// The stream that stays open, for [`Protocol::GrpcStream`].
    stays: Option<Streaming>,
    /// Only the first slot of a connection reports how often the connection was opened.
    first: bool,
}

/// A connection that several slots share; it may be closed at the moment.
struct SharedConnection {
    dialler: Mutex<Dialler>,
    target: Rc<ClusterTarget>,
    sender: RefCell<Option<SendRequest<Bytes>>>,
    opened: Cell<u64>,
}

/// Both directions of an open stream.
struct Streaming {
    send: SendStream<Bytes>,
    receive: Receive,
    /// Received bytes that are not a whole message yet.
    rest: BytesMut,
}

/// The receiving half of a stream. The client sends its first message before it has the head of the
/// response, as gRPC clients do: some servers hold the head back until a message arrives.
enum Receive {
    Head(ResponseFuture),
    Body(RecvStream),
}

impl Receive {
    async fn body(&mut self) -> Result<&mut RecvStream, RequestFailure> {
        if let Self::Head(head) = self {
            let response = head.await.map_err(|_| RequestFailure::RESET)?;
            if let Some(failure) = RequestFailure::of_status(response.status().as_u16()) {
                return Err(failure);
            }
            *self = Self::Body(response.into_body());
        }
        match self {
            Self::Body(body) => Ok(body),
            Self::Head(_) => Err(RequestFailure::MALFORMED),
        }
    }
}

impl Slot {
    /// All slots of one connection.
    pub(super) fn all(dialler: Dialler, streams: usize) -> impl Iterator<Item = Self> {
        let shared = Rc::new(SharedConnection {
            target: Rc::clone(&dialler.target),
            dialler: Mutex::new(dialler),
            sender: RefCell::default(),
            opened: Cell::new(0),
        });
        (0..streams).map(move |nth| Slot {
            shared: Rc::clone(&shared),
            stays: None,
            first: nth == 0,
        })
    }

    pub(super) fn opened(&self) -> u64 {
        if self.first { self.shared.opened.get() } else { 0 }
    }

    /// Drops the slot's open stream. Nothing is to be done for a unary call: dropping its future has reset its stream.
    pub(super) fn reset(&mut self) {
        self.stays = None;
    }

    pub(super) async fn open(&mut self) {
        if !self.shared.target.plan.new_connection {
            // The first request reports the failure.
            let _ = self.shared.sender().await;
        }
    }

    pub(super) async fn request(&mut self) -> RequestOutcome {
        let mut body_bytes = 0;
        let limit = self.shared.target.plan.timeout;
        let exchange = async {
            match self.shared.target.plan.protocol {
                Protocol::GrpcStream => self.talk(&mut body_bytes).await,
                _ => self.shared.call(&mut body_bytes).await,
            }
        };
        let result =
            tokio::time::timeout(limit, exchange).await.unwrap_or(Err(RequestFailure::TIMEOUT));
        if result.is_err() {
            self.stays = None;
        }
        // After an error on one stream, other slots may still use the connection. A dead connection is replaced later,
        // when opening a stream on it fails.
        if self.shared.target.plan.new_connection {
            self.shared.sender.replace(None);
        }
        RequestOutcome { result, body_bytes }
    }

    /// Sends one message on the slot's open stream and reads its echo.
    async fn talk(&mut self, body_bytes: &mut u64) -> Result<(), RequestFailure> {
        if self.stays.is_none() {
            self.stays = Some(self.shared.stream().await?);
        }
        let stream = self.stays.as_mut().ok_or(RequestFailure::CONNECT)?;
        stream
            .send
            .send_data(self.shared.target.request().clone(), false)
            .map_err(|_| RequestFailure::SEND)?;
        let wanted = self.shared.target.request().len();
        let body = stream.receive.body().await?;
        while stream.rest.len() < wanted {
            match body.data().await {
                Some(Ok(bytes)) => {
                    stream.rest.extend_from_slice(&bytes);
                    // This only fails if the connection is gone, which the next read reports.
                    let _ = body.flow_control().release_capacity(bytes.len());
                }
                Some(Err(_)) => return Err(RequestFailure::RESET),
                None => return Err(RequestFailure::CLOSED),
            }
        }
        let _message = stream.rest.split_to(wanted);
        *body_bytes = wanted as u64;
        Ok(())
    }
}

impl SharedConnection {
    /// A handle that sends requests on the connection; opens the connection if it is closed.
    async fn sender(&self) -> Result<SendRequest<Bytes>, RequestFailure> {
        // The lock is held while the connection is opened, so that slots do not open several.
        let mut dialler = self.dialler.lock().await;
        let open = self.sender.borrow().clone();
        if let Some(sender) = open {
            match sender.ready().await {
                Ok(sender) => return Ok(sender),
                Err(_) => drop(self.sender.replace(None)),
            }
        }
        let stream = dialler.dial().await?;
        self.opened.set(dialler.opened);
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .handshake(stream)
            .await
            .map_err(|_| RequestFailure::CONNECT)?;
        // The task ends with the connection; every stream reports the connection's error.
        tokio::task::spawn_local(async move { drop(connection.await) });
        let sender = sender.ready().await.map_err(|_| RequestFailure::CONNECT)?;
        self.sender.replace(Some(sender.clone()));
        Ok(sender)
    }

    fn head(&self) -> Result<Request<()>, RequestFailure> {
        let target = &self.target;
        let grpc = target.plan.protocol != Protocol::Http2;
        let method = if grpc { "POST" } else { target.plan.method.as_str() };
        let method =
            Method::from_bytes(method.as_bytes()).map_err(|_| RequestFailure::MALFORMED)?;
        let mut head = Request::builder().method(method).uri(&target.plan.url);
        if grpc {
            head = head.header("content-type", "application/grpc").header("te", "trailers");
        }
        for (name, value) in &target.plan.headers {
            head = head.header(name, value);
        }
        head.body(()).map_err(|_| RequestFailure::MALFORMED)
    }

    /// Sends a request and reads the whole response.
    async fn call(&self, body_bytes: &mut u64) -> Result<(), RequestFailure> {
        let mut sender = self.sender().await?;
        let body = self.target.request().clone();
        let (response, mut send) =
            sender.send_request(self.head()?, body.is_empty()).map_err(|_| RequestFailure::SEND)?;
        if !body.is_empty() {
            send.send_data(body, true).map_err(|_| RequestFailure::SEND)?;
        }
        let mut response = response.await.map_err(|_| RequestFailure::RESET)?;
        while let Some(bytes) = response.body_mut().data().await {
            let bytes = bytes.map_err(|_| RequestFailure::RESET)?;
            *body_bytes += bytes.len() as u64;
            // This only fails if the connection is gone, which the next read reports.
            let _ = response.body_mut().flow_control().release_capacity(bytes.len());
        }
        let trailers = response.body_mut().trailers().await.map_err(|_| RequestFailure::RESET)?;
        if let Some(failure) = RequestFailure::of_status(response.status().as_u16()) {
            return Err(failure);
        }
        if self.target.plan.protocol == Protocol::Grpc && !succeeded(&response, trailers.as_ref()) {
            return Err(RequestFailure::GRPC_STATUS);
        }
        Ok(())
    }

    /// Opens a stream, and ends neither of its directions.
    async fn stream(&self) -> Result<Streaming, RequestFailure> {
        let mut sender = self.sender().await?;
        let (response, send) =
            sender.send_request(self.head()?, false).map_err(|_| RequestFailure::SEND)?;
        Ok(Streaming { send, receive: Receive::Head(response), rest: BytesMut::new() })
    }
}

/// Whether `grpc-status` is 0: in the trailers, or in the head of a response without a body.
fn succeeded(response: &Response<RecvStream>, trailers: Option<&http::HeaderMap>) -> bool {
    let status =
        |headers: &http::HeaderMap| headers.get("grpc-status").map(|v| v.as_bytes() == b"0");
    trailers.and_then(status).or_else(|| status(response.headers())).unwrap_or(false)
}
