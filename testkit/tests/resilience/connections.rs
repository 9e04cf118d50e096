//! The bound on connections to a service: who is refused, and what makes room.

use std::io::Read;
use std::time::Duration;

use leno_testkit::peer::Act;
use leno_testkit::wait;

use crate::world::{Script, World};

const LIMIT: Duration = Duration::from_secs(20);

/// Requests under way hold their connections; one more is refused at once, and says why.
#[test]
fn no_more_connections_are_made_than_policy_allows() {
    let stalls: Script = |_| Act::Stall;
    let world = World::outbound("  limits: {connections: 3}\n", &[stalls, stalls]);
    let held: Vec<_> =
        (0..3).map(|number| world.send("GET", &number.to_string(), "", "")).collect();
    wait::until("three requests to be under way", LIMIT, || {
        Ok((world.seen().len() == 3).then_some(()))
    })
    .unwrap();
    let refused = world.get("refused");
    assert_eq!((refused.status, refused.header("leno-error")), (503, Some("connections-in-use")));
    assert_eq!(world.seen().len(), 3);
    assert_eq!(world.metric(&["leno_errors_total", "connections-in-use"]), 1.0);
    // Who leaves makes room.
    drop(held);
    wait::until("the clients that left to have made room", LIMIT, || {
        let mut next = world.send("GET", "next", "", "");
        next.set_read_timeout(Some(Duration::from_millis(100)))?;
        // An answer is a refusal; the server says nothing.
        Ok(next.read(&mut [0]).is_err().then_some(()))
    })
    .unwrap();
}

/// An idle connection to one endpoint is closed where another endpoint needs it.
#[test]
fn idle_connections_make_room() {
    let world = World::outbound(
        "  balancing: {algorithm: RoundRobin}\n  limits: {connections: 1}\n",
        &[|_| Act::Good, |_| Act::Good, |_| Act::Good],
    );
    for number in 0..12 {
        let answer = world.get(&number.to_string());
        assert!(answer.is_good(), "{answer:?}");
    }
    assert!(world.backends.iter().all(|backend| backend.seen().len() == 4));
}
