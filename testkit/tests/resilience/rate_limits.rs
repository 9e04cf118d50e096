//! Tests rate limits of a workload: which requests pass, on any connection and worker.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;

use leno_testkit::peer::FaultyAct;

use crate::front::FrontProxy;
use crate::proxied_servers::{ProxiedServers, get, server};

const WORKERS: u16 = 4;

#[test]
fn a_workload_accepts_as_many_requests_as_its_rate_limit() {
    let world =
        ProxiedServers::inbound("  limits: [{requests: 5, per: 1h}]\n", |_| FaultyAct::Good);
    for number in 0..5 {
        assert!(world.get(&number.to_string()).is_good());
    }
    let answer = world.get("sixth");
    assert_eq!((answer.status, answer.header("leno-error")), (429, Some("rate-limited")));
    let wait: u32 = answer.header("retry-after").and_then(|value| value.parse().ok()).unwrap_or(0);
    assert!((1..=720).contains(&wait), "{answer:?}");
    assert_eq!(world.seen().len(), 5);
    assert_eq!(world.metric(&["leno_rate_limited_total"]), 1.0);

    let by_header = "  limits: [{requests: 2, per: 1h, by: {header: X-User}}]\n";
    let world = ProxiedServers::inbound(by_header, |_| FaultyAct::Good);
    for user in ["a", "b"] {
        for number in 0..3 {
            let answer = world.ask("GET", "1", &format!("X-User: {user}\r\n"), "");
            assert_eq!(answer.status, if number < 2 { 200 } else { 429 }, "{user} {number}");
        }
    }
}

/// How many requests per hour the workload accepts in the tests below.
const LIMIT: usize = 24;

/// Sends another request on a connection; returns the status.
fn ask(client: &mut TcpStream, user: &str) -> u16 {
    write!(client, "GET /it HTTP/1.1\r\nHost: web\r\nX-User: {user}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    let head = String::from_utf8(answer).unwrap().to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.and_then(|length| length.trim().parse().ok()).unwrap_or(0);
    client.read_exact(&mut vec![0; length]).unwrap();
    head.split(' ').nth(1).unwrap().parse().unwrap()
}

fn front(by: &str) -> FrontProxy {
    let application = server(|_| FaultyAct::Good);
    let limits = format!("  limits: [{{requests: {LIMIT}, per: 1h{by}}}]\n");
    FrontProxy::inbound_of(WORKERS, &limits, application.address())
}

/// A client on one connection, and therefore on one worker, may use the whole limit.
#[test]
fn one_connection_may_use_all_of_a_limit() {
    for by in ["", ", by: {header: X-User}"] {
        let front = front(by);
        let mut client = front.connect();
        for number in 0..LIMIT {
            assert_eq!(ask(&mut client, "a"), 200, "{number} {by}");
        }
        assert_eq!(ask(&mut client, "a"), 429, "{by}");
        // The other workers use the same counts.
        for _ in 0..4 * WORKERS {
            assert_eq!(get(&front, "late").status, if by.is_empty() { 429 } else { 200 });
            assert_eq!(ask(&mut front.connect(), "a"), 429, "{by}");
        }
    }
}

/// The connections of all workers together may send exactly as many requests as the limit permits.
#[test]
fn workers_share_a_limit_exactly() {
    for by in ["", ", by: {header: X-User}"] {
        let front = front(by);
        let mut clients: Vec<_> = (0..4 * WORKERS).map(|_| front.connect()).collect();
        let mut passed = 0;
        for _ in 0..LIMIT {
            for client in &mut clients {
                passed += usize::from(ask(client, "a") == 200);
            }
        }
        assert_eq!(passed, LIMIT, "{by}");
    }
}
