//! Helpers for the tests of several modules.

use leno_observe::stat::{
    EdgeGrowth, MeshGrowth, PairCounts, RouteGrowth, RouteName, WorkloadGrowth,
};

pub(crate) fn growth(seconds: f64, edges: Vec<EdgeGrowth>) -> MeshGrowth {
    MeshGrowth { seconds, edges, ..MeshGrowth::default() }
}

/// An edge in the namespace `shop` with this many successful requests.
pub(crate) fn edge(client: &str, server: &str, requests: f64) -> EdgeGrowth {
    let mut counts =
        PairCounts { classes: [0.0, requests, 0.0, 0.0, 0.0], ..PairCounts::default() };
    counts.durations.add(0.005, requests);
    counts.durations.add(f64::INFINITY, requests);
    EdgeGrowth {
        client: ("shop".to_owned(), client.to_owned()),
        server: ("shop".to_owned(), server.to_owned()),
        encrypted: true,
        counts,
    }
}

/// A workload in the namespace `shop`, with its number of instances and the number of those that are ready.
pub(crate) fn workload(name: &str, (instances, ready): (u32, u32)) -> WorkloadGrowth {
    WorkloadGrowth {
        name: ("shop".to_owned(), name.to_owned()),
        instances,
        ready,
        meshed: true,
        counts: PairCounts::default(),
    }
}

/// A rule of the route `cart` of the service `cart` with this many successful requests.
pub(crate) fn route(rule: &str, requests: f64) -> RouteGrowth {
    RouteGrowth {
        name: RouteName {
            service: ("shop".to_owned(), "cart".to_owned()),
            route: "HTTPRoute shop/cart".to_owned(),
            rule: rule.to_owned(),
        },
        counts: edge("web", "cart", requests).counts,
    }
}
