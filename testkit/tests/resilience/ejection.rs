//! Tests endpoints that are ejected because their requests fail, and how they come back.

use std::io::Read;
use std::time::Duration;

use leno_testkit::peer::FaultyAct;
use leno_testkit::wait;

use crate::fails_half;
use crate::proxied_servers::{ProxiedServers, Script};

const LIMIT: Duration = Duration::from_secs(30);

const GOOD: Script = |_| FaultyAct::Good;

fn ejections(world: &ProxiedServers) -> f64 {
    world.metric(&["leno_ejections_total"])
}

/// One of four endpoints fails half of its requests, but never three in a row. It must be ejected only because of
/// its success rate.
#[test]
fn an_endpoint_with_a_low_success_rate_is_ejected() {
    let world = ProxiedServers::outbound(
        "  balancing: {algorithm: RoundRobin}\n  ejection:\n    \
         successRate: {interval: 500ms, minimumRequests: 20, deviations: 1.9}\n    \
         base: 1h\n    max: 1h\n",
        &[fails_half, GOOD, GOOD, GOOD],
    );
    wait::until("the endpoint to be left out", LIMIT, || {
        for _ in 0..20 {
            world.get("before");
        }
        Ok((ejections(&world) == 1.0).then_some(()))
    })
    .unwrap();
    let before = world.counts();
    for number in 0..90 {
        assert!(world.get(&number.to_string()).is_good());
    }
    let more: Vec<usize> = world.counts().iter().zip(&before).map(|(now, was)| now - was).collect();
    assert_eq!(more, [0, 30, 30, 30]);
    assert_eq!(ejections(&world), 1.0, "the others are good");
}

/// Without `successRate` in the policy, all of these endpoints stay.
#[test]
fn success_rates_are_compared_by_policy_alone() {
    let world = ProxiedServers::outbound(
        "  balancing: {algorithm: RoundRobin}\n  \
         ejection: {consecutiveFailures: 5, base: 1h, max: 1h}\n",
        &[fails_half, GOOD, GOOD, GOOD],
    );
    for number in 0..400 {
        world.get(&number.to_string());
    }
    assert_eq!(world.counts(), [100; 4]);
    assert_eq!(ejections(&world), 0.0);
}

/// The endpoint fails three times, once more when it is tried again, then stalls, and then succeeds. While its
/// single trial request is in progress, it gets no other request.
#[test]
fn an_endpoint_comes_back_by_one_good_answer() {
    let bad: Script = |number| match number {
        0..4 => FaultyAct::Status(503),
        4 => FaultyAct::Stall,
        _ => FaultyAct::Good,
    };
    let world = ProxiedServers::outbound(
        "  balancing: {algorithm: RoundRobin}\n  \
         ejection: {consecutiveFailures: 3, base: 2s, max: 4s}\n",
        &[bad, GOOD, GOOD],
    );
    let seen = || world.counts()[0];
    while ejections(&world) < 1.0 {
        world.get("before");
    }
    assert_eq!(seen(), 3);
    // The trial request fails, so the endpoint is ejected again, which is counted as a further ejection.
    wait::until("it to be tried", LIMIT, || {
        world.get("first");
        Ok((seen() > 3).then_some(()))
    })
    .unwrap();
    wait::until("that to be counted", LIMIT, || {
        assert!(world.get("elsewhere").is_good());
        Ok((ejections(&world) == 2.0).then_some(()))
    })
    .unwrap();
    assert_eq!(seen(), 4);
    let mut held = None;
    wait::until("it to be tried again", LIMIT, || {
        let mut stream = world.send("GET", "second", "", "");
        // If the request was only slow, it is repeated.
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        let answered = stream.read(&mut [0]).is_ok();
        held = (!answered).then_some(stream);
        Ok((seen() > 4).then_some(()))
    })
    .unwrap();
    // The second ejection lasts four seconds, which are far from over.
    for number in 0..30 {
        assert!(world.get(&number.to_string()).is_good());
    }
    assert_eq!((seen(), ejections(&world)), (5, 2.0), "it gets one request");
    // The trial request is cancelled, which decides nothing about the endpoint. The next trial succeeds.
    drop(held);
    wait::until("it to be back", LIMIT, || {
        assert!(world.get("third").is_good());
        Ok((seen() > 6).then_some(()))
    })
    .unwrap();
    let before = world.counts();
    for number in 0..30 {
        assert!(world.get(&number.to_string()).is_good());
    }
    let more: Vec<usize> = world.counts().iter().zip(&before).map(|(now, was)| now - was).collect();
    assert_eq!(more, [10; 3]);
}

/// Two of three endpoints fail. If the policy prefers all endpoints to only a third of them, all are used again.
#[test]
fn all_endpoints_are_used_if_too_few_remain() {
    let fails: Script = |_| FaultyAct::Status(503);
    for (panic, failing) in [(60, 40), (20, 0)] {
        let world = ProxiedServers::outbound(
            &format!(
                "  balancing: {{algorithm: RoundRobin}}\n  ejection: {{consecutiveFailures: 2, \
                 base: 1h, max: 1h, maxPercent: 100, panicPercent: {panic}}}\n"
            ),
            &[fails, fails, GOOD],
        );
        while ejections(&world) < 2.0 {
            world.get("before");
        }
        let answers = (0..60).map(|number| world.get(&number.to_string()));
        let failed = answers.filter(|answer| !answer.is_good()).count();
        assert_eq!(failed, failing, "with a panic threshold of {panic} %");
        assert_eq!(ejections(&world), 2.0);
    }
}
