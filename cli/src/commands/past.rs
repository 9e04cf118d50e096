//! Converts the answers of an observer into reports.

use leno_dashboard::api::{Edge, Mtls, Route, Routes, Signals as Observed, Topology, Workload};
use leno_observe::stat::{EdgeReport, GoldenSignals, RouteReport, StatReport, WorkloadReport};

/// The report of a window of the history.
pub(crate) fn report(topology: Topology) -> StatReport {
    let seconds = topology.observed_s;
    StatReport {
        mesh: topology.mesh,
        window_s: topology.observed_s,
        workloads: topology.workloads.into_iter().map(|one| workload(one, seconds)).collect(),
        edges: topology.edges.into_iter().map(|one| edge(one, seconds)).collect(),
        routes: Vec::new(),
        ejected: Vec::new(),
        silent: Vec::new(),
    }
}

/// The report of the routes in a window of the history.
pub(crate) fn routes(routes: Routes) -> StatReport {
    let seconds = routes.observed_s;
    let route = |one: Route| RouteReport {
        namespace: one.namespace,
        service: one.service,
        route: one.route,
        rule: one.rule,
        signals: signals(&one.signals, seconds, None),
    };
    StatReport {
        mesh: routes.mesh,
        window_s: seconds,
        workloads: Vec::new(),
        edges: Vec::new(),
        routes: routes.routes.into_iter().map(route).collect(),
        ejected: Vec::new(),
        silent: Vec::new(),
    }
}

fn workload(workload: Workload, seconds: f64) -> WorkloadReport {
    WorkloadReport {
        namespace: workload.namespace,
        name: workload.name,
        instances: workload.instances as usize,
        ready: workload.ready as usize,
        meshed: workload.meshed,
        // The history does not record processes, and only the present ones are known.
        proxies: Vec::new(),
        // The figures of a workload do not distinguish its clients, so they do not show whether the traffic used
        // mTLS.
        signals: signals(&workload.signals, seconds, None),
    }
}

fn edge(edge: Edge, seconds: f64) -> EdgeReport {
    EdgeReport {
        client_namespace: edge.client_namespace,
        client: edge.client,
        server_namespace: edge.server_namespace,
        server: edge.server,
        client_identity: edge.client_identity,
        server_identity: edge.server_identity,
        signals: signals(&edge.signals, seconds, Some(edge.mtls == Mtls::All)),
    }
}

fn signals(observed: &Observed, seconds: f64, mtls: Option<bool>) -> GoldenSignals {
    let share = |count: u64| match observed.requests {
        0 => 0.0,
        all => leno_dashboard::tally::float(count) / leno_dashboard::tally::float(all),
    };
    let rate = |count: u64| match seconds > 0.0 {
        true => leno_dashboard::tally::float(count) / seconds,
        false => 0.0,
    };
    let passed = observed.requests > 0 || observed.tcp_opened > 0 || observed.tcp_open > 0;
    GoldenSignals {
        requests: observed.requests,
        success_rate: observed.success_rate,
        requests_per_s: observed.requests_per_s,
        given_up: share(observed.given_up),
        denied: share(observed.denied),
        latency_ms: observed.latency_ms,
        tcp_open: leno_dashboard::tally::float(observed.tcp_open),
        tcp_opened_per_s: rate(observed.tcp_opened),
        retries_per_s: rate(observed.retries),
        tcp_bytes_per_s: observed.tcp_read_bytes_per_s + observed.tcp_written_bytes_per_s,
        causes: observed.causes.iter().map(|one| (one.cause.clone(), one.count)).collect(),
        mtls: mtls.filter(|_| passed),
    }
}
