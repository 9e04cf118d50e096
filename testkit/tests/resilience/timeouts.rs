//! Tests timeouts: of idle connections, of the total time of connections, and of the wait until a response begins.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use http::Request;
use leno_testkit::peer::{Backend, Behaviour, FaultyAct, Server};

use crate::front::{FrontOptions, FrontProxy};
use crate::http2::{self, ServerBehaviour, Upload};
use crate::proxied_servers::ProxiedServers;

/// The timeout in policies where it is meant to be reached.
const SHORT: &str = "200ms";
/// A timeout that is never reached between two pieces, even on a slow machine, because pieces arrive ten times as
/// often.
const LONG: Duration = Duration::from_secs(2);
/// So many pieces that they take longer than twice that timeout.
const PIECES: Upload = Upload { pieces: 30, every: Duration::from_millis(200) };

fn idle(bound: &str) -> String {
    format!("  timeouts: {{idle: {bound}}}\n")
}

fn http2_front(spec: &str, script: http2::Script) -> (http2::Server, FrontProxy) {
    let server = http2::Server::start(script);
    let around = FrontOptions { protocol: "kubernetes.io/h2c", ..FrontOptions::default() };
    let front = FrontProxy::outbound(spec, &[server.address], &around);
    (server, front)
}

fn get(path: &str) -> Request<()> {
    Request::builder().uri(format!("http://web{path}")).body(()).expect("a request")
}

/// Sends a piece and waits until it comes back, `pieces` times. Returns how many came back, and the error that
/// ended this early.
fn talk(stream: &mut TcpStream, what: Upload) -> (u32, Option<ErrorKind>) {
    for number in 0..what.pieces {
        sleep(what.every);
        let said = stream.write_all(b"piece");
        let heard = said.and_then(|()| stream.read_exact(&mut [0; 5]));
        if let Err(error) = heard {
            return (number, Some(error.kind()));
        }
    }
    (what.pieces, None)
}

/// Opens a connection and upgrades it to an echo protocol.
fn upgraded(to: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(to).expect("the proxy listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let head = "GET /upgrade HTTP/1.1\r\nHost: web\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("the proxy reads");
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("an answer");
        said.extend_from_slice(&byte);
    }
    assert!(said.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&said));
    stream
}

#[test]
fn a_stalled_response_is_ended_in_http1() {
    let world = ProxiedServers::outbound(&idle(SHORT), &[|_| FaultyAct::Stall]);
    let answer = world.get("1");
    assert_eq!((answer.status, answer.header("leno-error")), (504, Some("stalled")));
    let world = ProxiedServers::outbound(&idle(SHORT), &[|_| FaultyAct::StallBody]);
    let answer = world.get("1");
    assert_eq!((answer.status, answer.is_whole), (200, false), "{answer:?}");
    assert_eq!(world.metric(&["leno_errors_total", "stalled"]), 1.0);
}

#[test]
fn a_slow_response_goes_on_in_http1() {
    let server = Server::start(Backend::default()).expect("loopback");
    let front = FrontProxy::outbound(&idle("2s"), &[server.address()], &FrontOptions::default());
    let mut stream = front.connect();
    let pause = PIECES.every.as_millis();
    let path = format!("/?size=3000&chunked={}&pause_ms={pause}", PIECES.pieces);
    let request = format!("GET {path} HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n");
    let began = Instant::now();
    stream.write_all(request.as_bytes()).expect("the proxy reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("all of it");
    assert!(answer.ends_with("0\r\n\r\n"), "{answer}");
    assert!(began.elapsed() > 2 * LONG, "it is over after {:?}", began.elapsed());
}

#[test]
fn a_stalled_response_is_ended_in_http2() {
    let (_server, front) = http2_front(&idle(SHORT), |_, _| ServerBehaviour::Stall);
    let reply = http2::ask(front.address(), get("/1"), Upload::default());
    let cause = reply.headers.get("leno-error").and_then(|cause| cause.to_str().ok());
    assert_eq!((reply.status, cause), (504, Some("stalled")), "{reply:?}");
    let (_server, front) = http2_front(&idle(SHORT), |_, _| ServerBehaviour::Quiet);
    let reply = http2::ask(front.address(), get("/1"), Upload::default());
    assert_eq!(reply.status, 200);
    assert!(reply.error.is_some_and(|error| error.contains("stream error")));
    assert_eq!(front.metric(&["leno_errors_total", "stalled"]), 1.0);
}

#[test]
fn a_slow_response_and_a_slow_request_go_on_in_http2() {
    let downloads: http2::Script = |_, _| ServerBehaviour::Trickle(PIECES.pieces, PIECES.every);
    let uploads: http2::Script = |_, _| ServerBehaviour::AfterBody;
    for (script, upload, bytes) in [(downloads, Upload::default(), 150), (uploads, PIECES, 2)] {
        let (_server, front) = http2_front(&idle("2s"), script);
        let began = Instant::now();
        let reply = http2::ask(front.address(), get("/1"), upload);
        assert_eq!((reply.status, reply.bytes, reply.error), (200, bytes, None));
        assert!(began.elapsed() > 2 * LONG, "it is over after {:?}", began.elapsed());
    }
}

/// A TCP or upgraded connection on which pieces are echoed, with its expected outcome.
struct Row {
    timeouts: &'static str,
    what: Upload,
    /// The cause if the mesh ends the connection: for a TCP connection, and for an upgraded one.
    cause: Option<(&'static str, &'static str)>,
}

/// Only in the second row, pieces arrive more slowly than the idle timeout permits. In all others, all pieces together
/// take longer than the timeout. The timeouts of requests in the last row, which do not apply to these connections, are
/// long enough for a start on a slow machine.
const ROWS: [Row; 4] = [
    Row { timeouts: "{idle: 2s}", what: PIECES, cause: None },
    Row {
        timeouts: "{idle: 200ms}",
        what: Upload { pieces: 1, every: Duration::from_secs(5) },
        cause: Some(("stream-idle", "stalled")),
    },
    Row {
        timeouts: "{stream: 1s}",
        what: PIECES,
        cause: Some(("stream-timeout", "stream-timeout")),
    },
    Row { timeouts: "{request: 3s, response: 3s}", what: PIECES, cause: None },
];

impl Row {
    fn spec(&self) -> String {
        format!("  timeouts: {}\n", self.timeouts)
    }

    /// Checks that all pieces came back; or, if the row has a cause, that they did not and that the cause was
    /// counted.
    fn holds(&self, front: &FrontProxy, returned: u32, ended: bool, upgraded: bool) {
        let at = format!("{}: {returned} pieces", self.timeouts);
        let cause = self.cause.map(|(opaque, other)| if upgraded { other } else { opaque });
        assert_eq!(ended, cause.is_some(), "{at}");
        assert_eq!(returned == self.what.pieces, cause.is_none(), "{at}");
        let count = |part: &str| front.metric(&["leno_errors_total", part]);
        let expected = if cause.is_some() { 1.0 } else { 0.0 };
        assert_eq!(count(&format!("cause=\"{}\"", cause.unwrap_or_default())), expected, "{at}");
        assert_eq!(count("cause="), expected, "{at}");
    }
}

#[test]
fn opaque_connections_last_as_long_as_policy_allows() {
    for row in ROWS {
        let server = Server::start(Behaviour::Echo).expect("loopback");
        let around = FrontOptions { protocol: "tcp", ..FrontOptions::default() };
        let front = FrontProxy::outbound(&row.spec(), &[server.address()], &around);
        let (returned, ended) = talk(&mut front.connect(), row.what);
        row.holds(&front, returned, ended.is_some(), false);
    }
}

#[test]
fn upgraded_connections_last_as_long_as_policy_allows() {
    for row in ROWS {
        let server = Server::start(Backend::default()).expect("loopback");
        let front =
            FrontProxy::outbound(&row.spec(), &[server.address()], &FrontOptions::default());
        let (returned, ended) = talk(&mut upgraded(front.address()), row.what);
        row.holds(&front, returned, ended.is_some(), true);
    }
}

#[test]
fn tunnels_of_http2_last_as_long_as_policy_allows() {
    let script: http2::Script =
        |_, number| if number == 0 { ServerBehaviour::Good } else { ServerBehaviour::Echo };
    for row in ROWS {
        let (_server, front) = http2_front(&row.spec(), script);
        let (returned, ended) = http2::tunnel(front.address(), row.what);
        row.holds(&front, returned, ended.is_some(), true);
    }
}

/// If the server begins no response, the client must get 504 after the default wait, unless the policy sets a
/// timeout for the response. The default wait must not end a response that has begun.
#[test]
fn a_server_that_begins_no_response_is_not_waited_for_without_end() {
    let around = FrontOptions { arguments: &["--response-wait-s", "1"], ..FrontOptions::default() };
    let server = |script| crate::proxied_servers::server(script);
    let answered = |spec: &str, script: crate::proxied_servers::Script, limit: Duration| {
        let server = server(script);
        let front = FrontProxy::outbound(spec, &[server.address()], &around);
        let mut stream = front.connect();
        stream.set_read_timeout(Some(limit)).expect("a socket");
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
            .expect("it reads");
        let mut answer = Vec::new();
        // After the read timeout, `answer` contains the bytes that were read until then.
        let _over = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let begun = Instant::now();
    let hung =
        answered("  timeouts: {stream: 1h}\n", |_| FaultyAct::Stall, Duration::from_secs(30));
    assert!(
        hung.starts_with("HTTP/1.1 504 ") && hung.contains("leno-error: stalled\r\n"),
        "{hung}"
    );
    let after = begun.elapsed().as_secs_f64();
    assert!((1.0..20.0).contains(&after), "after {after} s");
    // This is longer than twice the wait.
    let limit = Duration::from_secs(3);
    let allowed = answered("  timeouts: {response: 1h}\n", |_| FaultyAct::Stall, limit);
    assert_eq!(allowed, "", "the policy's timeout replaces the default wait");
    let begun = answered("  timeouts: {stream: 1h}\n", |_| FaultyAct::StallBody, limit);
    assert!(begun.starts_with("HTTP/1.1 200 ") && !begun.contains("leno-error"), "{begun}");
}
