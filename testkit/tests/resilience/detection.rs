//! Tests requests that some servers accept but detection does not recognise, for an application with a rate limit
//! and without a declared protocol.

use std::io::{Read, Write};

use leno_testkit::peer::FaultyAct;

use crate::proxied_servers::ProxiedServers;

/// Request lines that nginx, Node.js, Go or Python accept.
const BEGINNINGS: [&str; 9] = [
    "\r\nGET /it HTTP/1.1",
    "\nGET /it HTTP/1.1",
    " GET /it HTTP/1.1",
    "\tGET /it HTTP/1.1",
    "GET  /it HTTP/1.1",
    "GET /it  HTTP/1.1",
    "get /it HTTP/1.1",
    "GETGETGETGETGETGETGETGETGETGETGET /it HTTP/1.1",
    "GET /it",
];

#[test]
fn no_request_bypasses_a_limit_on_a_port_with_detection() {
    let world =
        ProxiedServers::inbound("  limits: [{requests: 1, per: 1h}]\n", |_| FaultyAct::Good);
    assert_eq!(world.get("first").status, 200);
    for (number, beginning) in BEGINNINGS.into_iter().enumerate() {
        let mut client = world.connect();
        let request =
            format!("{beginning}\r\nHost: web\r\nx-id: {number}\r\nConnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).expect("the proxy reads");
        let mut answer = Vec::new();
        // The proxy closes the connection with unread bytes, which causes a reset.
        let _reset = client.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(["400", "429"].contains(&status), "{beginning:?} is answered {answer:?}");
    }
    assert_eq!(world.seen(), ["first"]);
    assert!(world.metric(&["leno_errors_total", "request-line"]) >= 5.0);
}

/// An empty line before a request (RFC 9112 section 2.2) must hide the request neither from metrics nor from
/// limits.
#[test]
fn a_request_behind_an_empty_line_is_recognised_and_counted() {
    for limits in ["", "  limits: [{requests: 10, per: 1h}]\n"] {
        let world = ProxiedServers::inbound(limits, |_| FaultyAct::Good);
        let mut client = world.connect();
        let request = b"\r\nGET /it HTTP/1.1\r\nHost: web\r\nx-id: 1\r\nConnection: close\r\n\r\n";
        client.write_all(request).expect("the proxy reads");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer, and its end");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(world.seen(), ["1"]);
        assert_eq!(world.metric(&["leno_requests_total", "inbound", "status=\"200\""]), 1.0);
    }
}

/// The application has a rate limit. A protocol other than HTTP must not reach it, because its requests could not be
/// counted.
#[test]
fn other_protocols_do_not_reach_an_application_with_a_limit() {
    let world = ProxiedServers::inbound("  limits: [{requests: 1000}]\n", |_| FaultyAct::Good);
    for bytes in [&b"*1\r\n$4\r\nPING\r\n"[..], b"\x16\x03\x01\x02\x00\x01\x00", b"PING\r\n"] {
        let mut client = world.connect();
        client.write_all(bytes).expect("the proxy reads");
        let mut answer = Vec::new();
        let _reset = client.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 400 "), "{}", answer.escape_ascii());
    }
    assert!(world.seen().is_empty());
}
