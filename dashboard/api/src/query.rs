//! Computes answers from a history.

use std::collections::BTreeMap;

use leno_observe::stat::{DENIED, LatencyQuantiles, NamespacedName, RouteName};

use crate::api::{Budget, Cause, Edge, Mtls, Point, Points, Route, Signals, Topology, Workload};
use crate::history::Window;
use crate::series::{SeriesKey, SeriesNumbers};
use crate::tally::{Tally, float};
use crate::view::HistoryView;

/// Most points of an answer: a day in steps of one minute.
const MAX_POINTS: u64 = 1_440;
/// The number of points if the request sets no step: one for every few pixels of a chart.
const USUAL_POINTS: u64 = 240;

/// What a series is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesSubject {
    /// A workload as a server.
    Workload(NamespacedName),
    /// A client and a server, both with mTLS and without.
    Edge(NamespacedName, NamespacedName),
}

/// The sum of an edge's counts with mTLS and without.
#[derive(Debug, Default)]
pub(crate) struct EdgeTally {
    pub(crate) sum: Tally,
    encrypted: bool,
    plain: bool,
}

impl EdgeTally {
    fn mtls(&self) -> Mtls {
        match (self.encrypted, self.plain) {
            (true, false) => Mtls::All,
            (true, true) => Mtls::Partly,
            _ => Mtls::None,
        }
    }
}

/// The edges of a window by client and server.
pub(crate) fn edges(
    names: &SeriesNumbers,
    window: &Window,
) -> BTreeMap<(NamespacedName, NamespacedName), EdgeTally> {
    let mut edges: BTreeMap<(NamespacedName, NamespacedName), EdgeTally> = BTreeMap::new();
    for (series, tally) in &window.tallies {
        let Some(SeriesKey::Edge { client, server, encrypted }) = names.subject(*series) else {
            continue;
        };
        let both = edges.entry((client.clone(), server.clone())).or_default();
        both.sum.join(tally);
        // Attempts that reached no server do not count as plaintext.
        let passed = tally.requests() > tally.errors() || tally.tcp_opened + tally.tcp_open > 0;
        both.encrypted |= *encrypted;
        both.plain |= !encrypted && passed;
    }
    edges
}

/// The workloads and edges of a window, without problems. `identities` are the present identities of workloads.
pub(crate) fn topology(
    view: &HistoryView<'_>,
    (mesh, identities): (&str, &BTreeMap<NamespacedName, String>),
    window: &Window,
) -> Topology {
    let names = view.names();
    let workload = |(series, tally): (&u32, &Tally)| {
        let Some(SeriesKey::Workload((namespace, name))) = names.subject(*series) else {
            return None;
        };
        let instances = tally.instances.unwrap_or_default();
        Some(Workload {
            namespace: namespace.clone(),
            name: name.clone(),
            instances: instances.all,
            ready: instances.ready,
            meshed: instances.meshed,
            signals: signals(names, tally, window.seconds),
        })
    };
    let mut workloads: Vec<Workload> = window.tallies.iter().filter_map(workload).collect();
    workloads.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    let proven = |name: &NamespacedName, both: &EdgeTally| {
        identities.get(name).filter(|_| both.mtls() == Mtls::All).cloned()
    };
    let edge = |((client, server), both): ((NamespacedName, NamespacedName), EdgeTally)| Edge {
        client_identity: proven(&client, &both),
        server_identity: proven(&server, &both),
        client_namespace: client.0,
        client: client.1,
        server_namespace: server.0,
        server: server.1,
        mtls: both.mtls(),
        signals: signals(names, &both.sum, window.seconds),
    };
    Topology {
        mesh: mesh.to_owned(),
        from_ms: 0,
        to_ms: 0,
        observed_s: window.seconds,
        workloads,
        edges: edges(names, window).into_iter().map(edge).collect(),
        problems: Vec::new(),
        left_out: window.left_out,
    }
}

/// The route rules that requests followed in a window.
pub(crate) fn routes(names: &SeriesNumbers, window: &Window) -> Vec<Route> {
    let of = |(series, tally): (&u32, &Tally)| match names.subject(*series) {
        Some(SeriesKey::Route(name)) if tally.requests() > 0 => Some((name.clone(), tally.clone())),
        _ => None,
    };
    let routes: BTreeMap<RouteName, Tally> = window.tallies.iter().filter_map(of).collect();
    let route = |(name, tally): (RouteName, Tally)| Route {
        namespace: name.service.0,
        service: name.service.1,
        route: name.route,
        rule: name.rule,
        signals: signals(names, &tally, window.seconds),
    };
    routes.into_iter().map(route).collect()
}

/// The counts of a workload or an edge over time, in steps; `None` if the history does not contain it.
pub(crate) fn series(
    view: &HistoryView<'_>,
    wanted: &SeriesSubject,
    (from_ms, to_ms): (u64, u64),
    (step_ms, tick_ms): (Option<u64>, u64),
) -> Option<Points> {
    let names = view.names();
    let numbers: Vec<u32> = subjects(wanted).iter().filter_map(|one| names.find(one)).collect();
    if numbers.is_empty() {
        return None;
    }
    let span = to_ms.saturating_sub(from_ms);
    let step_ms = step_ms.unwrap_or(span / USUAL_POINTS).max(span / MAX_POINTS).max(tick_ms);
    let mut steps: BTreeMap<u64, (u64, u64, Tally)> = BTreeMap::new();
    for frame in view.between(from_ms, to_ms) {
        let nth = (frame.end_ms() - from_ms - 1) / step_ms;
        let (end_ms, millis, sum) = steps.entry(nth).or_default();
        (*end_ms, *millis) = (frame.end_ms(), *millis + frame.millis());
        let mut now = Tally::default();
        frame.each(|series, tally| {
            if numbers.contains(&series) {
                now.join(&tally);
            }
        });
        sum.add(&now);
    }
    let point = |(at_ms, millis, tally): &(u64, u64, Tally)| {
        let observed_s = float(*millis) / 1000.0;
        Point {
            at_ms: *at_ms,
            observed_s,
            ready: tally.instances.map(|instances| instances.ready),
            signals: signals(names, tally, observed_s),
        }
    };
    Some(Points { step_ms, points: steps.values().map(point).collect() })
}

/// The requests to some servers, as their clients' proxies count them. Requests that the mesh itself failed are
/// included.
pub(crate) fn budget(
    names: &SeriesNumbers,
    window: &Window,
    servers: &[NamespacedName],
    bound_ms: Option<u64>,
) -> Budget {
    let mut sum = Tally::default();
    for ((_, server), both) in edges(names, window) {
        if servers.contains(&server) {
            sum.join(&both.sum);
        }
    }
    let Signals { requests, failed, given_up, denied, .. } = signals(names, &sum, window.seconds);
    let requests = requests.saturating_sub(denied);
    let (slow, in_time_ms) = bound_ms.map(|ms| sum.durations.above_ms(ms)).unzip();
    Budget {
        observed_s: window.seconds,
        requests,
        failed: (failed + given_up).min(requests),
        slow: slow.unwrap_or_default().min(requests),
        in_time_ms,
    }
}

fn subjects(wanted: &SeriesSubject) -> Vec<SeriesKey> {
    match wanted {
        SeriesSubject::Workload(name) => vec![SeriesKey::Workload(name.clone())],
        SeriesSubject::Edge(client, server) => [true, false]
            .map(|encrypted| SeriesKey::Edge {
                client: client.clone(),
                server: server.clone(),
                encrypted,
            })
            .into(),
    }
}

/// The counts of a tally, with rates over the time in which they were counted.
pub(crate) fn signals(names: &SeriesNumbers, tally: &Tally, seconds: f64) -> Signals {
    let requests = tally.requests();
    let rate = |count: u64| if seconds > 0.0 { float(count) / seconds } else { 0.0 };
    let named = |(cause, count): &(u32, u64)| Cause {
        cause: names.cause_name(*cause).to_owned(),
        count: *count,
    };
    let mut causes: Vec<Cause> = tally.causes.iter().map(named).collect();
    causes.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.cause.cmp(&b.cause)));
    let denied = count_of(&causes, DENIED).min(requests);
    let answered = requests.saturating_sub(tally.given_up + denied);
    Signals {
        success_rate: (answered > 0)
            .then(|| (1.0 - float(tally.failures()) / float(answered)).max(0.0)),
        requests,
        failed: tally.failures(),
        given_up: tally.given_up,
        denied,
        requests_per_s: rate(requests),
        statuses: tally.classes,
        latency_ms: LatencyQuantiles {
            p50: tally.durations.quantile_ms(0.50),
            p95: tally.durations.quantile_ms(0.95),
            p99: tally.durations.quantile_ms(0.99),
        },
        tcp_opened: tally.tcp_opened,
        tcp_open: tally.tcp_open,
        tcp_read_bytes_per_s: rate(tally.read_bytes),
        tcp_written_bytes_per_s: rate(tally.written_bytes),
        connect_failures: tally.connect_failures,
        retries: tally.retries,
        ejected: tally.ejected,
        causes,
    }
}

/// The count of this cause.
pub(crate) fn count_of(causes: &[Cause], wanted: &str) -> u64 {
    causes.iter().find(|one| one.cause == wanted).map_or(0, |one| one.count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;
    use crate::testing::{edge, growth, route, workload};

    fn history() -> History {
        let mut history = History::default();
        for tick in 1..=12 {
            let mut plain = edge("web", "cart", 1.0);
            plain.encrypted = tick < 12;
            plain.counts.classes[4] = 1.0;
            plain.counts.causes = [("no-endpoints".to_owned(), 1.0)].into();
            let mut now = growth(5.0, vec![edge("web", "cart", 9.0), plain]);
            now.workloads = vec![workload("cart", (2, u32::from(tick < 7) + 1))];
            history.push(tick * 5_000, &now);
        }
        history
    }

    #[test]
    fn a_window_is_rates_and_shares() {
        let history = history();
        let identity = "spiffe://cluster.local/ns/shop/sa/web".to_owned();
        let identities = [(("shop".to_owned(), "web".to_owned()), identity.clone())].into();
        let of = |from, to| {
            topology(&history.view(), ("default", &identities), &history.window(from, to))
        };
        let minute = of(0, 60_000);
        let [edge] = minute.edges.as_slice() else { panic!("{minute:?}") };
        assert_eq!(edge.mtls, Mtls::Partly);
        assert_eq!((edge.signals.requests, edge.signals.requests_per_s), (132, 2.2));
        assert_eq!(edge.signals.success_rate, Some(1.0 - 12.0 / 132.0));
        let causes = [Cause { cause: "no-endpoints".to_owned(), count: 12 }];
        assert_eq!(edge.signals.causes, causes);
        assert_eq!((minute.workloads[0].instances, minute.workloads[0].ready), (2, 1));
        assert_eq!(of(0, 30_000).workloads[0].ready, 2);
        let half = &of(0, 30_000).edges[0];
        assert_eq!((half.mtls, half.client_identity.as_ref()), (Mtls::All, Some(&identity)));
        assert_eq!(half.server_identity, None, "it is not known");
        assert_eq!(edge.client_identity, None, "a part was plaintext");
        assert!(of(100_000, 200_000).edges.is_empty());
    }

    #[test]
    fn a_window_has_the_rules_that_requests_followed() {
        let mut history = History::default();
        for (tick, requests) in [(1, 9.0), (2, 0.0), (3, 6.0)] {
            let mut now = growth(5.0, Vec::new());
            now.routes = vec![route("1", requests), route("0", 2.0 * requests)];
            history.push(tick * 5_000, &now);
        }
        let of = |from, to| {
            let window = history.window(from, to);
            let routes = routes(history.names(), &window);
            let row = |one: Route| (one.service, one.route, one.rule, one.signals.requests);
            routes.into_iter().map(row).collect::<Vec<_>>()
        };
        let row = |rule: &str, requests| {
            ("cart".to_owned(), "HTTPRoute shop/cart".to_owned(), rule.to_owned(), requests)
        };
        assert_eq!(of(0, 15_000), [row("0", 30), row("1", 15)]);
        assert_eq!(of(5_000, 10_000), []);
        assert!(
            topology(&history.view(), ("default", &BTreeMap::new()), &history.window(0, 15_000))
                .edges
                .is_empty()
        );
    }

    #[test]
    fn a_budget_is_of_all_clients_and_counts_cancelled_but_not_denied_requests() {
        let mut history = History::default();
        let server = |name: &str| ("shop".to_owned(), name.to_owned());
        let mut given_up = edge("web", "cart", 90.0);
        given_up.counts.classes[3] = 10.0;
        given_up.counts.given_up = 10.0;
        let mut denied = edge("other", "cart", 0.0);
        denied.counts.classes[3] = 50.0;
        denied.counts.causes = [(DENIED.to_owned(), 50.0)].into();
        let mut failed = edge("api", "cart-v2", 95.0);
        failed.counts.classes[4] = 5.0;
        failed.counts.durations.add(f64::INFINITY, 5.0);
        history.push(5_000, &growth(5.0, vec![given_up, denied, failed, edge("web", "db", 9.0)]));
        let window = history.window(0, 5_000);
        let of =
            |servers: &[NamespacedName], bound| budget(history.names(), &window, servers, bound);
        let cart = of(&[server("cart")], None);
        assert_eq!((cart.requests, cart.failed, cart.slow), (100, 10, 0));
        assert_eq!((cart.observed_s, cart.in_time_ms), (5.0, None));
        let both = of(&[server("cart"), server("cart-v2")], Some(250));
        assert_eq!((both.requests, both.failed, both.slow), (200, 15, 5));
        assert_eq!(both.in_time_ms, Some(200.0));
        assert_eq!(of(&[server("nothing")], None).requests, 0);
    }

    #[test]
    fn a_series_has_its_steps() {
        let history = history();
        let wanted = SeriesSubject::Edge(
            ("shop".to_owned(), "web".to_owned()),
            ("shop".to_owned(), "cart".to_owned()),
        );
        let points = series(&history.view(), &wanted, (0, 60_000), (Some(20_000), 5_000)).unwrap();
        let all: Vec<(u64, u64)> =
            points.points.iter().map(|one| (one.at_ms, one.signals.requests)).collect();
        assert_eq!(all, [(20_000, 44), (40_000, 44), (60_000, 44)]);
        let finest = series(&history.view(), &wanted, (0, 60_000), (None, 5_000)).unwrap();
        assert_eq!((finest.step_ms, finest.points.len()), (5_000, 12));
        let unknown = SeriesSubject::Workload(("shop".to_owned(), "db".to_owned()));
        assert_eq!(series(&history.view(), &unknown, (0, 60_000), (None, 5_000)), None);
    }
}
