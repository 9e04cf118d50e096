//! Counts the requests that clients send to services with routes, by the rule that each request follows.

use std::collections::BTreeMap;

use serde::Serialize;

use super::proxy_counters::{DURATIONS, ERRORS, GRPC, REQUESTS, RETRIES};
use super::{GoldenSignals, NamespacedName, PairCounts, ProxyCounters, Scrape, StatReport, Total};
use crate::metrics::Sample;

/// The metric families of route rules, each with the edge family that counts the same thing.
const FAMILIES: [(&str, &str); 5] = [
    ("leno_route_requests_total", REQUESTS),
    ("leno_route_grpc_responses_total", GRPC),
    ("leno_route_errors_total", ERRORS),
    ("leno_route_retries_total", RETRIES),
    ("leno_route_request_duration_seconds_bucket", DURATIONS),
];

/// A service, and one rule of a route that is attached to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteName {
    /// Namespace and name of the service.
    pub service: NamespacedName,
    /// The route, such as `HTTPRoute shop/cart`. Empty for requests that match no rule.
    pub route: String,
    /// The name of the rule, or its position in the route. Empty for requests that match no rule.
    pub rule: String,
}

/// The requests that followed a rule of a route.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteReport {
    /// The namespace of the service.
    pub namespace: String,
    /// The service that clients called.
    pub service: String,
    /// The route, such as `HTTPRoute shop/cart`. Empty for requests that match no rule.
    pub route: String,
    /// The name of the rule, or its position in the route. Empty for requests that match no rule.
    pub rule: String,
    /// The signals of these requests, as the proxies of clients count them.
    #[serde(flatten)]
    pub signals: GoldenSignals,
}

/// The increase of counts for a rule of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteGrowth {
    /// The rule.
    pub name: RouteName,
    /// What was counted.
    pub counts: PairCounts,
}

impl RouteReport {
    pub(super) fn new(name: RouteName, signals: GoldenSignals) -> Self {
        let RouteName { service: (namespace, service), route, rule } = name;
        Self { namespace, service, route, rule, signals }
    }
}

/// The rule in a sample's labels, and the edge family that counts the same thing. `None` for other metrics.
pub(super) fn of(sample: &Sample) -> Option<(RouteName, &'static str)> {
    let (_, family) = FAMILIES.iter().find(|(name, _)| *name == sample.name)?;
    let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
    let service = (label("service_namespace"), label("service"));
    Some((RouteName { service, route: label("route"), rule: label("rule") }, family))
}

/// The increase of the counts of each rule, summed over all clients.
pub(super) fn grown(now: &Scrape, before: &Scrape) -> BTreeMap<RouteName, Total> {
    let mut routes: BTreeMap<RouteName, Total> = BTreeMap::new();
    for (name, sum, seconds) in now.increases_of(before, |one: &ProxyCounters| &one.routes) {
        routes.entry(name.clone()).or_default().count(&sum, seconds);
    }
    routes
}

impl StatReport {
    pub(super) fn routes_between(now: &Scrape, before: &Scrape) -> Vec<RouteReport> {
        let routes = grown(now, before).into_iter().filter(|(_, total)| !total.sum.is_empty());
        routes.map(|(name, total)| RouteReport::new(name, total.signals())).collect()
    }
}
