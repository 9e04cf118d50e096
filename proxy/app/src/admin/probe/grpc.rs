//! The gRPC health check (`grpc.health.v1`, as described in gRPC's document on health checking).

use std::net::SocketAddr;

use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE, USER_AGENT};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::{Failed, Task};

/// The largest response in bytes. A normal response needs far less: two bytes for a status, and five before it.
const MAX_ANSWER: usize = 4096;
/// How many bytes come before a message: the flag for compression, and the length.
const PREFIX: usize = 5;
/// The names of `HealthCheckResponse.ServingStatus`, from 0.
const STATUSES: [&str; 4] = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];

/// Runs the tasks of a connection on this thread.
#[derive(Clone, Copy)]
struct Local;

impl<F> Executor<F> for Local
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}

/// Asks for the health of a service, or of the whole server if the name is empty.
pub(super) async fn check(
    stream: TcpStream,
    (to, service): (SocketAddr, &str),
    agent: HeaderValue,
) -> Result<String, Failed> {
    let connected = hyper::client::conn::http2::handshake(Local, TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.map_err(Failed::Exchange)?;
    let _driver = Task(spawn_local(async move { drop(connection.await) }));
    let request = Request::post(format!("http://{to}/grpc.health.v1.Health/Check"))
        .header(CONTENT_TYPE, "application/grpc")
        .header(TE, "trailers")
        .header(USER_AGENT, agent)
        .body(Full::new(Bytes::from(message(service))))
        .map_err(Failed::Request)?;
    let response = sender.send_request(request).await.map_err(Failed::Exchange)?;
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body =
        body.map_err(|error| Failed::Answer(format!("the response was cut off: {error}")))?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    judge(&head.headers, &trailers, &body.to_bytes())
}

/// The message `HealthCheckRequest { service }`, after gRPC's prefix of five bytes: not compressed, and its length.
fn message(service: &str) -> Vec<u8> {
    let mut fields = Vec::new();
    if !service.is_empty() {
        // The tag of field 1 with wire type 2 (length-delimited).
        fields.push(1 << 3 | 2);
        let mut length = service.len();
        while length >= 0x80 {
            fields.push(u8::try_from(length & 0x7f).expect("seven bits") | 0x80);
            length >>= 7;
        }
        fields.push(u8::try_from(length).expect("less than 0x80"));
        fields.extend(service.as_bytes());
    }
    let length = u32::try_from(fields.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), &fields].concat()
}

fn judge(head: &HeaderMap, trailers: &HeaderMap, body: &[u8]) -> Result<String, Failed> {
    let status = trailers.get("grpc-status").or_else(|| head.get("grpc-status"));
    let status = status.map_or("missing", |status| status.to_str().unwrap_or("unreadable"));
    if status != "0" {
        return Err(Failed::Answer(format!("the application's grpc-status is {status}")));
    }
    let message = body.get(PREFIX..).unwrap_or_default();
    // The tag of field 1 with wire type 0 (varint). If the field is missing, it is 0.
    let serving = match message {
        [0x08, number, ..] => usize::from(*number),
        _ => 0,
    };
    let name = STATUSES.get(serving).copied().unwrap_or("unknown to us");
    let answer = format!("the application reports {name}");
    if name == "SERVING" { Ok(answer) } else { Err(Failed::Answer(answer)) }
}
