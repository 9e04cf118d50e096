//! Sorts the rows of a report and selects the rows that are shown.

use std::cmp::Ordering;

use clap::{Args, ValueEnum};
use leno_observe::stat::{GoldenSignals, StatReport};

/// The options that select and sort rows.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RowOrder {
    /// Figure by which rows are sorted, the worst or largest first
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: Sort,

    /// Shows only rows with this text in the name of the workload, the client, the server, the service or the route
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
}

/// The figure by which rows are sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Namespace and name
    #[default]
    Name,
    /// Success rate
    Success,
    /// Requests per second
    Rate,
    /// Median of the latency
    P50,
    /// 95th percentile of the latency
    P95,
    /// 99th percentile of the latency
    P99,
    /// Bytes per second of opaque connections
    Bytes,
}

impl RowOrder {
    /// The rows of a report that are shown, in their order.
    pub(crate) fn of(&self, mut report: StatReport) -> StatReport {
        if let Some(part) = self.filter.as_deref().filter(|part| !part.is_empty()) {
            let has = |namespace: &str, name: &str| format!("{namespace}/{name}").contains(part);
            report
                .routes
                .retain(|one| has(&one.namespace, &one.service) || one.route.contains(part));
            report.workloads.retain(|one| has(&one.namespace, &one.name));
            report.edges.retain(|one| {
                has(&one.client_namespace, &one.client) || has(&one.server_namespace, &one.server)
            });
        }
        // Rows with equal figures keep the order of their names, in which reports list them.
        report.workloads.sort_by(|a, b| self.sort.compare(&a.signals, &b.signals));
        report.routes.sort_by(|a, b| self.sort.compare(&a.signals, &b.signals));
        report.edges.sort_by(|a, b| self.sort.compare(&a.signals, &b.signals));
        report
    }
}

impl Sort {
    /// All figures, in the order in which a key of `leno top` selects them.
    pub(crate) const ALL: [Self; 7] =
        [Self::Name, Self::Success, Self::Rate, Self::P50, Self::P95, Self::P99, Self::Bytes];

    /// The name of the option's value.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Success => "success",
            Self::Rate => "rate",
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Bytes => "bytes",
        }
    }

    fn compare(self, a: &GoldenSignals, b: &GoldenSignals) -> Ordering {
        let most = |a: Option<f64>, b: Option<f64>| b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0));
        let (of_a, of_b) = (a.reliable_latency_ms(), b.reliable_latency_ms());
        match self {
            Self::Name => Ordering::Equal,
            Self::Success => {
                a.success_rate.unwrap_or(2.0).total_cmp(&b.success_rate.unwrap_or(2.0))
            }
            Self::Rate => b.requests_per_s.total_cmp(&a.requests_per_s),
            Self::P50 => most(of_a.p50, of_b.p50),
            Self::P95 => most(of_a.p95, of_b.p95),
            Self::P99 => most(of_a.p99, of_b.p99),
            Self::Bytes => b.tcp_bytes_per_s.total_cmp(&a.tcp_bytes_per_s),
        }
    }
}

#[cfg(test)]
mod tests {
    use leno_observe::stat::{EdgeReport, LatencyQuantiles, RouteReport};

    use super::*;

    fn signals(requests_per_s: f64, p99: Option<f64>, success_rate: Option<f64>) -> GoldenSignals {
        let latency_ms = LatencyQuantiles { p99, ..LatencyQuantiles::default() };
        let requests = 100;
        let signals = GoldenSignals { success_rate, requests_per_s, ..GoldenSignals::default() };
        GoldenSignals { requests, latency_ms, ..signals }
    }

    fn report() -> StatReport {
        let edge = |server: &str, rate, p99, success_rate| EdgeReport {
            client_namespace: "shop".to_owned(),
            client: "web".to_owned(),
            server_namespace: "shop".to_owned(),
            server: server.to_owned(),
            client_identity: None,
            server_identity: None,
            signals: signals(rate, p99, success_rate),
        };
        StatReport {
            mesh: "default".to_owned(),
            window_s: 1.0,
            workloads: Vec::new(),
            edges: vec![
                edge("cart", 5.0, Some(9.0), Some(1.0)),
                edge("db", 7.0, None, None),
                edge("users", 6.0, Some(20.0), Some(0.5)),
            ],
            routes: [("a", 2.0), ("b", 3.0)]
                .map(|(route, rate)| RouteReport {
                    namespace: "shop".to_owned(),
                    service: "cart".to_owned(),
                    route: format!("HTTPRoute shop/{route}"),
                    rule: "0".to_owned(),
                    signals: signals(rate, None, None),
                })
                .into(),
            ejected: Vec::new(),
            silent: Vec::new(),
        }
    }

    #[test]
    fn rows_are_sorted_by_the_worst_or_the_most_and_left_out_by_name() {
        let servers = |sort, filter: Option<&str>| -> Vec<String> {
            let order = RowOrder { sort, filter: filter.map(str::to_owned) };
            order.of(report()).edges.into_iter().map(|edge| edge.server).collect()
        };
        assert_eq!(servers(Sort::Name, None), ["cart", "db", "users"]);
        assert_eq!(servers(Sort::Rate, None), ["db", "users", "cart"]);
        assert_eq!(servers(Sort::P99, None), ["users", "cart", "db"]);
        assert_eq!(servers(Sort::Success, None), ["users", "cart", "db"]);
        let mut few = report();
        few.edges[2].signals.requests = 99;
        let order = RowOrder { sort: Sort::P99, filter: None };
        assert_eq!(order.of(few).edges[0].server, "cart", "a p99 of 99 requests does not count");
        assert_eq!(servers(Sort::Name, Some("shop/us")), ["users"]);
        assert_eq!(servers(Sort::Name, Some("web")).len(), 3);
        let routes = |filter: &str| {
            let order = RowOrder { sort: Sort::Rate, filter: Some(filter.to_owned()) };
            order.of(report()).routes.into_iter().map(|one| one.route).collect::<Vec<_>>()
        };
        assert_eq!(routes("shop/cart"), ["HTTPRoute shop/b", "HTTPRoute shop/a"]);
        assert_eq!(routes("HTTPRoute shop/a"), ["HTTPRoute shop/a"]);
    }
}
