//! Tests what happens when the worker's memory budget is used up.

use leno_transport::budget::{self, Budget, Charge, MIN_BUDGET};

use crate::support::{Lab, Settings};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Runs a test with a budget on a thread of its own, because a budget belongs to a thread.
fn with_budget(act: impl AsyncFnOnce() + Send + 'static) {
    let run = || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        Budget::new(MIN_BUDGET).enter();
        runtime.enable_all().start_paused(true).build().unwrap().block_on(act());
    };
    std::thread::spawn(run).join().unwrap();
}

#[test]
fn requests_are_refused_while_memory_is_short_and_served_again_afterwards() {
    with_budget(async || {
        let mut lab = Lab::new(Settings::default());
        lab.client.send(GET).await;
        let mut server = lab.server().await;
        server.expect(GET).await;
        let others = Charge::new(MIN_BUDGET);
        // Requests in progress continue.
        server.send(OK).await;
        lab.client.expect(OK).await;
        lab.client.send(GET).await;
        lab.client.expect_error(503, "memory-budget").await;
        server.expect_end().await;
        // The proxy does not wait for the rest of a head, because it would have to store the beginning.
        let mut other = Lab::new(Settings::default());
        other.client.send("GET /").await;
        other.client.expect_error(503, "memory-budget").await;
        other.expect_no_server().await;
        drop(others);
        let mut lab = Lab::new(Settings::default());
        lab.client.send(GET).await;
        let mut server = lab.server().await;
        server.send(OK).await;
        lab.client.expect(OK).await;
    });
}

#[test]
fn an_idle_connection_is_not_closed_while_memory_is_short() {
    with_budget(async || {
        let mut lab = Lab::new(Settings::default());
        let others = Charge::new(MIN_BUDGET);
        tokio::task::yield_now().await;
        drop(others);
        lab.client.send(GET).await;
        let mut server = lab.server().await;
        server.send(OK).await;
        lab.client.expect(OK).await;
    });
}

#[test]
fn a_body_in_progress_uses_the_smallest_buffers_while_memory_is_short() {
    with_budget(async || {
        let mut lab = Lab::new(Settings { pipe: 512 * 1024, ..Settings::default() });
        lab.client.send(GET).await;
        let mut server = lab.server().await;
        server.expect(GET).await;
        let _others = Charge::new(MIN_BUDGET);
        let length = 4 * 1024 * 1024;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let body = vec![b'x'; length];
        let writer = tokio::spawn(async move {
            server.send(head.as_bytes()).await;
            server.send(&body).await;
        });
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        assert!(!writer.is_finished(), "no back-pressure");
        let held = budget::charged() - MIN_BUDGET;
        assert!((1..=8 * 1024).contains(&held), "{held}");
        lab.client.expect(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")).await;
        lab.client.expect(vec![b'x'; length]).await;
        writer.await.unwrap();
        assert_eq!(lab.outcome().await.failure.map(|failure| failure.cause.label()), None);
        assert_eq!(budget::charged(), MIN_BUDGET);
    });
}
