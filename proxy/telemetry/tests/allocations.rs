//! A request on a known edge allocates nothing while no tap is open and nothing is logged or traced, and nothing of it is
//! read.

use leno_telemetry::tap::{Filter, Taps};
use leno_telemetry::{Direction, EdgeLabels, Outcome, Registry, RouteLabels};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::{ALLOCATIONS, BYTES};

const REQUESTS: u64 = 100;

fn labels() -> EdgeLabels {
    EdgeLabels {
        direction: Direction::Outbound,
        client: "web-0".into(),
        client_namespace: "shop".into(),
        client_trust_domain: "".into(),
        server: "cart-0".into(),
        server_namespace: "shop".into(),
        service: "cart".into(),
        mtls: true,
    }
}

/// What requests allocate. `is_read`: how often something was read for a tap.
fn allocated(registry: &Registry, is_read: &mut u64) -> u64 {
    let labels = labels();
    let edge = registry.edge(&labels);
    let outcome = Outcome { status: 200, ..Outcome::default() };
    let read = std::cell::Cell::new(0);
    let note = || read.set(read.get() + 1);
    // The first one finds room for its status.
    let first = registry.begin(("HTTP/1.1", "GET", b"/"), || ("", std::iter::empty()));
    registry.end(&edge, &first, &outcome);
    drop(first);
    let labels = RouteLabels {
        service: "cart".into(),
        service_namespace: "shop".into(),
        route: "HTTPRoute shop/cart".into(),
        rule: "0".into(),
    };
    let route = registry.route(&labels);
    let mut first = registry.begin(("HTTP/1.1", "GET", b"/"), || ("", std::iter::empty()));
    first.counts_with(&route);
    registry.end(&edge, &first, &outcome);
    drop(first);
    let before = ALLOCATIONS.get();
    for _ in 0..REQUESTS {
        let mut begun = registry.begin(("HTTP/1.1", "GET", b"/items?id=1"), || {
            note();
            ("cart.shop", [("accept", &b"*/*"[..])].into_iter())
        });
        begun.came_from(None, || {
            note();
            None
        });
        begun.counts_with(&route);
        begun.decided(|| "not asked for".to_owned());
        begun.routed(|| {
            note();
            "HTTPRoute shop/cart rule 0".into()
        });
        let identity = || {
            note();
            Some("spiffe://cluster.local/ns/shop/sa/cart".into())
        };
        begun.mark(edge.labels(), identity);
        begun.retried();
        assert!(begun.trace_lines().is_empty());
        registry.end(&edge, &begun, &outcome);
    }
    *is_read = read.get();
    ALLOCATIONS.get() - before
}

#[test]
fn a_request_costs_nothing_while_no_tap_is_open() {
    let taps = Taps::default();
    let registry = Registry::new().with_taps(taps.clone());
    let mut read = 0;
    assert_eq!((allocated(&registry, &mut read), read), (0, 0), "before the first tap");

    taps.open("t", Filter::default()).unwrap();
    let tapped = allocated(&registry, &mut read);
    assert!(tapped >= REQUESTS && read == 4 * REQUESTS, "{tapped} allocations, {read} read");

    taps.close("t").unwrap();
    let held = BYTES.get();
    assert_eq!((allocated(&registry, &mut read), read), (0, 0), "after the last tap");
    assert_eq!(BYTES.get(), held);
}
