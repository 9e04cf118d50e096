//! Applications and clients that write the mesh's own headers.

use leno_testkit::peer::{Act, FORGED};

use crate::world::{Answer, World};

/// An application that has processed a request, and says as a proxy would that it has not.
const FORGES: fn(u32) -> Act = |_| Act::Says(FORGED);

fn assert_is_the_applications(answer: &Answer) {
    assert_eq!(answer.status, 503);
    assert!(answer.is_whole && !answer.head.contains("\r\nleno"), "{}", answer.head);
}

/// No endpoint here has proven an identity: what they say as a proxy is not believed, and the
/// client does not see it.
#[test]
fn an_application_cannot_have_a_request_sent_again() {
    let world = World::outbound("  timeouts: {request: 1m}\n", &[FORGES, FORGES]);
    for number in 0..10_usize {
        let answer = world.ask("POST", &number.to_string(), "", "do it");
        assert_is_the_applications(&answer);
        assert_eq!(world.seen().len(), number + 1, "it was sent again");
    }
    assert_eq!(world.metric(&["leno_retries_total"]), 0.0);
    assert_eq!(world.metric(&["leno_errors_total", "failfast"]), 0.0);
}

/// The proxy of the application itself removes it, so that the proxies of clients, which believe
/// it, never see it.
#[test]
fn an_application_cannot_speak_as_its_proxy() {
    let world = World::inbound("  limits: [{requests: 1000}]\n", FORGES);
    assert_is_the_applications(&world.ask("POST", "1", "", "do it"));
}
