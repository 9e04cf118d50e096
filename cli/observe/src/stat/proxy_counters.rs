//! The counters of one proxy. Only those that a report needs are kept, because a mesh has thousands of proxies.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use crate::admin::AdminReply;
use crate::ejected::EjectedEndpoint;
use crate::metrics::{self, CumulativeHistogram, Sample};

use super::proxy_state::ProxyState;
use super::routes::{self, RouteName};

/// The counter of requests, by edge and status.
pub(super) const REQUESTS: &str = "leno_requests_total";
/// The counter of gRPC calls, by edge and grpc-status.
pub(super) const GRPC: &str = "leno_grpc_responses_total";
/// The histogram of the durations of these requests, by edge.
pub(super) const DURATIONS: &str = "leno_request_duration_seconds_bucket";
/// The gauge of opaque connections that are open, by edge.
const OPEN: &str = "leno_tcp_open_connections";
/// The counter of opaque connections that were opened, by edge.
const OPENED: &str = "leno_tcp_open_total";
/// The counters of bytes of opaque connections, by edge: from the client, and to the client.
const READ: &str = "leno_tcp_read_bytes_total";
const WRITTEN: &str = "leno_tcp_written_bytes_total";
/// The counter of failed attempts to connect to a server, by edge.
const UNCONNECTED: &str = "leno_connect_failures_total";
/// The counter of retries, by edge.
pub(super) const RETRIES: &str = "leno_retries_total";
/// The counter of requests and connections that the mesh itself failed, by edge and cause.
pub(super) const ERRORS: &str = "leno_errors_total";
/// The gauge of workers that eject the endpoint, by edge and reason.
const EJECTED: &str = "leno_endpoint_ejected";
/// The name of a server that the client's proxy did not look up, because the proxy refused the connection at once.
const UNKNOWN: &str = "(unknown)";
/// The metrics of connections that a proxy refused or delayed before it knew their other end, each with the cause
/// that a report shows.
const REFUSED: [(&str, &str); 4] = [
    ("leno_plaintext_refused_total", "plaintext-refused"),
    ("leno_unresolved_refused_total", "unresolved"),
    // These connections were only delayed, and served in the end.
    ("leno_connections_slowed_total", "connections-slowed"),
    // The label `reason` contains the cause.
    ("leno_connections_refused_total", ""),
];
/// The metric that states when the proxy's certificate expires, in seconds since 1970.
pub(super) const EXPIRATION: &str = "leno_identity_expiration_timestamp_seconds";
/// The metric whose label is the identity that the proxy proves.
pub(crate) const IDENTITY: &str = "leno_identity_info";
/// The metric that states whether the control plane is connected.
pub(super) const CONNECTED: &str = "leno_discovery_connected";
/// All families that are counted by edge.
pub(super) const KNOWN: [&str; 11] =
    [REQUESTS, GRPC, DURATIONS, OPEN, OPENED, READ, WRITTEN, UNCONNECTED, RETRIES, ERRORS, EJECTED];

/// The families of edges and rules that only grow, as a Prometheus server records them. Connections that were
/// refused before their other end was known are not included, because their samples name neither end.
pub(crate) const COUNTERS: [&str; 14] = [
    REQUESTS,
    GRPC,
    DURATIONS,
    OPENED,
    READ,
    WRITTEN,
    UNCONNECTED,
    RETRIES,
    ERRORS,
    "leno_route_requests_total",
    "leno_route_grpc_responses_total",
    "leno_route_errors_total",
    "leno_route_retries_total",
    "leno_route_request_duration_seconds_bucket",
];
/// The families that may shrink.
pub(crate) const GAUGES: [&str; 2] = [OPEN, EJECTED];

/// The status that is counted for a request whose client abandoned it before a response began.
const GIVEN_UP: &str = "499";
/// The cause of requests and connections that an authorization policy denies.
pub const DENIED: &str = "authorization-denied";
/// The grpc-status of calls that the server failed: UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE and DATA_LOSS.
/// Mistakes of the client, such as INVALID_ARGUMENT or RESOURCE_EXHAUSTED, are not included, as with HTTP statuses
/// below 500.
const GRPC_FAILED: [&str; 5] = ["2", "4", "13", "14", "15"];

/// A namespace and the name of an instance or workload in it.
pub type NamespacedName = (String, String);

/// The counters of one proxy at the time of its answer.
#[derive(Clone, Debug)]
pub struct ProxyCounters {
    pub(super) at: Instant,
    pub(super) edges: BTreeMap<EdgeEnds, PairCounts>,
    /// The requests of its workload that followed route rules.
    pub(super) routes: BTreeMap<RouteName, PairCounts>,
    /// The identity that it proves, if it has one.
    pub(super) identity: Option<String>,
    /// Endpoints that it ejects.
    pub(super) ejected: Vec<EjectedEndpoint>,
    /// Whether it has lost the control plane.
    pub(super) detached: bool,
    /// Whether its certificate has expired.
    pub(super) expired: bool,
    /// The state that it reports about itself.
    pub(super) state: ProxyState,
}

/// The client and the server of a counter, as the proxy names them: instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EdgeEnds {
    /// Whether the server's side counted.
    pub(super) inbound: bool,
    pub(super) client: NamespacedName,
    pub(super) server: NamespacedName,
    pub(super) service: String,
    pub(super) encrypted: bool,
}

/// The counters between two ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairCounts {
    /// Requests by the class of their status. The first class is 1xx; it also contains invalid statuses.
    pub classes: [f64; 5],
    /// How many of these requests the client abandoned before a response began. They are counted as 4xx.
    pub given_up: f64,
    /// gRPC calls that ended with a status that is the server's failure. If the mesh itself answered a call, the
    /// call is also in `classes`, with the corresponding HTTP status.
    pub grpc_failed: f64,
    /// Durations of the requests.
    pub durations: CumulativeHistogram,
    /// Opaque connections open now.
    pub tcp_open: f64,
    /// Opaque connections opened.
    pub tcp_opened: f64,
    /// Bytes of opaque connections from the client.
    pub read_bytes: f64,
    /// Bytes of opaque connections to the client.
    pub written_bytes: f64,
    /// Connections to the server that could not be made.
    pub connect_failures: f64,
    /// Retries of requests and of attempts to connect.
    pub retries: f64,
    /// Workers that eject the endpoint now.
    pub ejected: f64,
    /// Requests and connections that the mesh itself failed, by cause.
    pub causes: BTreeMap<String, f64>,
}

impl ProxyCounters {
    /// The counters in a response to `/metrics` that has just arrived.
    ///
    /// # Errors
    /// If the response is not a page of metrics. The text gives the reason.
    pub fn of(reply: &AdminReply) -> Result<Self, String> {
        Self::at(reply, Instant::now())
    }

    pub(super) fn at(reply: &AdminReply, at: Instant) -> Result<Self, String> {
        if reply.status != 200 {
            return Err(reply.why_no_metrics());
        }
        let samples = metrics::parse(&reply.body);
        Ok(Self::of_samples(&samples, at))
    }

    /// The counters in these samples.
    pub(super) fn of_samples(samples: &[Sample], at: Instant) -> Self {
        let mut edges: BTreeMap<EdgeEnds, PairCounts> = BTreeMap::new();
        let mut routes: BTreeMap<RouteName, PairCounts> = BTreeMap::new();
        for sample in samples {
            if let Some(ends) = EdgeEnds::of(sample) {
                edges.entry(ends).or_default().take(&sample.name, sample);
            } else if let Some((name, family)) = routes::of(sample) {
                routes.entry(name).or_default().take(family, sample);
            } else if let Some((ends, cause)) = refused(sample) {
                *edges.entry(ends).or_default().causes.entry(cause).or_default() += sample.value;
            }
        }
        let detached = samples.iter().any(|one| one.name == CONNECTED && one.value == 0.0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let ends = samples.iter().find(|one| one.name == EXPIRATION && one.value > 0.0);
        let expired = ends.is_some_and(|one| one.value < now.as_secs_f64());
        let identity = samples.iter().find(|one| one.name == IDENTITY);
        let identity = identity.and_then(|one| one.labels.get("identity").cloned());
        let ejected = EjectedEndpoint::of(samples);
        let state = ProxyState::of(samples);
        Self { at, edges, routes, identity, ejected, detached, expired, state }
    }
}

/// The ends of refused connections and the cause. The proxy's own end is not known yet.
fn refused(sample: &Sample) -> Option<(EdgeEnds, String)> {
    let (_, cause) = REFUSED.iter().find(|(name, _)| *name == sample.name)?;
    let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
    let cause = match *cause {
        "" => format!("connections-{}", label("reason")),
        cause => cause.to_owned(),
    };
    let inbound = label("direction") == "inbound";
    (sample.value > 0.0).then(|| (EdgeEnds { inbound, ..EdgeEnds::default() }, cause))
}

impl ProxyCounters {
    /// The same counters, with the name of the proxy's instance as the proxy's own end of refused connections.
    pub(super) fn owned_by(mut self, own: &NamespacedName) -> Self {
        for inbound in [false, true] {
            let unknown = EdgeEnds { inbound, ..EdgeEnds::default() };
            let Some(counts) = self.edges.remove(&unknown) else { continue };
            let ends = match inbound {
                true => EdgeEnds { server: own.clone(), ..unknown },
                false => EdgeEnds { client: own.clone(), service: UNKNOWN.to_owned(), ..unknown },
            };
            self.edges.entry(ends).or_default().add(&counts);
        }
        self
    }
}

impl EdgeEnds {
    /// The ends in a sample's labels; `None` for other metrics.
    fn of(sample: &Sample) -> Option<Self> {
        if !KNOWN.contains(&sample.name.as_str()) {
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

impl PairCounts {
    /// The number of requests.
    #[must_use]
    pub fn requests(&self) -> f64 {
        self.classes.iter().sum()
    }

    /// The requests that failed: those with a status from 500, and gRPC calls that the server failed.
    #[must_use]
    pub fn failures(&self) -> f64 {
        let errors: f64 = self.causes.values().sum();
        let [.., failed] = self.classes;
        failed + self.grpc_failed - failed.min(self.grpc_failed).min(errors)
    }

    /// The requests that an authorization policy denied.
    #[must_use]
    pub fn denied(&self) -> f64 {
        self.causes.get(DENIED).copied().unwrap_or_default().min(self.requests())
    }

    /// The requests that the server answered, successfully or not.
    #[must_use]
    pub fn answered(&self) -> f64 {
        (self.requests() - self.given_up - self.denied()).max(0.0)
    }

    /// Bytes of opaque connections, in both directions together.
    #[must_use]
    pub fn tcp_bytes(&self) -> f64 {
        self.read_bytes + self.written_bytes
    }

    /// Adds a sample of a family, such as `REQUESTS`.
    fn take(&mut self, family: &str, sample: &Sample) {
        let label = |name: &str| sample.labels.get(name).map_or("", String::as_str);
        let value = sample.value;
        match family {
            REQUESTS => {
                let class = label("status").parse().map_or(0, |status: usize| status / 100);
                self.classes[class.clamp(1, 5) - 1] += value;
                if label("status") == GIVEN_UP {
                    self.given_up += value;
                }
            }
            GRPC if GRPC_FAILED.contains(&label("grpc_status")) => self.grpc_failed += value,
            GRPC => {}
            DURATIONS => {
                if let Ok(bound) = label("le").parse() {
                    self.durations.add(bound, value);
                }
            }
            OPEN => self.tcp_open += value,
            OPENED => self.tcp_opened += value,
            READ => self.read_bytes += value,
            WRITTEN => self.written_bytes += value,
            UNCONNECTED => self.connect_failures += value,
            RETRIES => self.retries += value,
            EJECTED => self.ejected += value,
            _ => *self.causes.entry(label("cause").to_owned()).or_default() += value,
        }
    }

    /// Adds all counts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (own, more) in self.fields().into_iter().zip(other.values()) {
            *own += more;
        }
        self.tcp_open += other.tcp_open;
        self.ejected += other.ejected;
        self.durations.add_all(&other.durations);
        for (cause, count) in &other.causes {
            *self.causes.entry(cause.clone()).or_default() += count;
        }
    }

    /// The increase of the counters, and the present values of the gauges. A counter below its previous value was
    /// reset when its proxy restarted.
    pub(super) fn since(&self, before: &Self) -> Self {
        let mut grown = self.clone();
        let Some(durations) = self.durations.since(&before.durations) else { return grown };
        grown.durations = durations;
        for (now, then) in grown.fields().into_iter().zip(before.values()) {
            if *now < then {
                return self.clone();
            }
            *now -= then;
        }
        for (cause, then) in &before.causes {
            let now = grown.causes.entry(cause.clone()).or_default();
            if *now < *then {
                return self.clone();
            }
            *now -= then;
        }
        grown.causes.retain(|_, count| *count > 0.0);
        grown
    }

    /// The counters without the gauges.
    pub(super) fn idle(&self) -> Self {
        Self { tcp_open: 0.0, ejected: 0.0, ..self.clone() }
    }

    /// The counters, which only grow.
    fn fields(&mut self) -> [&mut f64; 12] {
        let [informational, good, redirected, refused, failed] = &mut self.classes;
        [
            informational,
            good,
            redirected,
            refused,
            failed,
            &mut self.tcp_opened,
            &mut self.read_bytes,
            &mut self.written_bytes,
            &mut self.connect_failures,
            &mut self.retries,
            &mut self.given_up,
            &mut self.grpc_failed,
        ]
    }

    /// The values of the counters, in the same order as `fields`.
    fn values(&self) -> [f64; 12] {
        let [informational, good, redirected, refused, failed] = self.classes;
        [
            informational,
            good,
            redirected,
            refused,
            failed,
            self.tcp_opened,
            self.read_bytes,
            self.written_bytes,
            self.connect_failures,
            self.retries,
            self.given_up,
            self.grpc_failed,
        ]
    }

    /// Whether any request or connection reached a server. Requests that the mesh itself failed did not.
    pub(super) fn passed(&self) -> bool {
        let errors: f64 = self.causes.values().sum();
        let errors = errors - self.denied() - self.given_up;
        self.requests() > errors || self.tcp_open > 0.0 || self.tcp_bytes() > 0.0
    }

    /// Whether there was traffic or an attempt to send some, or connections are open.
    pub(super) fn any(&self) -> bool {
        self.requests() > 0.0 || self.tcp_open > 0.0 || self.tcp_bytes() > 0.0
    }

    /// Whether nothing at all was counted, not even failed attempts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.any()
            && self.ejected == 0.0
            && self.causes.is_empty()
            && self.values().iter().all(|count| *count == 0.0)
    }
}
