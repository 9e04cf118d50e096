//! The JSON of the answers of the observer's HTTP interface, as Rust types. `dashboard/web/src/api.ts` declares the
//! same types.
//!
//! | path | answer | parameters |
//! |---|---|---|
//! | `/api/v1/overview` | [`Overview`] | |
//! | `/api/v1/topology` | [`Topology`] | `at`, `window` |
//! | `/api/v1/routes` | [`Routes`] | `at`, `window` |
//! | `/api/v1/series` | [`Points`] | `workload` or `client` and `server`, `from`, `to`, `step` |
//! | `/api/v1/changes` | [`Changes`] | `from`, `to` |
//! | `/api/v1/proxies` | [`Proxies`](crate::inventory::Proxies) | |
//! | `/api/v1/policies` | [`Policies`](crate::inventory::Policies) | `at`, `window` |
//! | `/api/v1/flows` | [`Flows`](crate::inventory::Flows) | |
//!
//! Each path takes `namespaces`, a list with commas, to restrict the answer to some of the namespaces that the reader
//! may see. `leno dashboard` itself answers `/api/v1/checks`, `/api/v1/authority` and `/api/v1/document`, with the
//! rights of its user. [`crate::grpc`] offers the same as typed messages.
//!
//! Times are milliseconds since 1970, durations are milliseconds. A name is `namespace/name`.

use leno_observe::stat::LatencyQuantiles;
use serde::{Deserialize, Serialize};

use crate::fair::keep_fairly;
use crate::history::Mark;

/// The present state of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Overview {
    /// The name of the mesh.
    pub mesh: String,
    /// The time of the answer.
    pub now_ms: u64,
    /// The beginning of the history; `None` while the history is empty.
    pub from_ms: Option<u64>,
    /// The end of the history; `None` while the history is empty.
    pub to_ms: Option<u64>,
    /// The time between two observations.
    pub step_ms: u64,
    /// Memory that the history uses, in bytes; 0 for readers who may not see all namespaces.
    pub history_bytes: u64,
    /// How many counts were lost because there were too many workloads and edges; 0 for readers who may not see
    /// all namespaces.
    pub lost: u64,
    /// The state of the mesh at the last observation.
    #[serde(flatten)]
    pub state: MeshState,
}

/// The state of the mesh that does not come from the counters of its proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshState {
    /// Whether the control plane runs.
    pub control_plane: ControlPlane,
    /// Instances whose proxy has lost its connection to the control plane.
    pub detached: Vec<String>,
    /// Instances whose proxy did not answer, with the reason.
    pub silent: Vec<String>,
    /// Instances that take no traffic, with the reason.
    pub unready: Vec<Unready>,
    /// Instances that run but do not listen on a port that they declare.
    pub deaf: Vec<Unready>,
    /// Proxies that were started again within the last day, the oldest first.
    #[serde(default)]
    pub restarted: Vec<Restart>,
    /// Applications that ended unexpectedly within the last day, the oldest first.
    #[serde(default)]
    pub ended: Vec<Restart>,
    /// Signs of trouble from instances and connections, within the last day.
    #[serde(default)]
    pub signs: Vec<Sign>,
    /// Why the last edit of the documents was refused; `None` if it was accepted.
    pub refused_edit: Option<String>,
}

/// Most entries of each list of a [`MeshState`]. If more instances take no traffic, the whole mesh is broken, and
/// more entries would not help.
pub(crate) const MAX_STATE: usize = 4_096;

impl MeshState {
    /// Shortens each list to its maximum length, by dropping entries of the namespace that has the most. Returns
    /// how many entries were dropped.
    pub(crate) fn bound(&mut self) -> usize {
        let mut dropped = 0;
        for list in [&mut self.unready, &mut self.deaf] {
            dropped += keep_fairly(list, MAX_STATE, |one| &one.namespace);
        }
        for list in [&mut self.silent, &mut self.detached] {
            dropped += keep_fairly(list, MAX_STATE, |line| {
                line.split_once('/').map_or("", |(namespace, _)| namespace)
            });
        }
        dropped
    }
}

/// The state of the control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlPlane {
    /// The control plane runs.
    Running,
    /// The control plane does not run. Proxies continue with their last configuration.
    Away,
    /// No control plane is needed, because no workload has a proxy.
    #[default]
    NotNeeded,
}

/// An instance that takes no traffic, or not on all of its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unready {
    /// Its namespace.
    pub namespace: String,
    /// Its workload.
    pub workload: String,
    /// Its name.
    pub instance: String,
    /// Why, if the reason is known; otherwise empty.
    pub reason: String,
    /// The number of instances that the workload has.
    pub of: u32,
    /// Whether the instance is still being started.
    pub starting: bool,
}

/// One or more times that an instance's process ended between two observations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The namespace of its instance.
    pub namespace: String,
    /// The workload of the instance.
    pub workload: String,
    /// The name of the instance.
    pub instance: String,
    /// The time of the observation, in milliseconds since 1970.
    pub at_ms: u64,
    /// How many times the process ended.
    pub times: u32,
    /// How the process ended the last time, such as `was ended by SIGKILL`.
    pub ended: String,
}

/// Evidence about a workload that does not come from the counters of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sign {
    /// The kind of evidence.
    pub kind: SignKind,
    /// The namespace of the workload.
    pub namespace: String,
    /// The workload.
    pub workload: String,
    /// The instance, the other workload (`shop/db`), or the name that was looked up, depending on the kind.
    pub subject: String,
    /// When the evidence was last observed, in milliseconds since 1970.
    pub at_ms: u64,
    /// A description in one line.
    pub line: String,
}

/// The kinds of a [`Sign`]. The kind that is most likely the cause comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignKind {
    /// The certificate of an instance has expired.
    Expired,
    /// An instance looks up a name that does not exist, or that no resolver answers.
    UnknownName,
    /// An instance is throttled by its own CPU limit.
    Throttled,
    /// The kernel retransmits many TCP segments, because they were lost.
    Lossy,
    /// One instance fails or is slow, but the other instances of its workload are not.
    Outlier,
}

/// Workloads and edges over a window of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// The name of the mesh.
    pub mesh: String,
    /// The beginning of the window.
    pub from_ms: u64,
    /// The end of the window.
    pub to_ms: u64,
    /// How many seconds of the window were observed; rates refer to this time.
    pub observed_s: f64,
    /// The workloads, by namespace and name.
    pub workloads: Vec<Workload>,
    /// The edges, by client and server.
    pub edges: Vec<Edge>,
    /// What is broken; the most severe problem comes first.
    pub problems: Vec<Problem>,
    /// How many workloads, edges and route rules did not fit into the history; the largest number at any time in
    /// the window. 0 for readers who may not see all namespaces.
    #[serde(default)]
    pub left_out: u64,
}

/// A workload in its role as a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How many instances it had at the end of the window.
    pub instances: u32,
    /// How many of these instances took traffic.
    pub ready: u32,
    /// Whether it has proxies.
    pub meshed: bool,
    /// The requests that it answered.
    #[serde(flatten)]
    pub signals: Signals,
}

/// A client and a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edge {
    /// The client's namespace; empty for clients without a proxy.
    pub client_namespace: String,
    /// The client.
    pub client: String,
    /// The server's namespace; empty for servers outside the mesh.
    pub server_namespace: String,
    /// The server.
    pub server: String,
    /// The identity that the client proves; `None` unless all connections use mTLS.
    #[serde(default)]
    pub client_identity: Option<String>,
    /// The identity that the server proves; `None` unless all connections use mTLS.
    #[serde(default)]
    pub server_identity: Option<String>,
    /// Whether the connections between their proxies used mTLS.
    pub mtls: Mtls,
    /// The requests and connections between them.
    #[serde(flatten)]
    pub signals: Signals,
}

/// The route rules in a window of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Routes {
    /// The name of the mesh.
    pub mesh: String,
    /// The beginning of the window.
    pub from_ms: u64,
    /// The end of the window.
    pub to_ms: u64,
    /// How many seconds of the window were observed; rates refer to this time.
    pub observed_s: f64,
    /// The rules that requests followed, by service, route and rule.
    pub routes: Vec<Route>,
    /// Like [`Topology::left_out`].
    #[serde(default)]
    pub left_out: u64,
}

/// A service and a rule of one of its routes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// The namespace of the service.
    pub namespace: String,
    /// The service that clients called.
    pub service: String,
    /// The route, such as `HTTPRoute shop/cart`. Empty for requests that match no rule.
    pub route: String,
    /// The name of the rule, or its index in the route. Empty for requests that match no rule.
    pub rule: String,
    /// The requests that followed the rule.
    #[serde(flatten)]
    pub signals: Signals,
}

/// How much of an edge's traffic used mTLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mtls {
    /// All of it.
    All,
    /// A part of it.
    Partly,
    /// None of it.
    None,
}

/// Counts of requests and connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Signals {
    /// The share of answered requests that succeeded, from 0 to 1; `None` if no request was answered.
    pub success_rate: Option<f64>,
    /// The number of requests.
    pub requests: u64,
    /// Requests that failed, by their status or the `grpc-status` of their response.
    pub failed: u64,
    /// Requests that the client abandoned before a response began.
    pub given_up: u64,
    /// Requests that an authorization policy denied.
    pub denied: u64,
    /// Requests per second.
    pub requests_per_s: f64,
    /// Requests by the class of their status, 1xx first.
    pub statuses: [u64; 5],
    /// Time from a request's head to the end of its response.
    pub latency_ms: LatencyQuantiles,
    /// Opaque connections opened.
    pub tcp_opened: u64,
    /// Opaque connections that are open at the end of the window.
    pub tcp_open: u64,
    /// Bytes of opaque connections from the client, per second.
    pub tcp_read_bytes_per_s: f64,
    /// Bytes of opaque connections to the client, per second.
    pub tcp_written_bytes_per_s: f64,
    /// Connections to the server that could not be established.
    pub connect_failures: u64,
    /// Retries of requests and of connections.
    pub retries: u64,
    /// How many workers of the client's proxies eject an endpoint of the server at the end of the window.
    pub ejected: u64,
    /// Failures that the mesh itself caused, the most frequent cause first.
    pub causes: Vec<Cause>,
}

/// A cause of failures, as in the metric `leno_errors_total`, and its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Its name.
    pub cause: String,
    /// Its count.
    pub count: u64,
}

/// Something that is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// How severe it is.
    pub severity: Severity,
    /// The object that is broken.
    pub about: ProblemSubject,
    /// A description in one sentence.
    pub title: String,
    /// The evidence, one entry per line.
    pub evidence: Vec<String>,
    /// When it began; `None` if it began before the history does.
    pub since_ms: Option<u64>,
    /// The changes shortly before it began, the newest first. They are a hint, not a proof.
    pub changes: Vec<Mark>,
    /// The likely culprit, judging by the evidence, such as `the application of shop/cart`.
    #[serde(default)]
    pub culprit: String,
    /// A command that shows more about it; empty if there is none.
    #[serde(default)]
    pub more: String,
}

/// The severity of a [`Problem`], the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Requests or connections fail, or a part of the mesh does not run.
    Bad,
    /// Nothing fails because of it yet.
    Warning,
}

/// The subject of a [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ProblemSubject {
    /// The control plane.
    ControlPlane,
    /// The documents that describe the mesh.
    Documents,
    /// A workload.
    Workload {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// An edge.
    Edge {
        /// The client's namespace.
        client_namespace: String,
        /// The client.
        client: String,
        /// The server's namespace.
        server_namespace: String,
        /// The server.
        server: String,
    },
    /// Proxies that do not answer.
    Proxies,
}

/// The counts of a workload or an edge over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Points {
    /// The time between two points.
    pub step_ms: u64,
    /// The points, in order. A span of time without an observation has no point.
    pub points: Vec<Point>,
}

/// The counts of one span of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The end of the span, in milliseconds since 1970.
    pub at_ms: u64,
    /// How much of the span was observed, in seconds.
    pub observed_s: f64,
    /// For a workload: how many of its instances took traffic at the end of the span.
    pub ready: Option<u32>,
    /// The counts of the span.
    #[serde(flatten)]
    pub signals: Signals,
}

/// The requests to some workloads in a window, as they count towards an error budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// How much of the window was observed, in seconds.
    pub observed_s: f64,
    /// Requests, without those that an authorization policy denied.
    pub requests: u64,
    /// Requests that failed, or that the client abandoned before a response began.
    pub failed: u64,
    /// Requests that took longer than the requested limit; 0 without a limit.
    pub slow: u64,
    /// The limit that was applied, in milliseconds: the highest bound of a histogram bucket that is not above the
    /// requested limit.
    pub in_time_ms: Option<f64>,
}

/// The changes in a span of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The changes, in order.
    pub changes: Vec<Mark>,
}
