//! Tests traffic policies and rate limits, which the real `leno-proxy` enforces: what clients see, and what the
//! servers have counted.
//!
//! ```text
//!   client ──► leno-proxy --static, with a policy ──► servers that fail, stall, cut and babble
//! ```

mod balancing;
mod bounds;
mod causes;
mod confined;
mod connecting;
mod connections;
mod departed_clients;
mod detection;
mod ejection;
mod faults;
mod forged;
mod front;
mod grpc;
mod hedging;
mod http2;
mod locality;
mod loops;
mod panics;
mod percents;
mod proxied_servers;
mod rate_limits;
mod stalled;
mod timeouts;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::time::Instant;

use leno_testkit::peer::FaultyAct;

use crate::proxied_servers::{ProxiedServers, Script};

const REQUESTS: u32 = 300;

/// How many times each ID was seen.
pub(crate) fn counted(seen: &[String]) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    for id in seen {
        *counts.entry(id.as_str()).or_default() += 1;
    }
    counts
}

pub(crate) fn fails_half(number: u32) -> FaultyAct {
    if number.is_multiple_of(2) { FaultyAct::Status(503) } else { FaultyAct::Good }
}

/// Of the endpoints, one fails half of its requests, one stalls, one closes, one sends garbage, and two work. With
/// four retries, every request must be served.
#[test]
fn retries_keep_the_faults_of_endpoints_from_clients() {
    let world = ProxiedServers::outbound(
        "  retries:\n    attempts: 4\n    on: [5xx, reset, timeout]\n    perTryTimeout: 250ms\n    \
         backoff: 1ms\n    budget: {percent: 100, minPerSecond: 100}\n",
        &[
            fails_half,
            |_| FaultyAct::Stall,
            |_| FaultyAct::Close,
            |_| FaultyAct::Garbage,
            |_| FaultyAct::Good,
            |_| FaultyAct::Good,
        ],
    );
    let bad: Vec<_> = (0..REQUESTS)
        .map(|number| world.get(&number.to_string()))
        .filter(|answer| !answer.is_good())
        .collect();
    assert!(bad.is_empty(), "{} of {REQUESTS}, such as {:?}", bad.len(), bad.first());
    let seen = world.seen();
    let most = counted(&seen).values().copied().max();
    assert!(most <= Some(5), "a request was tried {most:?} times");
    assert!(seen.len() as u32 > REQUESTS, "nothing was tried again");
    let retries = seen.len() as u32 - REQUESTS;
    assert_eq!(world.metric(&["leno_retries_total"]), f64::from(retries));
}

/// A POST must be sent only once, whatever its outcome.
#[test]
fn no_request_is_sent_twice_that_policy_does_not_allow() {
    let faulty: &[Script] = &[
        fails_half,
        |_| FaultyAct::Close,
        |_| FaultyAct::Stall,
        |_| FaultyAct::Garbage,
        |_| FaultyAct::CutBody,
    ];
    let retries = "  retries:\n    attempts: 4\n    on: [5xx, reset, timeout]\n    \
        perTryTimeout: 250ms\n    backoff: 1ms\n    budget: {percent: 1000, minPerSecond: 1000}\n";
    let world = ProxiedServers::outbound(retries, faulty);
    let mut failed = 0;
    for number in 0..60 {
        let answer = world.ask("POST", &number.to_string(), "", "do it");
        failed += u32::from(!answer.is_good());
    }
    let seen = world.seen();
    assert!(counted(&seen).values().all(|times| *times == 1), "{:?}", counted(&seen));
    assert!(failed > 0);
    assert!(world.metric(&["leno_retries_denied_total", "method"]) > 0.0);

    // If the policy permits it, the POST is sent again.
    let allowed = format!("{retries}    nonIdempotent: true\n");
    let world = ProxiedServers::outbound(&allowed, &[fails_half, |_| FaultyAct::Good]);
    for number in 0..60 {
        assert!(world.ask("POST", &number.to_string(), "", "do it").is_good());
    }
    assert!(world.seen().len() > 60);
}

#[test]
fn without_a_policy_nothing_that_was_answered_is_sent_again() {
    let world = ProxiedServers::outbound(
        "  timeouts: {request: 1m}\n",
        &[fails_half, |_| FaultyAct::Status(500)],
    );
    for number in 0..100 {
        world.get(&number.to_string());
    }
    assert_eq!(world.seen().len(), 100);
}

/// All servers fail. They must receive the requests, and only as many retries as the budget allows.
#[test]
fn retries_stay_within_the_budget() {
    let world = ProxiedServers::outbound(
        "  retries:\n    attempts: 5\n    on: [503]\n    backoff: 1ms\n    \
         budget: {percent: 10, minPerSecond: 2}\n",
        &[|_| FaultyAct::Status(503), |_| FaultyAct::Status(503)],
    );
    let began = Instant::now();
    for number in 0..REQUESTS {
        assert_eq!(world.get(&number.to_string()).status, 503);
    }
    let seconds = began.elapsed().as_secs_f64() + 1.0;
    let retries = world.seen().len() as f64 - f64::from(REQUESTS);
    let most = f64::from(REQUESTS) * 0.1 + seconds * 2.0;
    assert!(retries <= most, "{retries} retries, {most} allowed");
    assert!(retries >= f64::from(REQUESTS) * 0.1 - 1.0, "{retries} retries");
    assert!(world.metric(&["leno_retries_denied_total", "budget"]) > 0.0);
}

#[test]
fn retry_after_is_obeyed_or_its_response_forwarded() {
    let retries = "  retries: {attempts: 1, on: [429], backoff: 1ms, maxRetryAfter: 2s}\n";
    let first_later: Script =
        |number| if number == 0 { FaultyAct::Later(1) } else { FaultyAct::Good };
    let world = ProxiedServers::outbound(retries, &[first_later]);
    let began = Instant::now();
    assert!(world.get("1").is_good());
    assert!(began.elapsed().as_millis() >= 1_000, "after {:?}", began.elapsed());
    let world = ProxiedServers::outbound(retries, &[|_| FaultyAct::Later(60)]);
    let answer = world.get("1");
    assert_eq!((answer.status, answer.header("retry-after")), (429, Some("60")));
    assert_eq!(world.seen().len(), 1);
}

#[test]
fn timeouts_end_what_stalls() {
    let world =
        ProxiedServers::outbound("  timeouts: {response: 100ms}\n", &[|_| FaultyAct::Stall]);
    let answer = world.get("1");
    assert_eq!((answer.status, answer.header("leno-error")), (504, Some("response-timeout")));
    let world = ProxiedServers::outbound("  timeouts: {request: 100ms}\n", &[|_| FaultyAct::Stall]);
    let answer = world.get("1");
    assert_eq!((answer.status, answer.header("leno-error")), (504, Some("deadline")));
}

/// One of three endpoints fails every request: it cuts off bodies, responds 500, or sends garbage. It must be ejected
/// after three failures.
#[test]
fn an_endpoint_that_fails_is_ejected() {
    for bad in
        [(|_| FaultyAct::CutBody) as Script, |_| FaultyAct::Status(500), |_| FaultyAct::Garbage]
    {
        let world = ProxiedServers::outbound(
            "  balancing: {algorithm: RoundRobin}\n  \
             ejection: {consecutiveFailures: 3, base: 1h, max: 1h}\n",
            &[bad, |_| FaultyAct::Good, |_| FaultyAct::Good],
        );
        let answers = (0..REQUESTS).map(|number| world.get(&number.to_string()));
        let failed = answers.filter(|answer| !answer.is_good()).count();
        assert_eq!((failed, world.backends[0].seen().len()), (3, 3));
        assert_eq!(world.metric(&["leno_ejections_total"]), 1.0);
    }
}

#[test]
fn the_last_endpoints_are_never_ejected() {
    let world = ProxiedServers::outbound(
        "  ejection: {consecutiveFailures: 1, base: 1h, max: 1h, maxPercent: 100}\n",
        &[|_| FaultyAct::Status(500), |_| FaultyAct::Status(500)],
    );
    for number in 0..50 {
        assert_eq!(world.get(&number.to_string()).status, 500);
    }
    assert_eq!(world.seen().len(), 50);
}

#[test]
fn a_hash_and_a_session_keep_requests_together() {
    let good: &[Script] = &[|_| FaultyAct::Good, |_| FaultyAct::Good, |_| FaultyAct::Good];
    let world = ProxiedServers::outbound(
        "  balancing: {algorithm: Maglev, hash: {header: X-User}}\n",
        good,
    );
    for number in 0..90 {
        let user = number % 30;
        let id = format!("{number}-{user}");
        assert!(world.ask("GET", &id, &format!("X-User: {user}\r\n"), "").is_good());
    }
    let mut places: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (place, backend) in world.backends.iter().enumerate() {
        for id in backend.seen() {
            let user = id.split('-').next_back().unwrap_or_default().to_owned();
            places.entry(user).or_default().insert(place);
        }
        assert!(!backend.seen().is_empty(), "server {place} has no user");
    }
    assert!(places.values().all(|of_user| of_user.len() == 1), "{places:?}");

    let world = ProxiedServers::outbound("  balancing: {sessionCookie: stick}\n", good);
    let first = world.get("first");
    let cookie = first.header("set-cookie").expect("a session begins").to_owned();
    let pair = cookie.split(';').next().unwrap_or_default();
    for _ in 0..30 {
        let again = world.ask("GET", "same", &format!("Cookie: a=b; {pair}\r\n"), "");
        assert!(again.is_good() && again.header("set-cookie").is_none(), "{again:?}");
    }
    let with: Vec<_> = world.backends.iter().map(|backend| backend.seen().len()).collect();
    assert_eq!(with.iter().filter(|n| **n > 0).count(), 1, "{with:?}");
}

#[test]
fn turns_are_taken() {
    let world = ProxiedServers::outbound(
        "  balancing: {algorithm: RoundRobin}\n",
        &[|_| FaultyAct::Good, |_| FaultyAct::Good, |_| FaultyAct::Good],
    );
    for number in 0..30 {
        assert!(world.get(&number.to_string()).is_good());
    }
    assert!(world.backends.iter().all(|backend| backend.seen().len() == 10));
}

#[test]
fn faults_are_made() {
    let world = ProxiedServers::outbound(
        "  faults:\n    abort: {status: 418, percent: 100}\n    delay: {by: 1ms, percent: 100}\n",
        &[|_| FaultyAct::Good],
    );
    for number in 0..20 {
        let answer = world.get(&number.to_string());
        assert_eq!((answer.status, answer.header("leno-error")), (418, Some("fault-abort")));
    }
    assert!(world.seen().is_empty());
    assert_eq!(world.metric(&["leno_faults_total", "abort"]), 20.0);
    assert_eq!(world.metric(&["leno_faults_total", "delay"]), 20.0);
}

#[test]
fn requests_over_a_limit_are_refused() {
    let world = ProxiedServers::outbound(
        "  limits: {requests: 2, pending: 0}\n",
        &[|_| FaultyAct::Stall, |_| FaultyAct::Stall],
    );
    let held: Vec<_> =
        (0..2).map(|number| world.send("GET", &number.to_string(), "", "")).collect();
    leno_testkit::wait::until("both to arrive", std::time::Duration::from_secs(20), || {
        Ok((world.seen().len() == 2).then_some(()))
    })
    .expect("both arrive");
    let answer = world.get("third");
    assert_eq!((answer.status, answer.header("leno-error")), (503, Some("overloaded")));
    assert_eq!(world.seen().len(), 2);
    drop(held);
}

/// This works without a control plane and without identities, because the rules are about addresses, methods and
/// headers.
#[test]
fn a_workload_permits_what_its_authorization_policy_says() {
    let spec = "  rules:\n  - from: [{ipBlocks: [{cidr: 127.0.0.0/8}]}]\n    \
                to: [{methods: [GET], headers: [{name: x-role, values: [admin]}]}]\n";
    let world = ProxiedServers::authorized(spec, |_| FaultyAct::Good);
    let admin = "x-role: admin\r\n";
    assert!(world.ask("GET", "1", admin, "").is_good());
    for (method, headers) in [
        ("POST", admin.to_owned()),
        ("GET", String::new()),
        // Every line of a header counts. A header that Connection names does not reach the application.
        ("GET", format!("{admin}X-Role: guest\r\n")),
        ("GET", format!("{admin}Connection: x-role\r\n")),
    ] {
        let answer = world.ask(method, "2", &headers, "");
        let found = (answer.status, answer.header("leno-error"));
        assert_eq!(found, (403, Some("authorization-denied")), "{method} {headers}");
    }
    assert_eq!(world.seen(), ["1"]);
    let denied = ["leno_authorization_total", "decision=\"deny\",policy=\"not-allowed\""];
    assert_eq!(world.metric(&denied), 4.0);
    let elsewhere = ProxiedServers::authorized(
        "  rules: [{from: [{ipBlocks: [{cidr: 10.0.0.0/8}]}]}]\n",
        |_| FaultyAct::Good,
    );
    assert_eq!(elsewhere.get("3").status, 403);
}

/// If a body is too large to be kept, its request is sent only once, and that is counted.
#[test]
fn a_body_that_is_not_kept_is_not_sent_again() {
    let world = ProxiedServers::outbound(
        "  retries: {attempts: 3, on: [503], nonIdempotent: true, backoff: 1ms}\n",
        &[|_| FaultyAct::Status(503)],
    );
    let small = world.ask("POST", "small", "", &"x".repeat(1_000));
    assert_eq!(small.status, 503);
    let large = "x".repeat(4_000_000);
    let mut stream = world.send("POST", "large", "", &large);
    let mut answer = Vec::new();
    // The server may close while the body is being sent, so the error is ignored.
    let _cut = stream.read_to_end(&mut answer);
    let seen = world.seen();
    let counts = counted(&seen);
    assert_eq!((counts["small"], counts["large"]), (4, 1));
    assert!(world.metric(&["leno_retries_denied_total", "body"]) >= 1.0);
}
