//! Tests which endpoint is chosen. Requests are counted at the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_testkit::peer::{Faulty, FaultyAct};

use crate::front::{FrontOptions, FrontProxy};
use crate::proxied_servers::{ProxiedServers, Script};

const GOOD: Script = |_| FaultyAct::Good;

/// The number of users, and the number of requests of each user.
const USERS: usize = 60;
const EACH: usize = 3;

fn balancing(what: &str) -> String {
    format!("  balancing: {{{what}}}\n")
}

/// Whether `count` of `n` differs by at most six standard deviations from a `share`. A correct run exceeds that
/// once in 500 million runs.
pub(crate) fn is_share(count: usize, n: usize, share: f64) -> bool {
    let (mean, variance) = (n as f64 * share, n as f64 * share * (1.0 - share));
    (count as f64 - mean).abs() <= 6.0 * variance.sqrt()
}

/// Sends the requests of every user, identified by `header`, and returns the endpoint of each user. Checks that
/// each user always has the same endpoint, and that each endpoint has some users.
fn placed(world: &ProxiedServers, tag: &str, header: impl Fn(usize) -> String) -> Vec<usize> {
    for round in 0..EACH {
        for user in 0..USERS {
            let id = format!("{tag}-{round}-{user}");
            let answer = world.ask("GET", &id, &header(user), "");
            assert!(answer.is_good(), "{answer:?}");
            assert_eq!(answer.header("set-cookie"), None, "a hash is of what is there");
        }
    }
    let mut places: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for (place, backend) in world.backends.iter().enumerate() {
        let of_tag = |id: &String| id.strip_prefix(tag)?.rsplit('-').next()?.parse().ok();
        for user in backend.seen().iter().filter_map(of_tag) {
            places.entry(user).or_default().insert(place);
        }
    }
    assert_eq!(places.len(), USERS);
    assert!(places.values().all(|of_user| of_user.len() == 1), "{places:?}");
    let places: Vec<usize> = places.into_values().flatten().collect();
    assert!((0..world.backends.len()).all(|place| places.contains(&place)), "{places:?}");
    places
}

/// One of three endpoints refuses at once, without doing any work. Judged by latency, it would be the fastest and
/// would get two thirds of all requests.
#[test]
fn an_endpoint_that_refuses_at_once_gets_no_more_than_its_share() {
    const REQUESTS: usize = 300;
    let works: Script = |_| FaultyAct::After(Duration::from_millis(5));
    let refusals: [(Script, u16); 2] =
        [(|_| FaultyAct::Status(429), 429), (|_| FaultyAct::Status(500), 500)];
    for (refuses, status) in refusals {
        let world =
            ProxiedServers::outbound(&balancing("algorithm: PeakEwma"), &[works, works, refuses]);
        let refused =
            (0..REQUESTS).filter(|number| world.get(&number.to_string()).status == status);
        let refused = refused.count();
        assert_eq!(refused, world.counts()[2]);
        // The expected share is a third. If a working server was late once, as happens on a busy machine, it gets
        // fewer requests, and the share of the refusing one grows to at most a half.
        assert!(refused * 100 < REQUESTS * 58, "{refused} of {REQUESTS} refused by {status}");
    }
}

#[test]
fn random_is_even_and_not_round_robin() {
    const REQUESTS: usize = 600;
    let world = ProxiedServers::outbound(&balancing("algorithm: Random"), &[GOOD; 3]);
    let (mut before, mut last, mut repeated) = (world.counts(), None, 0);
    for number in 0..REQUESTS {
        assert!(world.get(&number.to_string()).is_good());
        let counts = world.counts();
        let here = (0..3).find(|place| counts[*place] > before[*place]);
        repeated += usize::from(here == last);
        (before, last) = (counts, here);
    }
    assert!(before.iter().all(|count| is_share(*count, REQUESTS, 1.0 / 3.0)), "{before:?}");
    assert!(
        is_share(repeated, REQUESTS - 1, 1.0 / 3.0),
        "{repeated} went where the one before did"
    );
}

/// One of two endpoints has a request that stays in progress forever, so the other one has fewer once it has
/// responded.
#[test]
fn least_request_counts_requests_in_progress() {
    let held = |algorithm: &str| {
        let world = ProxiedServers::outbound(
            &balancing(&format!("algorithm: {algorithm}")),
            &[|_| FaultyAct::Stall, GOOD],
        );
        let mut stalled = Vec::new();
        for number in 0..40 {
            let mut stream = world.send("GET", &number.to_string(), "", "");
            leno_testkit::wait::until("it to arrive", Duration::from_secs(20), || {
                Ok((world.seen().len() > number).then_some(()))
            })
            .expect("it arrives");
            if world.counts()[0] > stalled.len() {
                stalled.push(stream);
            } else {
                // Reads the whole response, so that only stalled requests stay in progress.
                std::io::Read::read_to_end(&mut stream, &mut Vec::new()).expect("a response");
            }
        }
        stalled.len()
    };
    assert!(held("LeastRequest") <= 1);
    assert_eq!(held("RoundRobin"), 20);
    assert!(is_share(held("Random"), 40, 0.5));
}

/// Only the number of requests in progress matters. When requests are sent one after another, a slow endpoint gets
/// as many as a fast one.
#[test]
fn least_request_does_not_depend_on_latency() {
    // This is longer than a busy machine keeps the fast server from running, so the order of the two responses is
    // certain.
    let slow: Script = |_| FaultyAct::After(Duration::from_millis(200));
    let late = |algorithm: &str, requests: usize| {
        let world =
            ProxiedServers::outbound(&balancing(&format!("algorithm: {algorithm}")), &[slow, GOOD]);
        for number in 0..requests {
            assert!(world.get(&number.to_string()).is_good());
        }
        world.counts()[0]
    };
    let count = late("LeastRequest", 40);
    assert!(is_share(count, 40, 0.5), "{count} of 40");
    let count = late("PeakEwma", 200);
    assert!(count < 40, "{count} of 200 by latency");
}

#[test]
fn hashes_keep_users_together_by_header() {
    let servers: Vec<Faulty> = (0..3).map(|_| crate::proxied_servers::server(GOOD)).collect();
    let places = |tag: &str, algorithm: &str| {
        let what = format!("algorithm: {algorithm}, hash: {{header: X-User}}");
        let world = ProxiedServers::before(&balancing(&what), &servers);
        placed(&world, tag, |user| format!("X-User: {user}\r\n"))
    };
    for (tag, again, algorithm) in [("a", "b", "RingHash"), ("c", "d", "Maglev")] {
        // Another proxy in front of the same servers must choose the same endpoints.
        assert_eq!(places(tag, algorithm), places(again, algorithm), "{algorithm}");
    }
    assert_ne!(places("e", "RingHash"), places("f", "Maglev"), "these are two ways");
}

/// The hash uses the cookie `user`, whatever other cookies a request has. If the cookie is missing, the proxy does
/// not set it.
#[test]
fn hashes_keep_users_together_by_cookie() {
    for algorithm in ["RingHash", "Maglev"] {
        let what = format!("algorithm: {algorithm}, hash: {{cookie: user}}");
        let world = ProxiedServers::outbound(&balancing(&what), &[GOOD; 3]);
        placed(&world, "u", |user| format!("Cookie: xuser=1; user={user}; other=2\r\n"));
        // Requests without the cookie go to any endpoint.
        let before = world.counts();
        for _ in 0..120 {
            let answer = world.ask("GET", "anybody", "Cookie: xuser=1\r\n", "");
            assert!(answer.is_good() && answer.header("set-cookie").is_none(), "{answer:?}");
        }
        let gone = |place: usize| world.counts()[place] - before[place];
        assert!((0..3).all(|place| is_share(gone(place), 120, 1.0 / 3.0)), "{:?}", world.counts());
    }
}

/// All requests of one workload go to one endpoint, and the workloads are spread over more than one endpoint.
#[test]
fn hashes_keep_workloads_together() {
    let servers: Vec<Faulty> = (0..3).map(|_| crate::proxied_servers::server(GOOD)).collect();
    let addresses: Vec<_> = servers.iter().map(Faulty::address).collect();
    let what = balancing("algorithm: Maglev, hash: {source: true}");
    let mut used = BTreeSet::new();
    // The probability that all 20 workloads hash to the same of three endpoints is 1 in a billion.
    for number in 0..20 {
        let name = format!("client-{number}");
        let front = FrontProxy::outbound(
            &what,
            &addresses,
            &FrontOptions { name: &name, ..FrontOptions::default() },
        );
        let before: Vec<usize> = servers.iter().map(|server| server.seen().len()).collect();
        for _ in 0..10 {
            assert!(crate::proxied_servers::get(&front, &name).is_good());
        }
        let more = |place: &usize| servers[*place].seen().len() > before[*place];
        let places: Vec<usize> = (0..3).filter(more).collect();
        assert_eq!(places.len(), 1, "{name} went to {places:?}");
        used.extend(places);
        if used.len() > 1 {
            return;
        }
    }
    panic!("all workloads went to {used:?}");
}
