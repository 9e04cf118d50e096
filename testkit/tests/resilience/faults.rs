//! Tests many parallel clients, and endpoints most of which are broken, each in a different way. Clients must see
//! what policy promises, and servers must not get more than policy allows.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use leno_testkit::peer::FaultyAct;

use crate::proxied_servers::{Answer, ProxiedServers, Script};
use crate::{counted, fails_half};

const CLIENTS: u32 = 8;
const REQUESTS: u32 = 60;

/// One server fails half of its requests, one stalls, two cut off each body by a close or a reset, one sends
/// garbage, and two work.
const SERVERS: &[Script] = &[
    fails_half,
    |_| FaultyAct::Stall,
    |_| FaultyAct::CutBody,
    |_| FaultyAct::ResetBody,
    |_| FaultyAct::Garbage,
    |_| FaultyAct::Good,
    |_| FaultyAct::Good,
];
/// The indexes of the servers that cut off bodies.
const CUTTERS: [usize; 2] = [2, 3];
/// The number of consecutive failures after which an endpoint is ejected.
const FAILURES: u32 = 3;
/// The number of retries in these policies, in addition to the first attempt.
const ATTEMPTS: u32 = 5;

/// Sends [`REQUESTS`] requests from each of several parallel clients. Returns the response to each.
fn load(world: &ProxiedServers, method: &'static str) -> Vec<(String, Answer)> {
    thread::scope(|scope| {
        let client = |client: u32| {
            scope.spawn(move || {
                let ask = |number: u32| {
                    let id = format!("{method}-{client}-{number}").to_ascii_lowercase();
                    let answer = world.ask(method, &id, "", "");
                    (id, answer)
                };
                (0..REQUESTS).map(ask).collect::<Vec<_>>()
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    })
}

/// A response that is cut off has already begun, so its request cannot be sent again. Retries hide all other
/// failures from clients, and an endpoint that cuts off bodies is ejected after three.
#[test]
fn clients_see_what_policy_promises() {
    let (percent, per_second) = (100, 50);
    let world = ProxiedServers::outbound(
        &format!(
            "  retries:\n    attempts: {ATTEMPTS}\n    on: [5xx, reset, timeout]\n    \
             perTryTimeout: 1s\n    backoff: 1ms\n    \
             budget: {{percent: {percent}, minPerSecond: {per_second}}}\n  \
             ejection: {{consecutiveFailures: {FAILURES}, base: 1h, max: 1h, maxPercent: 80}}\n"
        ),
        SERVERS,
    );
    let began = Instant::now();
    let answers = load(&world, "GET");
    let failed: BTreeSet<String> =
        answers.iter().filter(|(_, answer)| !answer.is_good()).map(|(id, _)| id.clone()).collect();
    let mut cut = BTreeSet::new();
    for place in CUTTERS {
        let seen = world.backends[place].seen();
        // When the endpoint was ejected, each client may have had a request in progress.
        assert!(!seen.is_empty() && seen.len() <= (FAILURES + CLIENTS) as usize, "{seen:?}");
        cut.extend(seen);
    }
    assert_eq!(failed, cut, "what failed is what was cut");
    let seen = world.seen();
    let most = counted(&seen).values().copied().max();
    assert!(most <= Some(1 + ATTEMPTS), "a request was sent {most:?} times");
    let (requests, seconds) = (CLIENTS * REQUESTS, began.elapsed().as_secs_f64() + 1.0);
    let retries = seen.len() as f64 - f64::from(requests);
    let allowed = f64::from(requests * percent) / 100.0 + seconds * f64::from(per_second);
    assert!(retries > 0.0 && retries <= allowed, "{retries} retries, {allowed} allowed");
    assert_eq!(world.metric(&["leno_retries_total"]), retries);
}

/// Under a policy that does not permit retries of non-idempotent requests, each POST must be sent only once.
#[test]
fn under_faults_non_idempotent_requests_are_sent_once() {
    let world = ProxiedServers::outbound(
        "  retries:\n    attempts: 5\n    on: [5xx, reset, timeout]\n    perTryTimeout: 1s\n    \
         backoff: 1ms\n    budget: {percent: 1000, minPerSecond: 1000}\n  \
         hedging: {delay: 1ms, copies: 3}\n  \
         ejection: {consecutiveFailures: 3, base: 1h, max: 1h, maxPercent: 80}\n",
        SERVERS,
    );
    let answers = load(&world, "POST");
    let seen = world.seen();
    assert!(counted(&seen).values().all(|times| *times == 1), "{:?}", counted(&seen));
    assert_eq!(seen.len(), answers.len());
    assert!(answers.iter().any(|(_, answer)| answer.is_good()));
    for place in CUTTERS {
        assert!(!world.backends[place].seen().is_empty(), "nothing reached server {place}");
    }
}

/// One of three endpoints takes sixty times as long. It must get few of the requests; with round robin it would
/// get a third.
#[test]
fn an_endpoint_that_is_slow_gets_few_requests() {
    let fast: Script = |_| FaultyAct::After(Duration::from_millis(5));
    let slow: Script = |_| FaultyAct::After(Duration::from_millis(300));
    let share = |policy: &str| {
        let world = ProxiedServers::outbound(policy, &[fast, fast, slow]);
        let answers = load(&world, "GET");
        assert!(answers.iter().all(|(_, answer)| answer.is_good()));
        world.backends[2].seen().len() as f64 / answers.len() as f64
    };
    let by_latency = share("  balancing: {algorithm: PeakEwma}\n");
    assert!(by_latency < 0.1, "{by_latency} of the requests");
    let in_turns = share("  balancing: {algorithm: RoundRobin}\n");
    assert!(in_turns > 0.3, "{in_turns} of the requests");
}

/// Connections of clients that send nothing must be closed after ten seconds, and counted.
#[test]
fn silent_clients_are_disconnected() {
    let world = ProxiedServers::outbound_with(
        "  timeouts: {stream: 1h}\n",
        &[|_| FaultyAct::Good],
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: TLSRoute\n\
         metadata: {name: r, namespace: t}\nspec:\n  \
         parentRefs: [{group: \"\", kind: Service, name: web}]\n  hostnames: [web.example]\n  \
         rules: [{backendRefs: [{name: web, port: 80}]}]\n",
    );
    let began = Instant::now();
    let mut clients: Vec<_> = (0..3).map(|_| world.connect()).collect();
    for client in &mut clients {
        let mut byte = [0];
        // The connection is reset or closed, without any byte.
        let read = std::io::Read::read(client, &mut byte);
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    assert!(began.elapsed() >= Duration::from_secs(10), "let go after {:?}", began.elapsed());
    assert_eq!(world.metric(&["leno_errors_total", "client-silent"]), 3.0);
    assert!(world.seen().is_empty());
}
