//! Tests requests whose response is late: which copies are sent, which response the client gets, and what happens
//! to the copies that lose.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use leno_testkit::peer::FaultyAct;
use leno_testkit::wait;
use nix::sys::socket::{setsockopt, sockopt};

use crate::counted;
use crate::proxied_servers::{ProxiedServers, Script};

const REQUESTS: u32 = 40;

/// A time that is longer than any wait of these tests.
const LONG: Duration = Duration::from_secs(20);

fn policy(hedging: &str, budget: &str) -> String {
    format!(
        "  balancing: {{algorithm: RoundRobin}}\n  hedging: {hedging}\n  \
         retries: {{on: [connect-failure], budget: {budget}}}\n"
    )
}

const FREE: &str = "{percent: 1000, minPerSecond: 1000}";

#[test]
fn an_endpoint_that_stalls_is_not_waited_for() {
    let world = ProxiedServers::outbound(
        &policy("{delay: 20ms}", FREE),
        &[|_| FaultyAct::Stall, |_| FaultyAct::Good],
    );
    for number in 0..REQUESTS {
        let answer = world.get(&number.to_string());
        assert!(answer.is_good(), "{answer:?}");
    }
    let seen = world.seen();
    assert!(counted(&seen).values().all(|times| *times <= 2), "{:?}", counted(&seen));
    // For each request that stalls, a copy is sent and wins. A copy that is sent to the stalled server loses. This
    // happens if the good server was tried first but was itself late, for example on a busy machine. Such a copy
    // may be cancelled before the server has received it.
    wait::until("all copies to have won, or lost and been given up", LONG, || {
        let [won, lost] =
            ["won", "lost"].map(|result| world.metric(&["leno_hedges_total", result]));
        let stalled = world.backends[0].seen().len();
        let are_counted = won > 0.0 && (won..=won + lost).contains(&(stalled as f64));
        let are_all = won + lost == world.metric(&["leno_hedges_total"]);
        Ok((are_all && are_counted && world.backends[0].given_up() == stalled).then_some(()))
    })
    .unwrap();
}

#[test]
fn no_more_copies_are_sent_than_policy_allows() {
    // This is long enough that all copies are sent before, even if the proxy does not run for a while.
    let late: Script = |_| FaultyAct::After(Duration::from_secs(1));
    for (copies, servers) in [(1, 3), (2, 3), (3, 5)] {
        let policy = policy(&format!("{{delay: 10ms, copies: {copies}}}"), FREE);
        let world = ProxiedServers::outbound(&policy, &vec![late; servers]);
        for number in 0..2 {
            assert!(world.get(&number.to_string()).is_good());
        }
        let seen = world.seen();
        let times: Vec<u32> = counted(&seen).values().copied().collect();
        assert_eq!(times, vec![1 + copies; 2]);
        let hedges = world.metric(&["leno_hedges_total"]);
        assert_eq!(hedges, f64::from(2 * copies));
    }
    // There are also no more copies than endpoints.
    let world = ProxiedServers::outbound(&policy("{delay: 10ms, copies: 3}", FREE), &[late, late]);
    assert!(world.get("1").is_good());
    assert_eq!(world.seen().len(), 2);
    assert_eq!(world.metric(&["leno_hedges_denied_total", "endpoints"]), 1.0);
}

#[test]
fn non_idempotent_requests_are_sent_once() {
    let late: Script = |_| FaultyAct::After(Duration::from_millis(100));
    let servers = &[late; 2];
    let world = ProxiedServers::outbound(&policy("{delay: 5ms}", FREE), servers);
    for number in 0..6 {
        assert!(world.ask("POST", &number.to_string(), "", "do it").is_good());
    }
    assert_eq!(world.seen().len(), 6);

    let allowed = policy("{delay: 5ms, nonIdempotent: true}", FREE);
    let world = ProxiedServers::outbound(&allowed, &[|_| FaultyAct::Stall, |_| FaultyAct::Good]);
    for number in 0..6 {
        assert!(world.ask("POST", &number.to_string(), "", "do it").is_good());
    }
    let seen = world.seen();
    assert!(counted(&seen).values().all(|times| *times <= 2), "{:?}", counted(&seen));
    assert!(seen.len() > 6, "no copy was sent");

    // If a body is too long to be kept for a copy, the request is sent only once.
    let world = ProxiedServers::outbound(&allowed, servers);
    assert!(world.ask("POST", "long", "", &"x".repeat(200_000)).is_good());
    assert_eq!(world.seen().len(), 1);
    assert_eq!(world.metric(&["leno_hedges_denied_total", "body"]), 1.0);
}

/// All endpoints are always late. They must receive only as many additional requests as the budget allows.
#[test]
fn copies_come_out_of_the_retry_budget() {
    let policy = policy("{delay: 1ms}", "{percent: 10, minPerSecond: 2}");
    let late: Script = |_| FaultyAct::After(Duration::from_millis(10));
    let world = ProxiedServers::outbound(&policy, &[late; 3]);
    let began = Instant::now();
    for number in 0..200 {
        assert!(world.get(&number.to_string()).is_good());
    }
    let seconds = began.elapsed().as_secs_f64() + 1.0;
    let copies = world.seen().len() as f64 - 200.0;
    assert!(copies <= 20.0 + 2.0 * seconds, "{copies} copies in {seconds} s");
    assert!(copies >= 19.0, "{copies} copies");
    assert!(world.metric(&["leno_hedges_denied_total", "budget"]) > 0.0);
}

/// A failure is not forwarded while another copy is in progress. If all copies fail, the last failure is
/// forwarded.
#[test]
fn a_failure_waits_for_a_better_answer() {
    // The copy is sent before the failure arrives, even if the proxy does not run for a while.
    let fails: Script = |_| FaultyAct::StatusAfter(503, Duration::from_millis(800));
    let slow: Script = |_| FaultyAct::After(Duration::from_millis(1600));
    let world = ProxiedServers::outbound(&policy("{delay: 20ms}", FREE), &[fails, slow]);
    // In two requests, each server is tried first once.
    for number in 0..2 {
        let answer = world.get(&number.to_string());
        assert!(answer.is_good(), "{answer:?}");
    }
    assert_eq!(world.seen().len(), 4);

    let world = ProxiedServers::outbound(&policy("{delay: 20ms}", FREE), &[fails, fails]);
    assert_eq!(world.get("1").status, 503);
    assert_eq!(world.seen().len(), 2);
}

/// The next bytes on the client's connection are parsed as the next request, no matter which copy answered the
/// request before.
#[test]
fn a_connection_goes_on_after_a_copy_has_answered() {
    let hedging = policy("{delay: 20ms, nonIdempotent: true}", FREE);
    let world = ProxiedServers::outbound(&hedging, &[|_| FaultyAct::Stall, |_| FaultyAct::Good]);
    let mut client = world.connect();
    let pipelined: String = (0..6)
        .map(|number| {
            format!(
                "POST /it HTTP/1.1\r\nHost: web\r\nx-id: {number}\r\nContent-Length: 3\r\n\r\nabc"
            )
        })
        .collect();
    client.write_all(pipelined.as_bytes()).unwrap();
    client.write_all(b"GET /it HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    // Without the limit, a further response would make this read forever.
    client.take(20_000).read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 7, "{text}");
    assert_eq!(text.matches("\r\n\r\nok").count(), 7, "{text}");
}

/// A percentile is known after a hundred responses. From then on, requests that take longer than it are copied.
#[test]
fn a_percentile_is_learned() {
    let first: Script = |number| if number < 80 { FaultyAct::Good } else { FaultyAct::Stall };
    let policy = policy("{percentile: 95, delay: 20ms}", FREE);
    let world = ProxiedServers::outbound(&policy, &[first, |_| FaultyAct::Good]);
    for number in 0..200 {
        assert!(world.get(&number.to_string()).is_good());
    }
    assert!(world.metric(&["leno_hedges_total", "won"]) > 0.0);
    assert!(counted(&world.seen()).values().all(|times| *times <= 2));
}

/// When a client leaves, the copy that is answering must be cancelled, even though no bytes are being written at
/// that time.
#[test]
fn a_client_that_leaves_in_the_middle_of_a_response_is_noticed() {
    let half: Script = |_| FaultyAct::StallBody;
    let world =
        ProxiedServers::outbound(&policy("{delay: 20ms}", FREE), &[|_| FaultyAct::Stall, half]);
    let mut client = world.send("GET", "1", "", "");
    let (mut said, mut byte) = (Vec::new(), [0]);
    while !said.ends_with(b"half-") {
        client.read_exact(&mut byte).unwrap();
        said.extend_from_slice(&byte);
    }
    assert_eq!(world.backends[1].given_up(), 0);
    drop(client);
    wait::until("the response to be given up", LONG, || {
        Ok((world.backends[1].given_up() == 1).then_some(()))
    })
    .unwrap();
}

/// The outcome of every copy must be counted, even if the first one failed before the client left.
#[test]
fn copies_of_a_client_that_leaves_are_counted() {
    let closes: Script = |_| FaultyAct::CloseAfter(Duration::from_secs(1));
    // Either server may be tried first, so both orders are tested.
    for servers in [[closes, |_| FaultyAct::Stall], [|_| FaultyAct::Stall, closes]] {
        let world = ProxiedServers::outbound(&policy("{delay: 10ms}", FREE), &servers);
        let client = world.send("GET", "1", "", "");
        wait::until("one of two copies to fail", LONG, || {
            let failed = world.metric(&["leno_errors_total{"]) > 0.0;
            Ok((failed && world.seen().len() == 2).then_some(()))
        })
        .unwrap();
        // This closes the connection with a reset, as happens when a program with unread bytes is killed.
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&client, sockopt::Linger, &at_once).unwrap();
        drop(client);
        wait::until("the copy to be counted", LONG, || {
            Ok((world.metric(&["leno_hedges_total", "lost"]) == 1.0).then_some(()))
        })
        .unwrap();
    }
}
