//! Tests that near endpoints are used first, and others when the near ones are too busy.

use std::time::Duration;

use leno_testkit::peer::FaultyAct;
use leno_testkit::wait;

use crate::front::FrontOptions;
use crate::proxied_servers::{ProxiedServers, Script};

const LIMIT: Duration = Duration::from_secs(20);

const GOOD: Script = |_| FaultyAct::Good;

/// Two zones, the first of which has two nodes.
const PLACES: FrontOptions<'static> = FrontOptions {
    name: "",
    own: "topology.kubernetes.io/zone: a, kubernetes.io/hostname: n1",
    servers: &["zone: a, nodeName: n1", "zone: a, nodeName: n2", "zone: b, nodeName: n3"],
    distribution: "PreferSameZone",
    protocol: "",
    more: "",
    panic: "",
    arguments: &[],
};

#[test]
fn near_endpoints_are_preferred_where_the_service_asks_for_it() {
    for (distribution, used) in [
        ("PreferSameZone", [true, true, false]),
        ("PreferClose", [true, true, false]),
        ("PreferSameNode", [true, false, false]),
        ("", [true, true, true]),
    ] {
        let policy = "  balancing: {algorithm: RoundRobin}\n";
        let world =
            ProxiedServers::within(policy, &[GOOD; 3], &FrontOptions { distribution, ..PLACES });
        for number in 0..60 {
            assert!(world.get(&number.to_string()).is_good());
        }
        let seen = world.counts();
        let found: Vec<bool> = seen.iter().map(|count| *count > 0).collect();
        assert_eq!(found, used, "{distribution}: {seen:?}");
    }
}

/// When near endpoints have two requests each in progress, further requests must go to more distant ones.
#[test]
fn busy_near_endpoints_are_helped_by_others() {
    let stalls: Script = |_| FaultyAct::Stall;
    let policy = "  balancing: {algorithm: RoundRobin, overflow: 2}\n";
    let world = ProxiedServers::within(policy, &[stalls, stalls, GOOD], &PLACES);
    let held: Vec<_> =
        (0..4).map(|number| world.send("GET", &number.to_string(), "", "")).collect();
    wait::until("the near ones to have two each", LIMIT, || {
        Ok((world.counts() == [2, 2, 0]).then_some(()))
    })
    .unwrap();
    // Now all endpoints are candidates. Requests that go to the distant one are answered.
    let more: Vec<_> =
        (0..9).map(|number| world.send("GET", &format!("more-{number}"), "", "")).collect();
    wait::until("the far one to have helped", LIMIT, || Ok((world.counts()[2] == 3).then_some(())))
        .unwrap();
    drop((held, more));
}

/// If no near endpoint is left, the others must serve.
#[test]
fn without_a_near_endpoint_all_are_used() {
    let far = FrontOptions { own: "topology.kubernetes.io/zone: c", ..PLACES };
    let world = ProxiedServers::within("  balancing: {algorithm: RoundRobin}\n", &[GOOD; 3], &far);
    for number in 0..9 {
        assert!(world.get(&number.to_string()).is_good());
    }
    assert_eq!(world.counts(), [3, 3, 3]);
}
