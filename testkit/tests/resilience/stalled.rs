//! Tests clients and servers that do not read. Their streams share connections with the streams of others, which
//! must be served all the time.

use http::Request;
use leno_testkit::wait;

use crate::front::{FrontOptions, FrontProxy};
use crate::http2::{self, LIMIT, Server, ServerBehaviour, Upload};

/// The number of streams of each client that does not read: much more data than fits into a connection's window.
const STREAMS: usize = 60;
/// The number of uploads that the server does not read.
const UPLOADS: usize = 40;
/// The length of a response: many times the window of a stream.
const LARGE: usize = 3 << 20;

fn front(server: &Server) -> FrontProxy {
    let around = FrontOptions { protocol: "kubernetes.io/h2c", ..FrontOptions::default() };
    FrontProxy::outbound("  timeouts: {}\n", &[server.address], &around)
}

fn request(method: &str) -> Request<()> {
    Request::builder().method(method).uri("http://web/").body(()).expect("a request")
}

/// Two clients request large responses, but permit the proxy to send none of their data. Other clients must get their
/// responses nevertheless.
#[test]
fn clients_without_a_window_do_not_keep_others_from_their_responses() {
    let server = Server::start(|_, _| ServerBehaviour::Large(LARGE));
    let front = front(&server);
    let stalled: Vec<_> =
        (0..2).map(|_| http2::hold_responses(front.address(), STREAMS).unwrap()).collect();
    for _ in 0..3 {
        let reply = http2::ask(front.address(), request("GET"), Upload::default());
        assert_eq!((reply.status, reply.bytes, reply.error), (200, LARGE, None));
    }
    assert_eq!(front.metric(&["leno_http2_abuse_total", "stalled-stream"]), 0.0);
    drop(stalled);
}

/// Uploads that the server does not read use up its connection window. The proxy must open another connection.
#[test]
fn uploads_that_are_not_read_do_not_keep_others_from_uploading() {
    let script = |_, place| {
        if place < UPLOADS { ServerBehaviour::Stall } else { ServerBehaviour::AfterBody }
    };
    let server = Server::start(script);
    let front = front(&server);
    let stalled = http2::hold_uploads(front.address(), UPLOADS).unwrap();
    wait::until("all uploads to arrive", LIMIT, || {
        Ok((server.seen().len() >= UPLOADS).then_some(()))
    })
    .unwrap();
    wait::until("an upload of another client", LIMIT, || {
        // Requests that arrive before the proxy has noticed may still use the stuck connection, so this is
        // repeated.
        let reply = http2::upload(front.address(), request("POST"), LARGE);
        Ok((reply.status == 200).then_some(()))
    })
    .unwrap();
    assert!(server.connections() > 1);
    drop(stalled);
}
