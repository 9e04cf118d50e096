//! A proxy with a policy in front of several servers, and a client of the proxy.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use leno_testkit::peer::{Faulty, FaultyAct};

use crate::front::{FrontOptions, FrontProxy};

/// Chooses what a server does with its request number `n`, counted from 0.
pub(crate) type Script = fn(u32) -> FaultyAct;

/// A proxy in front of servers.
pub(crate) struct ProxiedServers {
    pub(crate) backends: Vec<Faulty>,
    front: FrontProxy,
}

/// A response; empty if the connection ended without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// Whether the whole body was received.
    pub(crate) is_whole: bool,
}

impl ProxiedServers {
    /// The outbound side. `spec` is the spec of a TrafficPolicy without its targets.
    pub(crate) fn outbound(spec: &str, scripts: &[Script]) -> Self {
        Self::within(spec, scripts, &FrontOptions::default())
    }

    /// Like [`Self::outbound`], with more documents.
    pub(crate) fn outbound_with(spec: &str, scripts: &[Script], more: &str) -> Self {
        Self::within(spec, scripts, &FrontOptions { more, ..FrontOptions::default() })
    }

    /// Like [`Self::outbound`], with further settings of the proxy, its service and its endpoints.
    pub(crate) fn within(spec: &str, scripts: &[Script], around: &FrontOptions<'_>) -> Self {
        let backends: Vec<Faulty> = scripts.iter().map(|script| server(*script)).collect();
        let addresses: Vec<_> = backends.iter().map(Faulty::address).collect();
        Self { front: FrontProxy::outbound(spec, &addresses, around), backends }
    }

    /// Like [`Self::outbound`], in front of servers that other proxies use as well.
    pub(crate) fn before(spec: &str, servers: &[Faulty]) -> Self {
        let addresses: Vec<_> = servers.iter().map(Faulty::address).collect();
        let front = FrontProxy::outbound(spec, &addresses, &FrontOptions::default());
        Self { front, backends: servers.to_vec() }
    }

    /// The inbound side in front of one server, with the `limits` of a RateLimitPolicy.
    pub(crate) fn inbound(limits: &str, script: Script) -> Self {
        let backend = server(script);
        Self { front: FrontProxy::inbound(limits, backend.address()), backends: vec![backend] }
    }

    /// The inbound side in front of one server, with an AuthorizationPolicy.
    pub(crate) fn authorized(spec: &str, script: Script) -> Self {
        let backend = server(script);
        let front = FrontProxy::inbound_under("AuthorizationPolicy", spec, backend.address());
        Self { front, backends: vec![backend] }
    }

    /// Sends a request with this `x-id` on its own connection, and reads the response.
    pub(crate) fn ask(&self, method: &str, id: &str, headers: &str, body: &str) -> Answer {
        Answer::read(self.send(method, id, headers, body))
    }

    /// Opens a connection to the proxy.
    pub(crate) fn connect(&self) -> TcpStream {
        self.front.connect()
    }

    /// The proxy.
    pub(crate) fn front(&self) -> &FrontProxy {
        &self.front
    }

    /// Like [`Self::ask`], without reading the response.
    pub(crate) fn send(&self, method: &str, id: &str, headers: &str, body: &str) -> TcpStream {
        send(&self.front, (method, id, headers), body)
    }

    pub(crate) fn get(&self, id: &str) -> Answer {
        self.ask("GET", id, "", "")
    }

    /// The sum of the samples whose lines contain all of these parts.
    pub(crate) fn metric(&self, parts: &[&str]) -> f64 {
        self.front.metric(parts)
    }

    /// How many requests have reached each server.
    pub(crate) fn counts(&self) -> Vec<usize> {
        self.backends.iter().map(|backend| backend.seen().len()).collect()
    }

    /// The IDs of the requests that have reached any server.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.backends.iter().flat_map(Faulty::seen).collect()
    }
}

/// Sends a GET to a proxy, and reads the response.
pub(crate) fn get(front: &FrontProxy, id: &str) -> Answer {
    Answer::read(send(front, ("GET", id, ""), ""))
}

fn send(front: &FrontProxy, (method, id, headers): (&str, &str, &str), body: &str) -> TcpStream {
    let mut stream = front.connect();
    let mut request = format!("{method} /it HTTP/1.1\r\nHost: web\r\nConnection: close\r\n");
    write!(request, "x-id: {id}\r\n{headers}").expect("memory");
    if !body.is_empty() {
        write!(request, "Content-Length: {}\r\n", body.len()).expect("memory");
    }
    request += "\r\n";
    request += body;
    match stream.write_all(request.as_bytes()) {
        // A proxy that refuses an opaque connection resets it, perhaps before the request has been written.
        // Reading then finds no response.
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        written => written.expect("the proxy reads"),
    }
    stream
}

impl Answer {
    fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        // If the response was cut off, reading fails or ends before the whole body.
        let read = stream.read_to_end(&mut bytes);
        Self::parse(&bytes, read.is_ok())
    }

    fn parse(bytes: &[u8], ended_well: bool) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return Self::default() };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, is_whole: ended_well && body.len() == length, head }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.status == 200 && self.is_whole
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find_map(|(key, value)| (key == name).then_some(value))
    }
}

pub(crate) fn server(script: Script) -> Faulty {
    Faulty::start("127.0.0.1:0".parse().expect("an address"), script).expect("loopback")
}
