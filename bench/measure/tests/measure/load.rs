//! Runs the load generator against servers that work and servers that fail.

use std::time::Duration;

use leno_measure::load::{Pace, Plan, run};
use leno_testkit::peer::{Backend, Server};

#[test]
fn every_request_of_the_schedule_is_sent_and_counted() {
    let server = Server::start(Backend::default()).unwrap();
    let mut plan = Plan::new(server.url("/?size=1024"), 500.0, Duration::from_millis(400));
    for new_connection in [false, true] {
        plan.new_connection = new_connection;
        let report = run(&plan).unwrap();
        assert_eq!((report.requests, report.errors), (200, 0), "{report:?}");
        assert_eq!(report.body_bytes, 200 * 1024);
        assert_eq!(report.connections_opened, if new_connection { 200 } else { 16 });
        assert!(report.latency_us.p50 > 0 && report.latency_us.p50 <= report.latency_us.max);
    }
}

#[test]
fn paths_are_asked_for_in_turn() {
    let server = Server::start(Backend::default()).unwrap();
    let mut plan = Plan::new(server.url("/"), 100.0, Duration::from_millis(400));
    plan.connections = 1;
    plan.paths = vec!["/?size=1".into(), "/?size=10".into(), "/?size=100".into()];
    let report = run(&plan).unwrap();
    // 40 requests: 14 of the first path, 13 of each of the other two.
    assert_eq!((report.requests, report.errors), (40, 0), "{report:?}");
    assert_eq!(report.body_bytes, 14 + 130 + 1300);
    // The first path is requested by the priming request, which is not counted.
    plan.primed = true;
    let report = run(&plan).unwrap();
    assert_eq!((report.requests, report.errors), (40, 0), "{report:?}");
    assert_eq!((report.body_bytes, report.connections_opened), (13 + 140 + 1300, 1));
    plan.protocol = leno_measure::load::Protocol::Http2;
    assert!(run(&plan).is_err(), "only HTTP/1.1 has paths");
}

#[test]
fn warm_up_is_not_counted_and_threads_share_the_rate() {
    let server = Server::start(Backend::default()).unwrap();
    let mut plan = Plan::new(server.url("/"), 1000.0, Duration::from_millis(200));
    plan.warm_up = Duration::from_millis(100);
    plan.threads = 2;
    let report = run(&plan).unwrap();
    assert_eq!((report.requests, report.errors), (200, 0), "{report:?}");
}

#[test]
fn a_stalled_server_shows_in_all_requests_that_were_due_meanwhile() {
    let server = Server::start(Backend::default()).unwrap();
    // With one connection, 100 ms for a response, and 100 requests a second, the queue grows until the end.
    let mut plan = Plan::new(server.url("/?delay_ms=100"), 100.0, Duration::from_millis(500));
    plan.connections = 1;
    let report = run(&plan).unwrap();
    assert!(report.latency_us.p50 >= 300_000, "{report:?}");
    assert!(report.errors > 0 && report.errors == report.unsent(), "{report:?}");
}

#[test]
fn a_backlog_that_is_full_is_no_failure_of_the_server() {
    let server = Server::start(Backend::default()).unwrap();
    // Ten million requests are due in half a second; the backlog holds two million of them.
    let mut plan = Plan::new(server.url("/?delay_ms=10"), 20_000_000.0, Duration::from_millis(500));
    plan.connections = 1;
    let report = run(&plan).unwrap();
    assert!(report.errors_by_kind.contains_key("backlog_full"), "{report:?}");
    assert!(report.errors < report.requests && report.errors == report.unsent(), "{report:?}");
}

#[test]
fn failures_are_told_apart() {
    let server = Server::start(Backend::default()).unwrap();
    let kinds =
        [("/?status=503", "status_5xx"), ("/?reset=1", "reset"), ("/?close=half", "closed_early")];
    for (path, kind) in kinds {
        let plan = Plan::new(server.url(path), 100.0, Duration::from_millis(100));
        let report = run(&plan).unwrap();
        assert_eq!(report.errors_by_kind.get(kind), Some(&10), "{path}: {report:?}");
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let plan = Plan::new(format!("http://{free}/"), 100.0, Duration::from_millis(50));
    assert_eq!(run(&plan).unwrap().errors_by_kind.get("connect"), Some(&5));
}

/// Half of the pages of a shop redirect their visitor.
#[test]
fn a_redirect_is_an_answer() {
    let server = Server::start(Backend::default()).unwrap();
    for status in [302, 304] {
        let url = server.url(&format!("/?status={status}"));
        let report = run(&Plan::new(url, 100.0, Duration::from_millis(100))).unwrap();
        assert_eq!((report.requests, report.errors), (10, 0), "{status}: {report:?}");
    }
}

#[test]
fn a_closed_loop_runs_as_fast_as_it_can() {
    let server = Server::start(Backend::default()).unwrap();
    let mut plan = Plan::new(server.url("/"), 1.0, Duration::from_millis(200));
    plan.pace = Pace::Saturate;
    let report = run(&plan).unwrap();
    assert!(report.requests > 16 && report.errors == 0, "{report:?}");
    assert_eq!(report.rate_per_s, None);
}

#[test]
fn plans_that_cannot_run_say_why() {
    for url in ["https://a/", "a", "http://"] {
        assert!(run(&Plan::new(url, 1.0, Duration::from_millis(1))).is_err(), "{url}");
    }
    assert!(run(&Plan::new("http://127.0.0.1:1/", 0.0, Duration::from_millis(1))).is_err());
}
