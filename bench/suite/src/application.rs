//! The application of every mesh: HTTP/1.1, HTTP/2 and gRPC on one port, or a TCP echo.

mod calls;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use calls::{Callee, Calls};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::scenario::Scenario;

/// The header with which a pushed configuration tells the application the number of its revision.
pub(crate) const PUSHED: &str = "x-pushed";
/// What an application prints when a revision has arrived, before the revision's number.
pub(crate) const ARRIVED: &str = "arrived: revision";
/// The port on which every application listens if it has a network namespace of its own.
pub(crate) const PORT: u16 = 8080;
pub(crate) const LISTEN: &str = "0.0.0.0:8080";
/// Flow-control windows of HTTP/2, so large that they never delay a message.
const WINDOW: u32 = 4 * 1024 * 1024;
/// The largest number of concurrent streams on a connection. No scenario opens so many through one proxy.
const MAX_STREAMS: u32 = 4096;
/// The path of a request for an answer of a certain size begins with this text and ends with the number of bytes. The
/// second constant is the largest such number.
pub(crate) const BYTES: &str = "/bytes/";
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// The `Sec-WebSocket-Accept` that belongs to the key that the generator always sends (RFC 6455, section 1.3). HAProxy
/// refuses a response without it.
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// How many bytes the echo reads at a time.
const READ_SIZE: usize = 256 * 1024;
/// How long a listener waits after a failed accept. The usual cause is a full table of descriptors,
/// which lasts until other connections close.
const ACCEPT_AGAIN: Duration = Duration::from_millis(10);

/// The application of a lab
#[derive(Clone, Debug, clap::Args)]
pub struct Application {
    /// Where to listen
    #[arg(long)]
    listen: SocketAddr,

    /// Echoes bytes instead of speaking HTTP
    #[arg(long)]
    tcp: bool,

    /// Milliseconds of work before each answer
    #[arg(long, default_value_t = 0)]
    work_ms: u64,

    /// Bytes of an HTTP answer
    #[arg(long, default_value_t = 0)]
    response_bytes: usize,

    /// Calls another service over HTTP/1.1 before each answer, or only before answers to paths with
    /// such an ending
    #[arg(long, value_name = "HOST:PORT[=PATH,..]")]
    call_http: Vec<Callee>,

    /// Calls another service over gRPC, in the same way
    #[arg(long, value_name = "HOST:PORT[=PATH,..]")]
    call_grpc: Vec<Callee>,
}

/// The arguments that make `leno-bench` the application of a service; `address` returns the address
/// of another service.
pub(crate) fn arguments(
    scenario: &Scenario,
    nth: u32,
    listen: &str,
    address: impl Fn(u32) -> String,
) -> Vec<String> {
    let mut words = ["serve", "--listen"].map(str::to_owned).to_vec();
    words.push(listen.to_owned());
    if !scenario.is_http() {
        words.push("--tcp".to_owned());
    }
    words.extend(["--work-ms".to_owned(), scenario.work_ms.to_string()]);
    words.extend(["--response-bytes".to_owned(), scenario.response_bytes.to_string()]);
    for call in scenario.calls.iter().filter(|call| call.from == nth) {
        let how = if call.grpc { "--call-grpc" } else { "--call-http" };
        let on = if call.on.is_empty() { String::new() } else { format!("={}", call.on.join(",")) };
        words.extend([how.to_owned(), format!("{}{on}", address(call.service))]);
    }
    words
}

/// Serves until the process ends.
pub fn serve(application: &Application) -> Result<Infallible> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let at = application.listen;
        let listener = TcpListener::bind(at).await;
        accept(listener.with_context(|| format!("cannot listen on {at}"))?, application).await
    })
}

async fn accept(listener: TcpListener, application: &Application) -> Result<Infallible> {
    let answer = Bytes::from(vec![b'x'; application.response_bytes]);
    let work = Duration::from_millis(application.work_ms);
    let calls = Calls::new(&application.call_http, &application.call_grpc);
    let seen = Arc::new(AtomicU64::new(0));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_AGAIN).await;
            continue;
        };
        // This only fails on a socket that is already dead, which the next read reports.
        let _ = stream.set_nodelay(true);
        if application.tcp {
            // A failure is not reported here, because the client reports how its connection ended.
            tokio::spawn(async move { drop(echo(stream).await) });
        } else {
            let answer = (work, answer.clone());
            tokio::spawn(http(stream, answer, calls.clone(), seen.clone()));
        }
    }
}

async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut buffer = vec![0; READ_SIZE];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return stream.shutdown().await,
            count => stream.write_all(&buffer[..count]).await?,
        }
    }
}

/// Prints the revision of the pushed configuration that a request carries. Each revision is printed once.
fn tell(request: &Request<Incoming>, seen: &AtomicU64) {
    let pushed = request.headers().get(PUSHED).and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(revision) = pushed else { return };
    if seen.fetch_max(revision, Ordering::Relaxed) < revision {
        // The write only fails if the reader of this output has closed it.
        let _ = writeln!(std::io::stdout(), "{ARRIVED} {revision}");
    }
}

async fn http(
    stream: TcpStream,
    (work, answer): (Duration, Bytes),
    calls: Calls,
    seen: Arc<AtomicU64>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (answer, calls, seen) = (answer.clone(), calls.clone(), seen.clone());
        async move {
            if request.headers().contains_key(http::header::UPGRADE) {
                return Ok(upgraded(request));
            }
            if !work.is_zero() {
                tokio::time::sleep(work).await;
            }
            tell(&request, &seen);
            let path = request.uri().clone();
            let mut response = respond(request, answer).await;
            if calls.all(&path).await.is_err() {
                *response.status_mut() = http::StatusCode::BAD_GATEWAY;
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http2()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(MAX_STREAMS);
    // A failure is not reported here, because the client reports how its connection ended.
    drop(server.serve_connection_with_upgrades(TokioIo::new(stream), service).await);
}

/// Accepts the upgrade of the connection, and then sends back every byte that arrives on it.
fn upgraded(request: Request<Incoming>) -> Response<BoxBody<Bytes, hyper::Error>> {
    let protocol = request.headers().get(http::header::UPGRADE).cloned();
    tokio::spawn(async move {
        // A failure is not reported here, because the client reports how its connection ended.
        if let Ok(stream) = hyper::upgrade::on(request).await {
            drop(echo(TokioIo::new(stream)).await);
        }
    });
    let mut response = Response::new(body(Bytes::new()));
    *response.status_mut() = http::StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(http::header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(http::header::SEC_WEBSOCKET_ACCEPT, HeaderValue::from_static(ACCEPT));
    headers.extend(protocol.map(|protocol| (http::header::UPGRADE, protocol)));
    response
}

fn body(bytes: Bytes) -> BoxBody<Bytes, hyper::Error> {
    BodyExt::boxed(BodyExt::map_err(Full::new(bytes), |never| match never {}))
}

/// Returns the body for a path: as many bytes as the number at the path's end says, or else the usual body. Bytes are
/// allocated once for each number.
fn answer_for(path: &str, usual: Bytes) -> Bytes {
    static LARGE: Mutex<BTreeMap<usize, Bytes>> = Mutex::new(BTreeMap::new());
    let size = path.strip_prefix(BYTES).and_then(|size| size.parse().ok());
    let Some(size) = size.filter(|size| *size <= MAX_BYTES) else { return usual };
    let mut large = LARGE.lock().unwrap_or_else(PoisonError::into_inner);
    large.entry(size).or_insert_with(|| vec![b'x'; size].into()).clone()
}

async fn respond(
    request: Request<Incoming>,
    answer: Bytes,
) -> Response<BoxBody<Bytes, hyper::Error>> {
    let kind = request.headers().get(http::header::CONTENT_TYPE);
    let grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if !grpc {
        // Read the whole body before answering. If the connection breaks meanwhile, hyper ends it.
        let answer = answer_for(request.uri().path(), answer);
        let mut received = request.into_body();
        while let Some(Ok(_)) = received.frame().await {}
        return Response::new(body(answer));
    }
    // Sends each message back as it arrives, and ends with a successful gRPC status.
    let ended = async {
        let status = [(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))];
        Ok(Frame::trailers(HeaderMap::from_iter(status)))
    };
    let messages = request.into_body().into_data_stream().map_ok(Frame::data);
    let body = StreamBody::new(messages.chain(stream::once(ended)));
    let mut response = Response::new(BodyExt::boxed(body));
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use leno_measure::load::{Pace, Plan, Protocol, run};

    use super::*;

    /// An application in this process, on a free port.
    fn application(tcp: bool, calls: &[(&str, bool)]) -> SocketAddr {
        let of = |grpc| {
            let calls = calls.iter().filter(|(_, other)| *other == grpc);
            calls.map(|(callee, _)| callee.parse().unwrap()).collect()
        };
        let (call_http, call_grpc) = (of(false), of(true));
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let (listen, work_ms, response_bytes) = (listener.local_addr().unwrap(), 0, 100);
                sender.send(listen).unwrap();
                let application =
                    Application { listen, tcp, work_ms, response_bytes, call_http, call_grpc };
                accept(listener, &application).await
            })
        });
        receiver.recv().unwrap()
    }

    #[test]
    fn every_protocol_is_answered_whole() {
        let address = application(false, &[]);
        let cases = [
            (Protocol::Http1, 0, 100),
            (Protocol::Http2, 0, 100),
            (Protocol::Grpc, 200, 205),
            (Protocol::GrpcStream, 200, 205),
        ];
        for (protocol, request, response) in cases {
            let mut plan =
                Plan::new(format!("http://{address}/"), 200.0, Duration::from_millis(200));
            plan.protocol = protocol;
            plan.body_size = request;
            plan.connections = 2;
            plan.streams = if protocol == Protocol::Http1 { 1 } else { 4 };
            let report = run(&plan).unwrap();
            assert_eq!((report.requests, report.errors), (40, 0), "{protocol:?}: {report:?}");
            assert_eq!(report.body_bytes, 40 * response, "{protocol:?}");
            assert_eq!(report.connections_opened, 2, "{protocol:?}");
            assert_eq!(report.buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 40);
        }
    }

    #[test]
    fn tcp_is_sent_back_whole() {
        let address = application(true, &[]);
        let mut plan = Plan::new(format!("http://{address}"), 100.0, Duration::from_millis(100));
        plan.protocol = Protocol::Tcp;
        plan.body_size = 3_000_000;
        let report = run(&plan).unwrap();
        assert_eq!((report.requests, report.errors), (10, 0), "{report:?}");
        let url = format!("http://{}/", application(false, &[]));
        let upgraded =
            Plan { protocol: Protocol::WebSocket, url, body_size: 70_000, ..plan.clone() };
        let report = run(&upgraded).unwrap();
        assert_eq!((report.requests, report.errors), (10, 0), "{report:?}");
        plan.pace = Pace::Think(Duration::from_millis(1));
        plan.new_connection = true;
        plan.body_size = 10;
        // Long enough for each client to send a second request, even on a busy machine.
        plan.duration = Duration::from_secs(2);
        let report = run(&plan).unwrap();
        assert!(report.requests > 16 && report.errors == 0, "{report:?}");
        assert!(report.connections_opened >= report.requests);
    }

    #[test]
    fn a_client_that_reads_nothing_waits_until_its_time_limit() {
        let address = application(false, &[]);
        let url = format!("http://{address}{BYTES}1000000");
        let mut plan = Plan::new(url, 100.0, Duration::from_millis(100));
        let report = run(&plan).unwrap();
        assert_eq!((report.requests, report.errors, report.body_bytes), (10, 0, 10_000_000));
        (plan.unread, plan.timeout) = (true, Duration::from_millis(50));
        let report = run(&plan).unwrap();
        assert_eq!(report.errors_by_kind.get("timeout"), Some(&10), "{report:?}");
        plan.protocol = leno_measure::load::Protocol::Http2;
        let error = run(&plan).unwrap_err().to_string();
        assert!(error.contains("only HTTP/1.1"), "{error}");
    }

    #[test]
    fn an_application_answers_after_the_services_that_it_calls() {
        let behind = application(false, &[]).to_string();
        let address = application(false, &[(&behind, false), (&behind, true)]);
        let plan = Plan::new(format!("http://{address}/"), 200.0, Duration::from_millis(200));
        assert_eq!(run(&plan).unwrap().errors, 0);
        let address = application(false, &[("127.0.0.1:1=/cart,/product", true)]);
        let mut plan = Plan::new(format!("http://{address}/"), 100.0, Duration::from_millis(50));
        plan.paths = vec!["/shop/cart?id=1".into()];
        assert_eq!(run(&plan).unwrap().errors_by_kind.get("status_5xx"), Some(&5));
        plan.paths = vec!["/shop/home?next=/cart".into()];
        assert_eq!(run(&plan).unwrap().errors, 0, "no service is called for this page");
    }
}
