//! Who calls whom, how often, how fast, how well, and whether encrypted, from what the
//! proxies counted over a window of time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::admin::Reply;
use crate::metrics::{self, Histogram, Sample};

/// Counter of requests, by edge and status.
const REQUESTS: &str = "leno_requests_total";
/// Their durations, by edge.
const DURATIONS: &str = "leno_request_duration_seconds_bucket";
/// Opaque connections open now, by edge.
const OPEN: &str = "leno_tcp_open_connections";
/// Bytes of opaque connections, by edge: both directions.
const BYTES: [&str; 2] = ["leno_tcp_read_bytes_total", "leno_tcp_written_bytes_total"];
/// Lowest status that counts as a failure of the server.
const FAILURE: u16 = 500;
/// What a client without identity is called.
const UNMESHED: &str = "(unmeshed)";
/// What a server that the mesh does not know is called.
const OUTSIDE: &str = "(outside)";

/// One instance of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// Its namespace.
    pub namespace: String,
    /// What it is an instance of.
    pub workload: String,
    /// Its name.
    pub name: String,
    /// Whether it has a proxy.
    pub meshed: bool,
    /// Whether it takes traffic.
    pub ready: bool,
}

/// What a proxy has answered to `/metrics`, or why it has not; none where it was not asked.
pub type Answer = Option<Result<Reply, String>>;

/// What all proxies of a mesh had counted at one moment.
#[derive(Clone, Debug)]
pub struct Scrape {
    at: Instant,
    mesh: String,
    instances: Vec<Instance>,
    /// By namespace and instance.
    samples: BTreeMap<(String, String), Vec<Sample>>,
    /// Instances whose proxy did not answer, with the reason.
    silent: Vec<String>,
}

/// What happened between two moments.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The name of the mesh: of `leno up`, or the cluster's context.
    pub mesh: String,
    /// The time between both.
    pub window_s: f64,
    /// Every workload, by namespace and name.
    pub workloads: Vec<WorkloadReport>,
    /// Every edge, by client and server.
    pub edges: Vec<EdgeReport>,
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
    /// How many instances it should have.
    pub instances: usize,
    /// How many of them take traffic.
    pub ready: usize,
    /// Whether it has proxies.
    pub meshed: bool,
    /// The requests it answered.
    #[serde(flatten)]
    pub signals: Signals,
}

/// A client workload and a server workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EdgeReport {
    /// The client's namespace.
    pub client_namespace: String,
    /// The client.
    pub client: String,
    /// The server's namespace.
    pub server_namespace: String,
    /// The server.
    pub server: String,
    /// The requests between them.
    #[serde(flatten)]
    pub signals: Signals,
}

/// The golden signals.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Signals {
    /// The share of requests that did not fail, 0 to 1; none without requests.
    pub success_rate: Option<f64>,
    /// Requests a second.
    pub requests_per_s: f64,
    /// Time from a request's head to the end of its response.
    pub latency_ms: Latency,
    /// Opaque connections open at the end of the window.
    pub tcp_open: f64,
    /// Bytes of opaque connections a second, both directions.
    pub tcp_bytes_per_s: f64,
    /// Whether all of it was mTLS; none when there was nothing.
    pub mtls: Option<bool>,
}

/// Quantiles in milliseconds; none without requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: Option<f64>,
    /// 95 %.
    pub p95: Option<f64>,
    /// 99 %.
    pub p99: Option<f64>,
}

/// What is summed for a workload or an edge.
#[derive(Clone, Debug, Default)]
struct Sum {
    requests: f64,
    failures: f64,
    durations: Histogram,
    tcp_open: f64,
    tcp_bytes: f64,
    encrypted: bool,
    plain: bool,
}

/// Namespace and name of a workload.
type Name = (String, String);
/// Client, server, and whether mTLS.
type EdgeKey = (Name, Name, bool);

impl Scrape {
    /// What was answered at one moment. One that did not answer is noted and harms nothing.
    #[must_use]
    pub fn new(mesh: &str, at: Instant, answers: Vec<(Instance, Answer)>) -> Self {
        let (mut instances, mut samples, mut silent) = (Vec::new(), BTreeMap::new(), Vec::new());
        for (instance, answer) in answers {
            let name = (instance.namespace.clone(), instance.name.clone());
            match answer {
                None => {}
                Some(Ok(reply)) if reply.status == 200 => {
                    samples.insert(name, metrics::parse(&reply.body));
                }
                Some(Ok(reply)) => {
                    silent.push(format!("{}/{}: HTTP {}", name.0, name.1, reply.status));
                }
                Some(Err(reason)) => silent.push(format!("{}/{}: {reason}", name.0, name.1)),
            }
            instances.push(instance);
        }
        Self { at, mesh: mesh.to_owned(), instances, samples, silent }
    }

    /// What happened since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Report {
        let window = self.at.duration_since(before.at);
        report(self, &self.increase(before), window)
    }

    /// Every sample's increase since `before`, gauges as they are. A counter that is lower than it
    /// was began anew with its proxy. Of a proxy that was there and did not answer then nothing is known.
    fn increase(&self, before: &Self) -> Vec<Sample> {
        let mut increases = Vec::new();
        let was_there = |(namespace, name): &(String, String)| {
            let mut all = before.instances.iter();
            all.any(|one| one.meshed && one.namespace == *namespace && one.name == *name)
        };
        for (instance, samples) in &self.samples {
            if !before.samples.contains_key(instance) && was_there(instance) {
                continue;
            }
            let key = |sample: &Sample| (sample.name.clone(), sample.labels.clone());
            let old = before.samples.get(instance).into_iter().flatten();
            let old: BTreeMap<_, f64> = old.map(|sample| (key(sample), sample.value)).collect();
            for sample in samples {
                let earlier = old.get(&key(sample)).copied().unwrap_or_default();
                let counts = sample.name != OPEN && earlier <= sample.value;
                let value = if counts { sample.value - earlier } else { sample.value };
                increases.push(Sample { value, ..sample.clone() });
            }
        }
        increases
    }
}

impl Report {
    /// What of it concerns one namespace: its workloads, and edges that begin or end there.
    #[must_use]
    pub fn of_namespace(mut self, namespace: &str) -> Self {
        self.workloads.retain(|one| one.namespace == namespace);
        let of = |edge: &EdgeReport| {
            [&edge.client_namespace, &edge.server_namespace].map(|one| one == namespace)
        };
        self.edges.retain(|edge| of(edge).contains(&true));
        let place = format!("{namespace}/");
        self.silent.retain(|one| one.starts_with(&place));
        self
    }
}

fn report(now: &Scrape, samples: &[Sample], window: Duration) -> Report {
    let names = Names::of(&now.instances);
    let (mut servers, mut edges) = (BTreeMap::new(), BTreeMap::new());
    let mut unmeshed: BTreeMap<Name, Sum> = BTreeMap::new();
    for sample in samples {
        let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
        let encrypted = label("mtls") == "true";
        let server = names.workload(label("server_namespace"), label("server"));
        match label("direction") {
            "inbound" => {
                servers.entry(server.clone()).or_insert_with(Sum::default).add(sample, encrypted);
                if !encrypted && label("client").is_empty() {
                    unmeshed.entry(server).or_default().add(sample, false);
                }
            }
            "outbound" => {
                let client = names.workload(label("client_namespace"), label("client"));
                let server = match (server.1.as_str(), label("service")) {
                    ("", "") => (String::new(), OUTSIDE.to_owned()),
                    ("", service) => (label("server_namespace").to_owned(), service.to_owned()),
                    _ => server,
                };
                let key: EdgeKey = (client, server, encrypted);
                edges.entry(key).or_insert_with(Sum::default).add(sample, encrypted);
            }
            _ => {}
        }
    }
    // Plaintext between two meshed workloads was counted at the client's side already.
    for (server, sum) in unmeshed {
        let known = edges.iter().any(|((_, to, encrypted), sum): (&EdgeKey, &Sum)| {
            *to == server && !encrypted && sum.any()
        });
        if !known {
            let client = (String::new(), UNMESHED.to_owned());
            edges.insert((client, server, false), sum);
        }
    }
    let seconds = window.as_secs_f64();
    let edge = |((client, server, _), sum): (EdgeKey, Sum)| {
        sum.any().then(|| EdgeReport {
            client_namespace: client.0,
            client: client.1,
            server_namespace: server.0,
            server: server.1,
            signals: sum.signals(seconds),
        })
    };
    Report {
        mesh: now.mesh.clone(),
        window_s: seconds,
        workloads: workloads(&now.instances, &servers, seconds),
        edges: edges.into_iter().filter_map(edge).collect(),
        silent: now.silent.clone(),
    }
}

fn workloads(
    instances: &[Instance],
    servers: &BTreeMap<Name, Sum>,
    seconds: f64,
) -> Vec<WorkloadReport> {
    let mut found: BTreeMap<Name, WorkloadReport> = BTreeMap::new();
    for instance in instances {
        let name = (instance.namespace.clone(), instance.workload.clone());
        let report = found.entry(name.clone()).or_insert_with(|| WorkloadReport {
            namespace: name.0.clone(),
            name: name.1.clone(),
            instances: 0,
            ready: 0,
            meshed: false,
            signals: servers.get(&name).cloned().unwrap_or_default().signals(seconds),
        });
        report.instances += 1;
        report.meshed |= instance.meshed;
        report.ready += usize::from(instance.ready);
    }
    found.into_values().collect()
}

/// Which workload an instance is of.
struct Names<'a>(BTreeMap<(&'a str, &'a str), &'a str>);

impl<'a> Names<'a> {
    fn of(instances: &'a [Instance]) -> Self {
        let all = instances.iter();
        Self(all.map(|i| ((i.namespace.as_str(), i.name.as_str()), i.workload.as_str())).collect())
    }

    fn workload(&self, namespace: &str, instance: &str) -> Name {
        let workload = self.0.get(&(namespace, instance)).copied().unwrap_or(instance);
        (namespace.to_owned(), workload.to_owned())
    }
}

impl Sum {
    fn add(&mut self, sample: &Sample, encrypted: bool) {
        let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
        match sample.name.as_str() {
            REQUESTS => {
                self.requests += sample.value;
                if label("status").parse().is_ok_and(|status: u16| status >= FAILURE) {
                    self.failures += sample.value;
                }
            }
            DURATIONS => {
                if let Ok(bound) = label("le").parse() {
                    self.durations.add(bound, sample.value);
                }
                return;
            }
            OPEN => self.tcp_open += sample.value,
            name if BYTES.contains(&name) => self.tcp_bytes += sample.value,
            _ => return,
        }
        if sample.value > 0.0 {
            self.encrypted |= encrypted;
            self.plain |= !encrypted;
        }
    }

    fn any(&self) -> bool {
        self.encrypted || self.plain
    }

    fn signals(&self, seconds: f64) -> Signals {
        let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        let milliseconds = |q| self.durations.quantile(q).map(|seconds| seconds * 1000.0);
        let succeeded = 1.0 - self.failures / self.requests;
        Signals {
            success_rate: (self.requests > 0.0).then_some(succeeded),
            requests_per_s: rate(self.requests),
            latency_ms: Latency {
                p50: milliseconds(0.50),
                p95: milliseconds(0.95),
                p99: milliseconds(0.99),
            },
            tcp_open: self.tcp_open,
            tcp_bytes_per_s: rate(self.tcp_bytes),
            mtls: self.any().then_some(!self.plain),
        }
    }
}

#[cfg(test)]
mod tests;
