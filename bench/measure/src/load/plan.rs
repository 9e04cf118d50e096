//! The plan of a load: which requests are sent, where, when, and for how long.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The largest number of connections of one plan. No test opens so many through one proxy.
pub const MAX_CONNECTIONS: usize = 20_000;

/// The largest number of streams of one connection. By default, servers do not allow more.
pub const MAX_STREAMS: usize = 1000;

/// The number of bytes before a gRPC message: the compression flag and the length.
const PREFIX: usize = 5;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Open loop: this many requests a second, evenly spaced.
    Rate(f64),
    /// Closed loop: each connection sends as soon as it has its response.
    Saturate,
    /// Closed loop in which each connection pauses before it sends again. The pause is a random time, uniformly
    /// distributed between zero and this duration.
    Think(Duration),
}

/// The protocol of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2 without TLS, without negotiation (prior knowledge).
    Http2,
    /// Unary gRPC calls over HTTP/2 without TLS, one message each way.
    Grpc,
    /// Messages on gRPC streams that stay open: a request is one message and its echo.
    GrpcStream,
    /// The body's bytes are sent to the server, which sends the same number of bytes back.
    Tcp,
    /// Like TCP, after a connection of HTTP/1.1 was upgraded to `websocket`. Proxies do not look at the bytes after the
    /// upgrade, so they are not in WebSocket frames.
    WebSocket,
}

impl Protocol {
    /// Whether a connection carries several streams.
    #[must_use]
    pub fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::Grpc | Self::GrpcStream)
    }
}

/// The load to generate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The URL, `http://host[:port]/path` for every protocol.
    pub url: String,
    /// The protocol.
    pub protocol: Protocol,
    /// The number of concurrent streams on each connection, if the protocol has streams.
    pub streams: usize,
    /// When requests are sent.
    pub pace: Pace,
    /// The number of connections that stay open; with `new_connection`, the number of concurrent
    /// requests.
    pub connections: usize,
    /// Opens a new connection for each request.
    pub new_connection: bool,
    /// Sends one request on each connection before the first scheduled request, as Fortio does. A proxy that accepts a
    /// connection at once connects to the server only when such a request arrives.
    #[serde(default)]
    pub primed: bool,
    /// How long to measure.
    pub duration: Duration,
    /// How long to generate load before the measurement.
    pub warm_up: Duration,
    /// Paths that each connection requests in turn instead of the path of the URL; HTTP/1.1 only.
    #[serde(default)]
    pub paths: Vec<String>,
    /// The method of the requests.
    pub method: String,
    /// The size of the request body in bytes; 0 means no body.
    pub body_size: usize,
    /// Additional header fields.
    pub headers: Vec<(String, String)>,
    /// Does not read responses: each request lasts until its time limit, and its connection ends with it. HTTP/1.1
    /// only.
    #[serde(default)]
    pub unread: bool,
    /// The time limit of a request, including the opening of its connection if it has none.
    pub timeout: Duration,
    /// The number of threads; each can send about 40,000 requests a second.
    pub threads: usize,
}

impl Plan {
    /// GET `url` at `rate` requests a second for `duration` over 16 connections.
    pub fn new(url: impl Into<String>, rate: f64, duration: Duration) -> Self {
        Plan {
            url: url.into(),
            protocol: Protocol::Http1,
            streams: 1,
            pace: Pace::Rate(rate),
            connections: 16,
            new_connection: false,
            primed: false,
            duration,
            warm_up: Duration::ZERO,
            paths: Vec::new(),
            method: "GET".into(),
            body_size: 0,
            headers: Vec::new(),
            unread: false,
            timeout: Duration::from_secs(10),
            threads: 1,
        }
    }

    /// The number of requests per second; `None` for a closed loop.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        match self.pace {
            Pace::Rate(rate) => Some(rate),
            Pace::Saturate | Pace::Think(_) => None,
        }
    }
}

/// The bytes that every connection sends, and the addresses to which it connects.
#[derive(Clone, Debug)]
pub(super) struct ClusterTarget {
    pub(super) plan: Plan,
    pub(super) addresses: Vec<SocketAddr>,
    /// HTTP/1.1: the whole requests, sent in turn. Other protocols: one body.
    pub(super) requests: Vec<Bytes>,
}

impl ClusterTarget {
    /// The request, for protocols that send the same bytes every time.
    pub(super) fn request(&self) -> &Bytes {
        &self.requests[0]
    }
}

/// Stops running load early. Clones stop the same load.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops the load: no further request is sent, and unfinished requests are completed.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the load was stopped.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Refuses a plan that cannot run.
pub(super) fn check(plan: &Plan) -> Result<()> {
    let (connections, streams) = (plan.connections, plan.streams);
    ensure!(
        (1..=MAX_CONNECTIONS).contains(&connections),
        "connections must be 1 to {MAX_CONNECTIONS}, not {connections}"
    );
    let most = if plan.protocol.is_http2() && !plan.new_connection { MAX_STREAMS } else { 1 };
    let is_allowed = (1..=most).contains(&streams);
    ensure!(is_allowed, "streams must be 1 to {most} with this protocol, not {streams}");
    let echoes = matches!(plan.protocol, Protocol::Tcp | Protocol::WebSocket);
    ensure!(!echoes || plan.body_size > 0, "TCP and WebSockets need a body size above 0");
    let is_http1 = plan.protocol == Protocol::Http1;
    ensure!(is_http1 || plan.paths.is_empty(), "only HTTP/1.1 asks for several paths in turn");
    ensure!(is_http1 || !plan.unread, "only HTTP/1.1 can leave responses unread");
    if let Pace::Rate(rate) = plan.pace {
        let is_good = rate.is_finite() && rate > 0.0;
        ensure!(is_good, "the rate must be above 0 requests a second, not {rate}");
    }
    let is_some = plan.threads > 0 && !plan.duration.is_zero();
    ensure!(is_some, "threads and duration must be above 0");
    Ok(())
}

/// The bytes that the connections of a plan send, and where they connect.
pub(super) fn target(plan: &Plan) -> Result<ClusterTarget> {
    let rest = plan.url.strip_prefix("http://").context("the URL must start with http://")?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let has_port = authority.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok());
    let socket = if has_port { authority.to_string() } else { format!("{authority}:80") };
    let addresses: Vec<_> =
        socket.to_socket_addrs().with_context(|| format!("cannot resolve {authority}"))?.collect();
    ensure!(!addresses.is_empty(), "{authority} has no address");
    let requests = match plan.protocol {
        Protocol::Http1 if plan.paths.is_empty() => vec![http1_request(plan, authority, path)],
        Protocol::Http1 => {
            let path = |path: &String| http1_request(plan, authority, path.trim_start_matches('/'));
            plan.paths.iter().map(path).collect()
        }
        Protocol::Grpc | Protocol::GrpcStream => vec![message(plan.body_size)?],
        Protocol::Http2 | Protocol::Tcp | Protocol::WebSocket => vec![vec![b'x'; plan.body_size]],
    };
    let requests = requests.into_iter().map(Bytes::from).collect();
    Ok(ClusterTarget { plan: plan.clone(), addresses, requests })
}

fn http1_request(plan: &Plan, authority: &str, path: &str) -> Vec<u8> {
    let mut head = format!("{} /{path} HTTP/1.1\r\nHost: {authority}\r\n", plan.method);
    for (name, value) in &plan.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if plan.body_size > 0 {
        head += &format!("Content-Length: {}\r\n", plan.body_size);
    }
    if plan.new_connection {
        head += "Connection: close\r\n";
    }
    let mut request = (head + "\r\n").into_bytes();
    request.resize(request.len() + plan.body_size, b'x');
    request
}

/// A gRPC message of `size` bytes, with its prefix.
fn message(size: usize) -> Result<Vec<u8>> {
    let length = u32::try_from(size).context("a gRPC message is below 4 GiB")?;
    let mut bytes = Vec::with_capacity(PREFIX + size);
    bytes.push(0);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.resize(PREFIX + size, b'x');
    Ok(bytes)
}
