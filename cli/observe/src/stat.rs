//! Which workload calls which, how often, how fast, how successfully and whether encrypted,
//! computed from the counters of proxies over a window of time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

mod believed;
mod growth;
mod proxy_counters;
mod proxy_process;
mod proxy_state;
mod routes;

use crate::ejected::EjectedEndpoint;
use crate::metrics::Sample;

pub use growth::{EdgeGrowth, InstanceGrowth, MeshGrowth, WorkloadGrowth};
pub(crate) use proxy_counters::{COUNTERS, GAUGES, IDENTITY};
pub use proxy_counters::{DENIED, NamespacedName, PairCounts, ProxyCounters};
pub use proxy_process::{ProcessReport, ProxyProcess};
pub use proxy_state::{ProxyReport, ProxyState};
pub use routes::{RouteGrowth, RouteName, RouteReport};

use proxy_counters::EdgeEnds;

/// The name that reports use for a client without an identity.
pub const UNMESHED: &str = "(unmeshed)";
/// The name that reports use for a server that the mesh does not know.
const OUTSIDE: &str = "(outside)";

/// One instance of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatInstance {
    /// Its namespace.
    pub namespace: String,
    /// The workload that it belongs to.
    pub workload: String,
    /// Its name.
    pub name: String,
    /// Whether it has a proxy.
    pub meshed: bool,
    /// Whether it is ready for traffic, or is deliberately without traffic.
    pub ready: bool,
    /// Where its proxy runs; `None` if it has no proxy, or if the place is not known.
    pub proxy: Option<ProxyProcess>,
}

/// A proxy's counters, or why it did not answer; `None` if it was not queried.
pub type ScrapeResult = Option<Result<ProxyCounters, String>>;

/// The counters of all proxies of a mesh, each at the time of its answer.
#[derive(Clone, Debug)]
pub struct Scrape {
    /// When the proxies were queried.
    at: Instant,
    mesh: String,
    instances: Vec<StatInstance>,
    /// The counters of the proxies that answered, by namespace and instance.
    counted: BTreeMap<NamespacedName, ProxyCounters>,
    /// The identities of workloads that a Prometheus server has recorded.
    recorded: BTreeMap<NamespacedName, String>,
    /// Instances whose proxy did not answer, with the reason.
    silent: BTreeMap<NamespacedName, String>,
    /// Instances that may have counted something before this scrape that the scrape does not contain. When such an
    /// instance first answers, its counts are not taken for new ones.
    unknown: BTreeSet<NamespacedName>,
}

/// The difference between two scrapes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatReport {
    /// The name of the mesh that `leno up` runs, or the name of the cluster's context.
    pub mesh: String,
    /// The time between the two scrapes. The figures of each proxy cover its own window, from one of its answers
    /// to the next.
    pub window_s: f64,
    /// Every workload, by namespace and name.
    pub workloads: Vec<WorkloadReport>,
    /// Every edge, by client and server.
    pub edges: Vec<EdgeReport>,
    /// Every rule of a route that requests followed, by service and route.
    pub routes: Vec<RouteReport>,
    /// Endpoints that proxies eject now.
    pub ejected: Vec<EjectedEndpoint>,
    /// Instances whose proxy did not answer, with the reason.
    pub silent: Vec<String>,
}

/// A workload as a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkloadReport {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How many instances it has.
    pub instances: usize,
    /// How many of its instances are ready for traffic, or are deliberately without traffic.
    pub ready: usize,
    /// Whether it has proxies.
    pub meshed: bool,
    /// Where its proxies run. Empty if the places are not known, for example for a time in the past.
    pub proxies: Vec<ProcessReport>,
    /// The signals of the requests that it answered.
    #[serde(flatten)]
    pub signals: GoldenSignals,
}

/// A client workload and a server workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EdgeReport {
    /// The client's namespace.
    pub client_namespace: String,
    /// The client's workload.
    pub client: String,
    /// The server's namespace.
    pub server_namespace: String,
    /// The server's workload.
    pub server: String,
    /// The identity that the client proves; `None` unless its connections use mTLS.
    pub client_identity: Option<String>,
    /// The identity that the server proves; `None` unless its connections use mTLS.
    pub server_identity: Option<String>,
    /// The signals of the requests between them.
    #[serde(flatten)]
    pub signals: GoldenSignals,
}

/// The golden signals.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GoldenSignals {
    /// The number of requests from which the rates, shares and times are computed.
    pub requests: u64,
    /// The share of answered requests that did not fail, from 0 to 1; `None` if no request was answered.
    pub success_rate: Option<f64>,
    /// Requests per second.
    pub requests_per_s: f64,
    /// The share of requests that the client abandoned before a response began.
    pub given_up: f64,
    /// The share of requests that an authorization policy denied.
    pub denied: f64,
    /// Retries of requests and of connections, per second.
    pub retries_per_s: f64,
    /// Time from a request's head to the end of its response.
    pub latency_ms: LatencyQuantiles,
    /// Opaque connections that are open at the end of the window.
    pub tcp_open: f64,
    /// Opaque connections opened per second.
    pub tcp_opened_per_s: f64,
    /// Bytes of opaque connections per second, in both directions together.
    pub tcp_bytes_per_s: f64,
    /// How many requests and connections the mesh itself failed or refused, by cause.
    pub causes: BTreeMap<String, u64>,
    /// Whether all of the traffic used mTLS; `None` without traffic.
    pub mtls: Option<bool>,
}

/// Quantiles in milliseconds; `None` without requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyQuantiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 95th percentile.
    pub p95: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
}

/// The smallest number of requests for which the percentile differs from the slowest request: at least one request
/// is above it.
const FEWEST_FOR_P95: u64 = 20;
const FEWEST_FOR_P99: u64 = 100;

impl GoldenSignals {
    /// The percentiles for which there are enough requests. With fewer requests, the p99 would just be the slowest
    /// request.
    #[must_use]
    pub fn reliable_latency_ms(&self) -> LatencyQuantiles {
        let LatencyQuantiles { p50, p95, p99 } = self.latency_ms;
        LatencyQuantiles {
            p50,
            p95: p95.filter(|_| self.requests >= FEWEST_FOR_P95),
            p99: p99.filter(|_| self.requests >= FEWEST_FOR_P99),
        }
    }
}

/// Sums over proxies that were queried at different times, for a workload or an edge.
#[derive(Clone, Debug, Default)]
struct Total {
    sum: PairCounts,
    requests_per_s: f64,
    tcp_opened_per_s: f64,
    tcp_bytes_per_s: f64,
    retries_per_s: f64,
    /// Whether there was traffic, or an attempt to send some.
    any: bool,
    encrypted: bool,
    plain: bool,
}

/// The client, the server, and whether the traffic used mTLS.
type EdgeKey = (NamespacedName, NamespacedName, bool);

/// What one proxy has counted between two ends since the previous query.
struct Increase<'a> {
    ends: &'a EdgeEnds,
    sum: PairCounts,
    seconds: f64,
}

impl Scrape {
    /// A scrape of the answers that arrived at the time `at`. A proxy that did not answer is recorded as silent.
    #[must_use]
    pub fn new(mesh: &str, at: Instant, answers: Vec<(StatInstance, ScrapeResult)>) -> Self {
        let (mut instances, mut counted, mut silent) =
            (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for (instance, answer) in answers {
            let name = (instance.namespace.clone(), instance.name.clone());
            match answer {
                None => {}
                Some(Ok(one)) => drop(counted.insert(name.clone(), one.owned_by(&name))),
                Some(Err(reason)) => drop(silent.insert(name, reason)),
            }
            instances.push(instance);
        }
        let name = |one: &StatInstance| (one.namespace.clone(), one.name.clone());
        let meshed = instances.iter().filter(|one| one.meshed).map(name);
        let unknown = meshed.filter(|name| !counted.contains_key(name)).collect();
        let recorded = BTreeMap::new();
        Self { at, mesh: mesh.to_owned(), instances, counted, recorded, silent, unknown }
    }

    /// An empty scrape, for the start of a mesh, when nothing has been counted yet.
    #[must_use]
    pub fn beginning(mesh: &str, at: Instant) -> Self {
        Self::new(mesh, at, Vec::new())
    }

    /// The report on everything that all proxies of a mesh counted in a window of time, from the records of a
    /// Prometheus server (`crate::prometheus`). `instances` lists the workloads that exist.
    #[must_use]
    pub fn recorded(
        mesh: &str,
        instances: Vec<StatInstance>,
        samples: &[Sample],
        window: Duration,
    ) -> StatReport {
        // Only the difference between the two times is used. They must not lie before the start of the machine,
        // which may be within the window.
        let begin = Instant::now();
        let end = begin + window;
        let mut now = Self::new(mesh, end, Vec::new());
        now.counted.insert(NamespacedName::default(), ProxyCounters::of_samples(samples, end));
        let mut identities: Vec<&Sample> =
            samples.iter().filter(|one| one.name == IDENTITY).collect();
        // The values are times. After sorting by them, the map keeps the newest identity of each workload.
        identities.sort_by(|a, b| a.value.total_cmp(&b.value));
        now.recorded = identities.into_iter().filter_map(recorded_identity).collect();
        now.instances = instances;
        now.since(&Self::beginning(mesh, begin))
    }

    /// Why the proxy of an instance did not answer; `None` if it answered or was not queried.
    #[must_use]
    pub fn silence(&self, instance: &StatInstance) -> Option<&str> {
        let name = (instance.namespace.clone(), instance.name.clone());
        self.silent.get(&name).map(String::as_str)
    }

    /// Instances whose proxy did not answer, with the reason.
    fn silent(&self) -> Vec<String> {
        let all = self.silent.iter();
        all.map(|((namespace, name), reason)| format!("{namespace}/{name}: {reason}")).collect()
    }

    /// The difference between `before` and this scrape.
    #[must_use]
    pub fn since(&self, before: &Self) -> StatReport {
        report(self, before)
    }

    /// The increase of each proxy's counters since `before`. A proxy that existed at `before` but did not answer
    /// then is left out. If a proxy did not exist then, all its counts are new.
    fn increases<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = Increase<'a>> {
        let increases = self.increases_of(before, |one: &ProxyCounters| &one.edges);
        increases.map(|(ends, sum, seconds)| Increase { ends, sum, seconds })
    }

    /// Like `increases`, but for counters with any key. Also returns the seconds in which each counter has grown.
    fn increases_of<'a, K: Ord + 'a>(
        &'a self,
        before: &'a Self,
        of: impl Fn(&'a ProxyCounters) -> &'a BTreeMap<K, PairCounts> + Copy,
    ) -> impl Iterator<Item = (&'a K, PairCounts, f64)> {
        let told = self.counted.iter().filter(move |(name, _)| !before.unknown.contains(*name));
        told.flat_map(move |(name, now)| {
            let earlier = before.counted.get(name);
            let since = earlier.map_or(before.at, |earlier| earlier.at);
            let seconds = now.at.duration_since(since).as_secs_f64();
            of(now).iter().map(move |(key, sum)| {
                let sum = match earlier.and_then(|earlier| of(earlier).get(key)) {
                    Some(earlier) => sum.since(earlier),
                    None => sum.clone(),
                };
                (key, sum, seconds)
            })
        })
    }

    /// The identities of workloads, by namespace and name.
    fn identities(&self) -> BTreeMap<NamespacedName, String> {
        let all = self.instances.iter().filter_map(|instance| {
            let name = (instance.namespace.clone(), instance.name.clone());
            let identity = self.counted.get(&name)?.identity.clone()?;
            Some(((instance.namespace.clone(), instance.workload.clone()), identity))
        });
        all.chain(self.recorded.clone()).collect()
    }
}

impl StatReport {
    /// Reduces the report to one namespace: its workloads, and the edges that begin or end there.
    #[must_use]
    pub fn of_namespace(mut self, namespace: &str) -> Self {
        self.workloads.retain(|one| one.namespace == namespace);
        let of = |edge: &EdgeReport| {
            [&edge.client_namespace, &edge.server_namespace].map(|one| one == namespace)
        };
        self.edges.retain(|edge| of(edge).contains(&true));
        self.routes.retain(|one| one.namespace == namespace);
        self.ejected
            .retain(|one| one.client_namespace == namespace || one.server_namespace == namespace);
        let place = format!("{namespace}/");
        self.silent.retain(|one| one.starts_with(&place));
        self
    }
}

/// The increases of the counts of servers, and of edges between clients and servers.
struct GrownCounts {
    servers: BTreeMap<NamespacedName, Total>,
    edges: BTreeMap<EdgeKey, Total>,
}

fn grown(now: &Scrape, before: &Scrape) -> GrownCounts {
    let names = Names::of(&now.instances);
    let mut servers: BTreeMap<NamespacedName, Total> = BTreeMap::new();
    let mut edges: BTreeMap<EdgeKey, Total> = BTreeMap::new();
    let mut unmeshed: BTreeMap<NamespacedName, Total> = BTreeMap::new();
    for increase in now.increases(before) {
        let ends = increase.ends;
        let server = names.workload(&ends.server);
        if ends.inbound {
            servers.entry(server.clone()).or_default().add(&increase);
            if !ends.encrypted && ends.client.1.is_empty() {
                unmeshed.entry(server).or_default().add(&increase);
            }
        } else {
            let server = match (server.1.as_str(), ends.service.as_str()) {
                ("", "") => (String::new(), OUTSIDE.to_owned()),
                ("", service) => (server.0, service.to_owned()),
                _ => server,
            };
            let key = (names.workload(&ends.client), server, ends.encrypted);
            edges.entry(key).or_default().add(&increase);
        }
    }
    // The client's side has already counted plaintext between two meshed workloads.
    for (server, total) in unmeshed {
        let known = edges
            .iter()
            .any(|((_, to, encrypted), total)| *to == server && !encrypted && total.any);
        if !known {
            let client = (String::new(), UNMESHED.to_owned());
            edges.insert((client, server, false), total);
        }
    }
    join_attempts(&mut edges);
    GrownCounts { servers, edges }
}

/// Adds attempts that reached no server to the edge between the same workloads on which requests reached the
/// server. An attempt is neither encrypted nor plain, and proxies count it as plaintext.
fn join_attempts(edges: &mut BTreeMap<EdgeKey, Total>) {
    let nowhere = |total: &Total| total.any && !total.plain;
    let attempts: Vec<EdgeKey> = edges
        .iter()
        .filter(|((client, server, encrypted), total)| {
            let with_mtls = (client.clone(), server.clone(), true);
            !encrypted && nowhere(total) && edges.contains_key(&with_mtls)
        })
        .map(|(key, _)| key.clone())
        .collect();
    for key in attempts {
        let Some(total) = edges.remove(&key) else { continue };
        edges.entry((key.0, key.1, true)).or_default().join(&total);
    }
}

/// The workload and identity in a sample of the identity metric. Samples of older proxies do not name the
/// workload.
fn recorded_identity(sample: &Sample) -> Option<(NamespacedName, String)> {
    let label = |name: &str| sample.labels.get(name).cloned();
    Some(((label("workload_namespace")?, label("workload")?), label("identity")?))
}

fn report(now: &Scrape, before: &Scrape) -> StatReport {
    let GrownCounts { servers, edges } = grown(now, before);
    let identities = now.identities();
    let edge = |((client, server, _), total): (EdgeKey, Total)| {
        (total.any || !total.sum.causes.is_empty()).then(|| {
            let signals = total.signals();
            // Over plaintext, a peer does not prove its identity.
            let proven =
                |name| identities.get(name).filter(|_| signals.mtls == Some(true)).cloned();
            EdgeReport {
                client_identity: proven(&client),
                server_identity: proven(&server),
                client_namespace: client.0,
                client: client.1,
                server_namespace: server.0,
                server: server.1,
                signals,
            }
        })
    };
    StatReport {
        mesh: now.mesh.clone(),
        window_s: now.at.duration_since(before.at).as_secs_f64(),
        workloads: workloads(&now.instances, &servers),
        edges: edges.into_iter().filter_map(edge).collect(),
        routes: StatReport::routes_between(now, before),
        ejected: now.counted.values().flat_map(|one| one.ejected.clone()).collect(),
        silent: now.silent(),
    }
}

fn workloads(
    instances: &[StatInstance],
    servers: &BTreeMap<NamespacedName, Total>,
) -> Vec<WorkloadReport> {
    let mut found: BTreeMap<NamespacedName, WorkloadReport> = BTreeMap::new();
    let mut proxies: BTreeMap<NamespacedName, BTreeMap<ProxyProcess, usize>> = BTreeMap::new();
    for instance in instances {
        let name = (instance.namespace.clone(), instance.workload.clone());
        if let Some(proxy) = instance.proxy.clone() {
            *proxies.entry(name.clone()).or_default().entry(proxy).or_default() += 1;
        }
        let report = found.entry(name.clone()).or_insert_with(|| WorkloadReport {
            namespace: name.0.clone(),
            name: name.1.clone(),
            instances: 0,
            ready: 0,
            meshed: false,
            proxies: Vec::new(),
            signals: servers.get(&name).cloned().unwrap_or_default().signals(),
        });
        report.instances += 1;
        report.meshed |= instance.meshed;
        report.ready += usize::from(instance.ready);
    }
    for (name, counted) in proxies {
        if let Some(report) = found.get_mut(&name) {
            report.proxies = proxy_process::reports(counted);
        }
    }
    found.into_values().collect()
}

/// The name of each instance's workload.
struct Names<'a>(BTreeMap<(&'a str, &'a str), &'a str>);

impl<'a> Names<'a> {
    fn of(instances: &'a [StatInstance]) -> Self {
        let all = instances.iter();
        Self(all.map(|i| ((i.namespace.as_str(), i.name.as_str()), i.workload.as_str())).collect())
    }

    fn workload(&self, (namespace, instance): &NamespacedName) -> NamespacedName {
        let workload = self.0.get(&(&**namespace, &**instance)).copied().unwrap_or(instance);
        (namespace.clone(), workload.to_owned())
    }
}

impl Total {
    fn add(&mut self, Increase { ends, sum, seconds }: &Increase<'_>) {
        self.count(sum, *seconds);
        // An edge marked as mTLS counts connections that were encrypted or should have been.
        self.encrypted |= ends.encrypted && !sum.is_empty();
        self.plain |= !ends.encrypted && sum.passed();
    }

    fn count(&mut self, sum: &PairCounts, seconds: f64) {
        self.sum.add(sum);
        if seconds > 0.0 {
            self.requests_per_s += sum.requests() / seconds;
            self.tcp_opened_per_s += sum.tcp_opened / seconds;
            self.tcp_bytes_per_s += sum.tcp_bytes() / seconds;
            self.retries_per_s += sum.retries / seconds;
        }
        self.any |= sum.any();
    }

    fn join(&mut self, other: &Self) {
        self.sum.add(&other.sum);
        self.requests_per_s += other.requests_per_s;
        self.tcp_opened_per_s += other.tcp_opened_per_s;
        self.tcp_bytes_per_s += other.tcp_bytes_per_s;
        self.retries_per_s += other.retries_per_s;
        self.any |= other.any;
        self.encrypted |= other.encrypted;
        self.plain |= other.plain;
    }

    fn signals(&self) -> GoldenSignals {
        let sum = &self.sum;
        let milliseconds = |q| sum.durations.quantile(q).map(|seconds| seconds * 1000.0);
        let (requests, answered) = (sum.requests(), sum.answered());
        let share = |count: f64| if requests > 0.0 { count / requests } else { 0.0 };
        GoldenSignals {
            requests: requests.round() as u64,
            success_rate: (answered > 0.0).then(|| (1.0 - sum.failures() / answered).max(0.0)),
            requests_per_s: self.requests_per_s,
            given_up: share(sum.given_up),
            denied: share(sum.denied()),
            retries_per_s: self.retries_per_s,
            latency_ms: LatencyQuantiles {
                p50: milliseconds(0.50),
                p95: milliseconds(0.95),
                p99: milliseconds(0.99),
            },
            tcp_open: sum.tcp_open,
            tcp_opened_per_s: self.tcp_opened_per_s,
            tcp_bytes_per_s: self.tcp_bytes_per_s,
            causes: sum
                .causes
                .iter()
                .map(|(cause, count)| (cause.clone(), *count as u64))
                .collect(),
            mtls: (self.any && (self.encrypted || self.plain)).then_some(!self.plain),
        }
    }
}

#[cfg(test)]
mod tests;
