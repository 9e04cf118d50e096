//! Offers the HTTP interface over gRPC, with its JSON as typed messages (`proto/leno/dashboard/v1/dashboard.proto`).
//!
//! ```text
//!  HTTP/2 ─► call ─► GET of the interface, with the caller's headers ─► JSON ─► message ─► HTTP/2
//!              └─ Watch: every 5 s      └─ the same code as for a browser: token, rights, limits
//! ```
//! Each call is translated into the request that a browser would send, so rights and figures are the same. The
//! fields of the messages have the same names as in the JSON, so `serde` can read the JSON into them
//! (`grpc/tests.rs` compares both).

use std::future::poll_fn;
use std::hash::Hash;
use std::task::Poll;
use std::time::Duration;

use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use leno_program::AdminResponse;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::front::PAGE_HEADER;
use crate::hub::TICK;

mod connection;
mod methods;
mod reflection;
mod status;

pub use connection::{ConnectionSlotCounts, ConnectionSlots, serve};
use connection::{GrpcConnectionState, unless_reset};
pub(crate) use methods::number_of;
use methods::{Method as Rpc, MethodForm};
use status::{Code, Status};

/// The messages.
#[expect(missing_docs, reason = "generated; dashboard/api/proto has the comments")]
pub mod proto {
    include!("generated/leno.dashboard.v1.rs");
}

/// The number of bytes before a message: the flag for compression, and the length.
const FRAME: usize = 5;
/// Longest message of a caller, in bytes. Such messages contain only names and times.
const MAX_REQUEST: usize = 64 * 1024;
/// Longest wait for the preface of a connection, and for the message of a call.
const REQUEST_WAIT: Duration = Duration::from_secs(3);
/// How long to wait for a caller that does not read. Then its connection ends, so that others can have its place.
const READ_WAIT: Duration = Duration::from_secs(30);
/// The same limit for a caller of `Tap`. By then its tap has expired, because the tap is not polled while the
/// caller does not read.
const TAP_READ_WAIT: Duration = leno_telemetry::tap::LAPSE;
/// Longest duration of a reflection call, for which no token is required.
const REFLECTION: Duration = Duration::from_secs(60);
/// The time between two polls of a tap. A tap expires if five of them are missing.
const POLL: Duration = Duration::from_secs(1);
/// The first bytes of HTTP/2 (RFC 9113 section 3.4); no method of HTTP/1 begins like this.
const PREFACE: &[u8] = b"PRI ";

/// Whether a client speaks HTTP/2. The bytes are only peeked at and stay unread.
pub async fn is_http2(stream: &TcpStream) -> bool {
    let peeked = async {
        let mut first = [0; PREFACE.len()];
        loop {
            let count = stream.peek(&mut first).await.unwrap_or_default();
            let (got, wanted) = (&first[..count], &PREFACE[..count]);
            if got != wanted || count == 0 || count == PREFACE.len() {
                return count == PREFACE.len() && got == wanted;
            }
            // The rest arrives in another packet. The kernel does not wake a second `peek` for that packet, so
            // this polls.
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(REQUEST_WAIT, peeked).await.unwrap_or_default()
}

/// A caller: its headers, and the connection on which it is answered.
struct GrpcCaller<'a, 'p, A, K: Clone + Eq + Hash> {
    headers: HeaderMap,
    shared: &'a GrpcConnectionState<'p, A, K>,
}

async fn call<A, F, K>(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    shared: &GrpcConnectionState<'_, A, K>,
) where
    A: Fn(Request<()>) -> F,
    F: Future<Output = AdminResponse>,
    K: Clone + Eq + Hash,
{
    let (head, body) = request.into_parts();
    let is_grpc = head
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|of| of.as_bytes().starts_with(b"application/grpc"));
    let authority = head.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    let host = authority.or_else(|| head.headers.get(HOST).cloned());
    let token = head.headers.get(AUTHORIZATION).cloned();
    // The page in a browser cannot send the content type of gRPC without a preflight request. A tap over gRPC
    // therefore does not need the page's header.
    let page = match is_grpc {
        true => Some(HeaderValue::from_static("1")),
        false => head.headers.get(PAGE_HEADER).cloned(),
    };
    let headers = [(HOST, host), (AUTHORIZATION, token), (PAGE_HEADER, page)];
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let caller = GrpcCaller { headers, shared };
    if !is_grpc {
        let path = head.uri.path_and_query().map_or("/", |whole| whole.as_str());
        return caller.plain(&head.method, path, &mut respond).await;
    }
    let mut messages = Messages { body, buffer: Vec::new() };
    let path = head.uri.path();
    let done = match path.strip_prefix(methods::SERVICE).and_then(Rpc::named) {
        Some(rpc) => caller.typed(rpc, &mut messages, &mut respond).await,
        None if reflection::PATHS.contains(&path) => reflect(&mut messages, &mut respond).await,
        None => Err(Status::new(Code::Unimplemented, format!("there is no method {path}"))),
    };
    if let Err(status) = done {
        status.refuse(&mut respond);
    }
}

impl<A, F, K> GrpcCaller<'_, '_, A, K>
where
    A: Fn(Request<()>) -> F,
    F: Future<Output = AdminResponse>,
    K: Clone + Eq + Hash,
{
    /// Requests a path of the interface; returns the JSON.
    async fn get(&self, target: &str) -> Result<Bytes, Status> {
        let answer = self.ask(&Method::GET, target).await?;
        let status = answer.status();
        let body =
            answer.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        if status == StatusCode::OK { Ok(body) } else { Err(Status::of_answer(status, &body)) }
    }

    async fn ask(&self, method: &Method, target: &str) -> Result<AdminResponse, Status> {
        let mut request = Request::builder()
            .method(method)
            .uri(target)
            .body(())
            .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
        request.headers_mut().clone_from(&self.headers);
        Ok(self.shared.ask(request).await)
    }

    /// Answers a request that is not gRPC in the same way as over HTTP/1.
    async fn plain(&self, method: &Method, target: &str, respond: &mut SendResponse<Bytes>) {
        let asked = self.ask(method, target);
        let Some(answer) = unless_reset(|cx| respond.poll_reset(cx), asked).await else { return };
        let Ok(answer) = answer else { return respond.send_reset(Reason::PROTOCOL_ERROR) };
        let (head, body) = answer.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let is_head = method == Method::HEAD;
        if let Ok(mut stream) = respond.send_response(Response::from_parts(head, ()), is_head)
            && !is_head
        {
            // An error means that the caller is gone.
            let _left = write(&mut stream, body, true, READ_WAIT).await;
        }
    }

    async fn typed(
        &self,
        rpc: &'static Rpc,
        messages: &mut Messages,
        respond: &mut SendResponse<Bytes>,
    ) -> Result<(), Status> {
        let late = |_| {
            Status::new(Code::DeadlineExceeded, "the message of the call did not arrive".to_owned())
        };
        let message = timeout(REQUEST_WAIT, messages.next()).await.map_err(late)??;
        let query = (rpc.query)(message.as_deref().unwrap_or_default())?;
        let (target, every) = match rpc.form {
            MethodForm::Once => (rpc.target(&query), None),
            MethodForm::Watch => (rpc.target(&query), Some(TICK)),
            MethodForm::Tap => {
                (rpc.target(&format!("id={}&{query}", methods::tap_name())), Some(POLL))
            }
        };
        let _watch = match rpc.form {
            MethodForm::Watch => Some(self.shared.places.watch()?),
            MethodForm::Once | MethodForm::Tap => None,
        };
        let answered = self.answers(rpc, (&target, every), respond).await;
        // A rejected call has started no tap.
        if rpc.form == MethodForm::Tap && answered.is_ok() {
            let _closed = self.get(&format!("{target}&close=true")).await;
        }
        answered
    }

    /// Sends one answer, or answers repeatedly until the caller ends the call.
    async fn answers(
        &self,
        rpc: &'static Rpc,
        (target, every): (&str, Option<Duration>),
        respond: &mut SendResponse<Bytes>,
    ) -> Result<(), Status> {
        let first = unless_reset(|cx| respond.poll_reset(cx), self.message(rpc, target)).await;
        let Some(first) = first else { return Ok(()) };
        // A rejected call gets no further answer.
        let mut framed = first?;
        let mut head = Response::new(());
        head.headers_mut().insert(CONTENT_TYPE, status::GRPC);
        let Ok(mut stream) = respond.send_response(head, false) else { return Ok(()) };
        let wait = if rpc.form == MethodForm::Tap { TAP_READ_WAIT } else { READ_WAIT };
        let status = loop {
            if write(&mut stream, framed, false, wait).await.is_err() {
                return Ok(());
            }
            let Some(every) = every else { break Status::ok() };
            let next = async {
                sleep(every).await;
                if self.shared.is_ending() {
                    let why = "the connection is ending: call again";
                    return Err(Status::new(Code::Unavailable, why.to_owned()));
                }
                self.message(rpc, target).await
            };
            match unless_reset(|cx| stream.poll_reset(cx), next).await {
                None => return Ok(()),
                Some(Ok(next)) => framed = next,
                Some(Err(status)) => break status,
            }
        };
        let _left = stream.send_trailers(status.trailers());
        Ok(())
    }

    async fn message(&self, rpc: &'static Rpc, target: &str) -> Result<Bytes, Status> {
        let json = self.get(target).await?;
        self.shared.places.convert(rpc.answer, json).await
    }
}

async fn reflect(messages: &mut Messages, respond: &mut SendResponse<Bytes>) -> Result<(), Status> {
    let mut head = Response::new(());
    head.headers_mut().insert(CONTENT_TYPE, status::GRPC);
    let Ok(mut stream) = respond.send_response(head, false) else { return Ok(()) };
    let answered = async {
        loop {
            match messages.next().await {
                Ok(Some(question)) => {
                    let answer = match reflection::answer(&question) {
                        Ok(answer) => framed(&answer),
                        Err(status) => return Some(status),
                    };
                    write(&mut stream, answer, false, READ_WAIT).await.ok()?;
                }
                Ok(None) => return Some(Status::ok()),
                Err(status) => return Some(status),
            }
        }
    };
    let answered = timeout(REFLECTION, answered).await;
    if let Some(status) = answered.unwrap_or_else(|_late| Some(Status::ok())) {
        let _left = stream.send_trailers(status.trailers());
    }
    Ok(())
}

/// A message after the five bytes of its frame.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat().into()
}

/// Writes all bytes, as fast as the caller's flow-control window permits.
async fn write(
    stream: &mut SendStream<Bytes>,
    mut bytes: Bytes,
    is_last: bool,
    wait: Duration,
) -> Result<(), ()> {
    let written = async {
        while !bytes.is_empty() {
            stream.reserve_capacity(bytes.len());
            let room = poll_fn(|cx| match stream.poll_capacity(cx) {
                Poll::Ready(Some(Ok(0))) => Poll::Pending,
                polled => polled,
            });
            let Some(Ok(room)) = room.await else { return Err(()) };
            let part = bytes.split_to(room.min(bytes.len()));
            let is_end = is_last && bytes.is_empty();
            stream.send_data(part, is_end).map_err(drop)?;
        }
        Ok(())
    };
    timeout(wait, written).await.unwrap_or_else(|_late| {
        stream.send_reset(Reason::CANCEL);
        Err(())
    })
}

/// Reads the messages of a caller.
struct Messages {
    body: RecvStream,
    buffer: Vec<u8>,
}

impl Messages {
    /// The next message; `None` after the last one.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Status> {
        loop {
            if let Some((frame, rest)) = self.buffer.split_first_chunk::<FRAME>() {
                let [compressed, length @ ..] = *frame;
                let length = u32::from_be_bytes(length) as usize;
                if compressed != 0 {
                    return Err(Status::new(
                        Code::Unimplemented,
                        "the message is compressed: send messages without compression".to_owned(),
                    ));
                }
                if length > MAX_REQUEST {
                    return Err(Status::new(
                        Code::ResourceExhausted,
                        format!("the message is too large: send at most {MAX_REQUEST} bytes"),
                    ));
                }
                if let Some(message) = rest.get(..length) {
                    let message = message.to_vec();
                    self.buffer.drain(..FRAME + length);
                    return Ok(Some(message));
                }
            }
            let Some(part) = self.body.data().await else {
                let is_whole = self.buffer.is_empty();
                return if is_whole {
                    Ok(None)
                } else {
                    Err(Status::new(Code::InvalidArgument, "the message was cut off".to_owned()))
                };
            };
            let part = part.map_err(|error| Status::new(Code::Cancelled, error.to_string()))?;
            self.buffer.extend_from_slice(&part);
            let _closed = self.body.flow_control().release_capacity(part.len());
        }
    }
}

#[cfg(test)]
mod tests;
