//! Requests that the proxy itself sends to services of the mesh: gRPC calls, which share a connection, and HTTP
//! requests.

use std::cell::RefCell;
use std::fmt;
use std::future::pending;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use data_encoding::BASE64_NOPAD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HeaderMap, TE};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use leno_transport::spawn_contained;

use crate::external::MeshPort;

/// The longest body of an answer, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// The length of the bytes before a gRPC message: one for compression, four for the message's length.
const FRAME: usize = 5;

/// The gRPC status UNKNOWN. It stands for a status that cannot be parsed.
const UNKNOWN: u32 = 2;

/// The type of the detail in a status that says when to retry.
const RETRY_INFO: &[u8] = b"/google.rpc.RetryInfo";

/// Why a call has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The mesh could not reach the service, or the service itself failed.
    #[error("it cannot be reached, or has failed")]
    Unavailable,
    /// The service answered that the call failed.
    #[error("it answers with the status {code} of gRPC")]
    Status {
        /// The gRPC status; 2 (UNKNOWN) if it cannot be parsed.
        code: u32,
        /// Whether the status has a detail that says when to retry (`google.rpc.RetryInfo`).
        is_to_be_retried: bool,
    },
    /// The answer is too long, or violates the protocol.
    #[error("its response cannot be parsed")]
    Answer,
    /// The mesh refused the request: the service's own policies deny this workload.
    #[error("the mesh refuses the request")]
    Refused,
    /// The protocol cannot express the request.
    #[error("the request cannot be sent")]
    Request,
}

/// A gRPC call with one message and one answer.
#[derive(Clone, Debug)]
pub struct Call {
    /// The host of the request.
    pub authority: &'static str,
    /// The path: service and method.
    pub path: &'static str,
    /// One more header of the request.
    pub header: Option<(&'static str, &'static str)>,
    /// The message.
    pub message: Bytes,
    /// The value of `grpc-timeout`: the server may end the call after this time.
    pub timeout: Duration,
}

/// The connection to a service, which gRPC calls share.
#[derive(Default)]
pub struct GrpcConnection(RefCell<Option<http2::SendRequest<Full<Bytes>>>>);

impl fmt::Debug for GrpcConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GrpcConnection").finish_non_exhaustive()
    }
}

/// Runs hyper's tasks of a connection on this worker.
#[derive(Clone, Copy)]
struct OfWorker;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for OfWorker {
    fn execute(&self, task: F) {
        spawn_contained(task);
    }
}

impl GrpcConnection {
    /// Makes a call. Returns the message of the answer.
    ///
    /// # Errors
    /// There is no answer, or it reports a failure.
    pub async fn call(&self, service: &dyn MeshPort, call: Call) -> Result<Bytes, CallError> {
        let Call { authority, path, header, message, timeout } = call;
        let mut framed = BytesMut::with_capacity(FRAME.saturating_add(message.len()));
        framed.put_u8(0);
        framed.put_u32(message.len().try_into().map_err(|_| CallError::Request)?);
        framed.put(message);
        let mut request = Request::post(format!("http://{authority}{path}"))
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header("grpc-timeout", format!("{}m", timeout.as_millis()));
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(framed.freeze())).map_err(|_| CallError::Request)?;
        let mut sender = self.sender(service).await?;
        let response = sender.send_request(request).await.map_err(unavailable)?;
        of_mesh(&response, |headers| grpc_status(headers) == Some(b"7"))?;
        if response.status() != 200 {
            return Err(CallError::Unavailable);
        }
        succeeded(response.headers())?;
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| {
            tracing::debug!(%error, "the response to a call of the proxy itself cannot be parsed");
            CallError::Answer
        })?;
        match body.trailers() {
            Some(trailers) if grpc_status(trailers).is_some() => succeeded(trailers)?,
            _ => return Err(CallError::Answer),
        }
        let bytes = body.to_bytes();
        match bytes.split_at_checked(FRAME) {
            Some(([0, length @ ..], message))
                if length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
                    == message.len() =>
            {
                Ok(bytes.slice(FRAME..))
            }
            _ => Err(CallError::Answer),
        }
    }

    async fn sender(
        &self,
        service: &dyn MeshPort,
    ) -> Result<http2::SendRequest<Full<Bytes>>, CallError> {
        let known = self.0.borrow().clone();
        if let Some(sender) = known.filter(|sender| !sender.is_closed()) {
            return Ok(sender);
        }
        let (pipe, serving) = service.connect(true);
        spawn_contained(serving);
        let made = http2::Builder::new(OfWorker).handshake(TokioIo::new(pipe)).await;
        let (sender, connection) = made.map_err(unavailable)?;
        // This task ends when the last sender of the connection is dropped. Then the pipe is closed, and the task
        // that serves its other end finishes, too.
        spawn_contained(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection of the proxy's own ended");
            }
        });
        self.0.replace(Some(sender.clone()));
        Ok(sender)
    }
}

fn grpc_status(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get("grpc-status").map(|status| status.as_bytes())
}

/// Fails if the headers or trailers report that the call failed.
fn succeeded(headers: &HeaderMap) -> Result<(), CallError> {
    let number = |status: &[u8]| str::from_utf8(status).ok()?.parse().ok();
    let Some(code) = grpc_status(headers).map(|status| number(status).unwrap_or(UNKNOWN)) else {
        return Ok(());
    };
    if code == 0 {
        return Ok(());
    }
    let details = headers.get("grpc-status-details-bin").map(|details| details.as_bytes());
    let text = details.and_then(|details| {
        let unpadded = details.strip_suffix(b"==").or_else(|| details.strip_suffix(b"="));
        BASE64_NOPAD.decode(unpadded.unwrap_or(details)).ok()
    });
    let is_to_be_retried =
        text.is_some_and(|text| text.windows(RETRY_INFO.len()).any(|part| part == RETRY_INFO));
    Err(CallError::Status { code, is_to_be_retried })
}

/// Sends an HTTP request. `reads` returns whether to read the body of a response with this status.
///
/// # Errors
/// There is no answer, or a proxy answered instead of the service.
pub async fn over_http(
    service: &dyn MeshPort,
    request: Request<Full<Bytes>>,
    reads: impl Fn(StatusCode) -> bool,
) -> Result<Response<Bytes>, CallError> {
    let (pipe, serving) = service.connect(false);
    let made = http1::Builder::new().handshake(TokioIo::new(pipe)).await;
    let (mut sender, connection) = made.map_err(unavailable)?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(unavailable)?;
        of_mesh(&response, |_| response.status().is_client_error())?;
        let (head, body) = response.into_parts();
        let body = match reads(head.status) {
            true => {
                let body = Limited::new(body, MAX_ANSWER).collect().await;
                body.map_err(|_| CallError::Answer)?.to_bytes()
            }
            false => Bytes::new(),
        };
        Ok(Response::from_parts(head, body))
    };
    // The connection and the future that serves it end when the exchange ends. If they end earlier, the exchange
    // itself returns an error.
    let driven = async {
        let (ended, ()) = tokio::join!(connection, serving);
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection of the proxy's own ended");
        }
        pending::<()>().await;
    };
    tokio::select! {
        biased;
        answered = exchange => answered,
        () = driven => Err(CallError::Unavailable),
    }
}

/// Fails if a proxy answered instead of the service, which `leno-error` says.
fn of_mesh(
    response: &Response<Incoming>,
    is_refusal: impl Fn(&HeaderMap) -> bool,
) -> Result<(), CallError> {
    let Some(cause) = response.headers().get("leno-error") else { return Ok(()) };
    tracing::debug!(?cause, "the proxy itself cannot reach a service");
    match is_refusal(response.headers()) {
        true => Err(CallError::Refused),
        false => Err(CallError::Unavailable),
    }
}

fn unavailable(error: hyper::Error) -> CallError {
    tracing::debug!(%error, "the proxy itself cannot reach a service");
    CallError::Unavailable
}
