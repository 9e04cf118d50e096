//! Tests applications and clients that send the headers that only the mesh may set.

use leno_testkit::peer::{FORGED, FaultyAct};

use crate::proxied_servers::{Answer, ProxiedServers};

/// An application that has processed a request, and claims, as a proxy would, that it has not.
const FORGES: fn(u32) -> FaultyAct = |_| FaultyAct::Says(FORGED);

fn assert_is_the_applications(answer: &Answer) {
    assert_eq!(answer.status, 503);
    assert!(answer.is_whole && !answer.head.contains("\r\nleno"), "{}", answer.head);
}

/// The endpoints here have not proved an identity, so the proxy ignores their mesh headers and does not forward
/// them to the client.
#[test]
fn an_application_cannot_cause_a_retry_with_a_forged_header() {
    let world = ProxiedServers::outbound("  timeouts: {request: 1m}\n", &[FORGES, FORGES]);
    for number in 0..10_usize {
        let answer = world.ask("POST", &number.to_string(), "", "do it");
        assert_is_the_applications(&answer);
        assert_eq!(world.seen().len(), number + 1, "it was sent again");
    }
    assert_eq!(world.metric(&["leno_retries_total"]), 0.0);
    assert_eq!(world.metric(&["leno_errors_total", "failfast"]), 0.0);
}

/// The application's own proxy removes the headers, because the proxies of clients would trust them.
#[test]
fn an_application_cannot_speak_as_its_proxy() {
    let world = ProxiedServers::inbound("  limits: [{requests: 1000}]\n", FORGES);
    assert_is_the_applications(&world.ask("POST", "1", "", "do it"));
}
