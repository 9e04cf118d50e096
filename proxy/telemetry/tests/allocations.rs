//! A request on a known edge allocates nothing, and no part of it is read, unless a tap or a trace shows it or it is
//! logged.

use std::rc::Rc;

use leno_telemetry::tap::{Filter, Taps};
use leno_telemetry::trace::Traces;
use leno_telemetry::{Arrival, Direction, EdgeLabels, Outcome, Registry, RouteLabels};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::{ALLOCATIONS, BYTES};

const REQUESTS: u64 = 100;
const ACCEPT: (&str, &[u8]) = ("accept", b"*/*");

/// The cost of [`REQUESTS`] requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    allocations: u64,
    /// How often the authority or the headers of a request were read.
    read: u64,
    /// The number of trace headers for the next hop.
    told: usize,
}

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

fn cost(registry: &Registry, headers: &[(&str, &[u8])]) -> Cost {
    let labels = labels();
    let edge = registry.edge(&labels);
    let outcome = Outcome { status: 200, ..Outcome::default() };
    let read = std::cell::Cell::new(0);
    let note = || read.set(read.get() + 1);
    // The first request allocates the entry for its status.
    let first = registry.begin(
        Arrival::INBOUND,
        ("HTTP/1.1", "GET", b"/"),
        || ("", std::iter::empty()),
        std::iter::empty,
    );
    registry.end(&edge, &first, &outcome);
    drop(first);
    let labels = RouteLabels {
        service: "cart".into(),
        service_namespace: "shop".into(),
        route: "HTTPRoute shop/cart".into(),
        rule: "0".into(),
    };
    let route = registry.route(&labels);
    let mut first = registry.begin(
        Arrival::INBOUND,
        ("HTTP/1.1", "GET", b"/"),
        || ("", std::iter::empty()),
        std::iter::empty,
    );
    first.counts_with(&route);
    registry.end(&edge, &first, &outcome);
    drop(first);
    let mut told = 0;
    let before = ALLOCATIONS.get();
    for _ in 0..REQUESTS {
        let line = ("HTTP/1.1", "GET", &b"/items?id=1"[..]);
        let of = || {
            note();
            ("cart.shop", headers.iter().copied())
        };
        let mut begun = registry.begin(Arrival::INBOUND, line, of, || of().1);
        begun.came_from(|| {
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
        told += usize::from(begun.traceparent().is_some()) + begun.trace_lines().len();
        registry.end(&edge, &begun, &outcome);
    }
    Cost { allocations: ALLOCATIONS.get() - before, read: read.get(), told }
}

#[test]
fn a_request_costs_nothing_while_no_tap_is_open() {
    let taps = Taps::default();
    let registry = Registry::new().with_taps(taps.clone());
    assert_eq!(cost(&registry, &[ACCEPT]), Cost::default(), "before the first tap");

    taps.open("t", Filter { rate: 500, ..Filter::default() }).unwrap();
    let tapped = cost(&registry, &[ACCEPT]);
    assert!(tapped.allocations >= REQUESTS && tapped.read == 4 * REQUESTS, "{tapped:?}");

    taps.close("t").unwrap();
    let held = BYTES.get();
    assert_eq!(cost(&registry, &[ACCEPT]), Cost::default(), "after the last tap");
    assert!(BYTES.get() <= held, "what the worker kept of the closed tap is given back");
}

#[test]
fn a_request_that_no_tap_can_show_is_not_read() {
    let taps = Taps::default();
    let registry = Registry::new().with_taps(taps.clone());
    for parameters in [
        &[("method", "POST")][..],
        &[("path", "/api")],
        &[("marked", "true")],
        &[("direction", "outbound")],
    ] {
        let mut filter = Filter::default();
        for (name, value) in parameters {
            filter.set(name, value).unwrap();
        }
        taps.open("t", filter).unwrap();
        assert_eq!(cost(&registry, &[ACCEPT]), Cost::default(), "{parameters:?}");
    }
}

/// The rate applies to each second, so a few requests are recorded if this test takes long.
#[test]
fn a_request_beyond_the_rate_of_a_tap_is_counted_and_not_read() {
    let taps = Taps::default();
    let registry = Registry::new().with_taps(taps.clone());
    taps.open("t", Filter { rate: 1, ..Filter::default() }).unwrap();
    let spent = cost(&registry, &[ACCEPT]);
    assert!(spent.read <= 4 * REQUESTS / 10, "{spent:?}");
    let counted = taps.close("t").unwrap();
    assert_eq!(counted.queued + counted.sampled_out, REQUESTS + 2, "{counted:?}");
}

#[test]
fn a_request_that_is_not_sampled_allocates_nothing() {
    let traces = |settings: &str| {
        let traces = Rc::new(Traces::new(settings.parse().unwrap()));
        Registry::new().with_traces(Some(traces))
    };
    let registry = traces("a/b:1,sampling=0%");
    // The headers are read once for each request, and contain no trace headers.
    let new = Cost { allocations: 0, read: REQUESTS, told: REQUESTS as usize };
    assert_eq!(cost(&registry, &[ACCEPT]), new);
    let parent = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let goes_on = Cost { told: 0, ..new };
    assert_eq!(cost(&registry, &[ACCEPT, ("traceparent", parent)]), goes_on, "as it came");
    let sampled = cost(&traces("a/b:1,sampling=100%"), &[ACCEPT]);
    assert!(sampled.allocations > REQUESTS && sampled.told == REQUESTS as usize, "{sampled:?}");
}
