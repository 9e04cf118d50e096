//! The counters of one proxy, reduced to those that a report needs, because a mesh has thousands of
//! proxies.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::admin::Reply;
use crate::ejected::Ejected;
use crate::metrics::{self, Histogram, Sample};

/// Counter of requests, by edge and status.
const REQUESTS: &str = "leno_requests_total";
/// Durations of these requests, by edge.
const DURATIONS: &str = "leno_request_duration_seconds_bucket";
/// Opaque connections open now, by edge.
const OPEN: &str = "leno_tcp_open_connections";
/// Bytes of opaque connections, by edge: both directions.
const BYTES: [&str; 2] = ["leno_tcp_read_bytes_total", "leno_tcp_written_bytes_total"];
/// Lowest status that counts as a failure of the server.
const FAILURE: u16 = 500;

/// Namespace and name: of an instance, or of a workload.
pub(super) type Name = (String, String);

/// The counters of one proxy at the time of its answer.
#[derive(Clone, Debug)]
pub struct Counted {
    pub(super) at: Instant,
    pub(super) edges: BTreeMap<Ends, Sum>,
    /// Endpoints that it ejects.
    pub(super) ejected: Vec<Ejected>,
}

/// The client and the server of a counter, as the proxy names them: instances.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ends {
    /// Whether the server's side has counted.
    pub(super) inbound: bool,
    pub(super) client: Name,
    pub(super) server: Name,
    pub(super) service: String,
    pub(super) encrypted: bool,
}

/// The counters between two ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sum {
    pub(super) requests: f64,
    pub(super) failures: f64,
    pub(super) durations: Histogram,
    pub(super) tcp_open: f64,
    pub(super) tcp_bytes: f64,
}

impl Counted {
    /// The counters in a response to `/metrics` that has just arrived.
    ///
    /// # Errors
    /// The response is not a page of metrics; the text says why.
    pub fn of(reply: &Reply) -> Result<Self, String> {
        Self::at(reply, Instant::now())
    }

    pub(super) fn at(reply: &Reply, at: Instant) -> Result<Self, String> {
        if reply.status != 200 {
            return Err(format!("HTTP {}", reply.status));
        }
        let mut edges: BTreeMap<Ends, Sum> = BTreeMap::new();
        let samples = metrics::parse(&reply.body);
        for sample in &samples {
            if let Some(ends) = Ends::of(sample) {
                edges.entry(ends).or_default().take(sample);
            }
        }
        Ok(Self { at, edges, ejected: Ejected::of(&samples) })
    }
}

impl Ends {
    /// The ends in a sample's labels; `None` for other metrics.
    fn of(sample: &Sample) -> Option<Self> {
        let is_known =
            |name: &str| [REQUESTS, DURATIONS, OPEN].contains(&name) || BYTES.contains(&name);
        if !is_known(&sample.name) {
            return None;
        }
        let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        let inbound = match &*label("direction") {
            "inbound" => true,
            "outbound" => false,
            _ => return None,
        };
        Some(Self {
            inbound,
            client: (label("client_namespace"), label("client")),
            server: (label("server_namespace"), label("server")),
            service: label("service"),
            encrypted: label("mtls") == "true",
        })
    }
}

impl Sum {
    fn take(&mut self, sample: &Sample) {
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
            }
            OPEN => self.tcp_open += sample.value,
            _ => self.tcp_bytes += sample.value,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.failures += other.failures;
        self.durations.add_all(&other.durations);
        self.tcp_open += other.tcp_open;
        self.tcp_bytes += other.tcp_bytes;
    }

    /// The increase of the counters, and the present gauges. A counter below its previous value was
    /// reset when its proxy restarted.
    pub(super) fn since(&self, before: &Self) -> Self {
        let durations = self.durations.since(&before.durations);
        let grown = [
            (self.requests, before.requests),
            (self.failures, before.failures),
            (self.tcp_bytes, before.tcp_bytes),
        ];
        let Some(durations) = durations.filter(|_| grown.iter().all(|(now, then)| now >= then))
        else {
            return self.clone();
        };
        Self {
            requests: self.requests - before.requests,
            failures: self.failures - before.failures,
            durations,
            tcp_open: self.tcp_open,
            tcp_bytes: self.tcp_bytes - before.tcp_bytes,
        }
    }

    /// Whether there are counts or open connections.
    pub(super) fn any(&self) -> bool {
        self.requests > 0.0 || self.tcp_open > 0.0 || self.tcp_bytes > 0.0
    }
}
