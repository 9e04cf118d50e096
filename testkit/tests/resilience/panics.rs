//! Tests what a panic ends: one request, one connection, or the whole proxy if the proxy could not serve any more.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use http::Request;
use leno_testkit::peer::FaultyAct;
use leno_testkit::proxy::Proxy;
use leno_testkit::wait;

use crate::front::{FrontOptions, FrontProxy};
use crate::http2::{self, ServerBehaviour};
use crate::proxied_servers;

/// How long it may take until the proxy has released what a panicked task held.
const LIMIT: Duration = Duration::from_secs(20);

/// How many panics one proxy causes: more than the limit on requests, and more than are logged individually.
const PANICS: usize = 20;

const POLICY: &str = "  limits: {requests: 3, pending: 0}\n";

const HEAD: &str = "HTTP/1.1\r\nHost: web\r\nx-id: 1\r\n";

/// Reads until the connection ends, by a reset or a close.
fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let _reset = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn begin(front: &FrontProxy, request: &str) -> TcpStream {
    let mut stream = front.connect();
    stream.write_all(request.as_bytes()).expect("the proxy reads");
    stream
}

/// Checks that all requests except `left` were released, and that this many panics were counted.
fn settled(front: &FrontProxy, panics: usize, left: f64) {
    wait::until("the proxy to have nothing more in progress", LIMIT, || {
        Ok((front.metric(&["leno_busy"]) == left).then_some(()))
    })
    .expect("busy again");
    assert_eq!(front.metric(&["leno_panics_total"]), panics as f64);
    let log = front.log();
    let lines = log.lines().filter(|line| line.contains("a task panicked")).count();
    assert!(lines > 0 && lines <= panics, "{lines} lines for {panics} panics: {log}");
    assert!(log.contains("proxy/transport/src/task.rs:"), "no location: {log}");
}

#[test]
fn a_panic_ends_a_connection_of_http1_alone() {
    let server = proxied_servers::server(|_| FaultyAct::Good);
    let around = FrontOptions { panic: "request=/panic", ..FrontOptions::default() };
    let front = FrontProxy::outbound(POLICY, &[server.address()], &around);
    let mut upload = begin(&front, &format!("POST /up {HEAD}Content-Length: 4\r\n\r\nab"));
    for _ in 0..PANICS {
        let ended = rest(begin(&front, &format!("GET /panic {HEAD}\r\n")));
        assert_eq!(ended, "", "a request that panicked was answered");
    }
    settled(&front, PANICS, 1.0);
    upload.write_all(b"cd").expect("the proxy reads");
    upload.shutdown(std::net::Shutdown::Write).expect("it is open");
    let answer = rest(upload);
    assert!(answer.starts_with("HTTP/1.1 200 "), "a request beside has failed: {answer}");
    settled(&front, PANICS, 0.0);
}

#[test]
fn a_panic_ends_a_stream_of_http2_alone() -> Result<()> {
    let server = http2::Server::start(|_, _| ServerBehaviour::AfterBody);
    let protocol = "kubernetes.io/h2c";
    let around = FrontOptions { panic: "request=/panic", protocol, ..FrontOptions::default() };
    let front = FrontProxy::outbound(POLICY, &[server.address], &around);
    http2::runtime().block_on(async {
        let (mut requests, connection) = http2::connect(front.address()).await?;
        tokio::spawn(async move { connection.await.unwrap_or_default() });
        let post = Request::post("http://web/up").header("x-id", "up").body(())?;
        let (beside, mut body) = requests.send_request(post, false)?;
        for _ in 0..PANICS {
            let get = Request::get("http://web/panic").body(())?;
            requests = requests.ready().await?;
            let ended = requests.send_request(get, true)?.0.await;
            ensure!(ended.is_err_and(|error| error.is_reset()), "its stream was not reset");
        }
        body.send_data(Bytes::from_static(b"ab"), true)?;
        ensure!(beside.await?.status() == 200, "a stream beside has failed");
        Ok(())
    })?;
    assert_eq!((server.connections(), server.seen()), (1, vec!["up".to_owned()]));
    settled(&front, PANICS, 0.0);
    Ok(())
}

/// A panic in the encoder of a server's connection leaves the encoder's table half changed. The proxy must close
/// that connection, and use another one for the next requests.
#[test]
fn a_panic_within_a_shared_connection_ends_that_connection() {
    let server = http2::Server::start(|_, _| ServerBehaviour::AfterBody);
    let around = FrontOptions {
        panic: "section=/panic",
        protocol: "kubernetes.io/h2c",
        ..FrontOptions::default()
    };
    let front = FrontProxy::outbound(POLICY, &[server.address], &around);
    let get = |path: &str| {
        let request = Request::get(format!("http://web{path}")).header("x-id", path).body(());
        http2::ask(front.address(), request.expect("a request"), http2::Upload::default())
    };
    assert_eq!(get("/one").status, 200);
    assert_eq!(server.connections(), 1);
    let panicked = get("/panic");
    assert!(panicked.error.is_some(), "{panicked:?}");
    for path in ["/two", "/three"] {
        assert_eq!(get(path).status, 200);
    }
    assert_eq!(server.connections(), 2);
    assert_eq!(server.seen(), ["/one", "/two", "/three"]);
    settled(&front, 1, 0.0);
}

/// The admin server can be reached from the network, so a panic in it must not end the proxy.
#[test]
fn a_panic_of_the_admin_server_ends_that_connection_alone() {
    let server = proxied_servers::server(|_| FaultyAct::Good);
    let around = FrontOptions { panic: "admin=/live", ..FrontOptions::default() };
    let front = FrontProxy::outbound(POLICY, &[server.address()], &around);
    for _ in 0..PANICS {
        let mut probe = TcpStream::connect(front.admin()).expect("the admin server listens");
        probe.write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
        assert_eq!(rest(probe), "", "a request that panicked was answered");
    }
    let answer = rest(begin(&front, &format!("GET / {HEAD}Connection: close\r\n\r\n")));
    assert!(answer.starts_with("HTTP/1.1 200 "), "the proxy serves no more: {answer}");
    settled(&front, PANICS, 0.0);
}

/// A worker without its event loop would serve nothing, so the process ends and logs the reason.
#[test]
fn a_panic_of_a_worker_ends_the_process() -> Result<()> {
    let started = Proxy::start_panicking(&[], "sweep=", |address, admin| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
             spec:\n  workers: 2\n  admin: \"{admin}\"\n  mtls: disabled\n  \
             inbound: {{listen: \"{address}\", application: \"127.0.0.1:9\"}}\n"
        )
    });
    let ended = match started {
        Err(error) => error.to_string(),
        // The proxy listened before the panic ended it.
        Ok(mut proxy) => wait::until("leno-proxy to end", LIMIT, || proxy.ended())?,
    };
    ensure!(ended.contains("signal: 6"), "not aborted: {ended}");
    ensure!(ended.contains("the proxy panicked and ends"), "no word of it: {ended}");
    Ok(())
}
