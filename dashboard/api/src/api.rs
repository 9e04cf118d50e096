//! The answers of the interface: the types of its JSON. `dashboard/web/src/api.ts` declares them as well.
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
    /// Its name.
    pub mesh: String,
    /// The time of the answer.
    pub now_ms: u64,
    /// The begin of the history; `None` while there is none.
    pub from_ms: Option<u64>,
    /// Its end.
    pub to_ms: Option<u64>,
    /// The time between two observations.
    pub step_ms: u64,
    /// Memory used by the history; 0 for readers who may not see all namespaces.
    pub history_bytes: u64,
    /// Counts that were lost because there were too many workloads and edges; 0 for readers who may not see all
    /// namespaces.
    pub lost: u64,
    /// The state of the mesh at the last observation.
    #[serde(flatten)]
    pub state: MeshState,
}

/// What is known about the mesh besides the counters of its proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshState {
    /// Whether the control plane runs.
    pub control_plane: ControlPlane,
    /// Instances whose proxy has lost the control plane.
    pub detached: Vec<String>,
    /// Instances whose proxy did not answer, with the reason.
    pub silent: Vec<String>,
    /// Instances that take no traffic, with the reason.
    pub unready: Vec<Unready>,
    /// Instances that run and do not listen on a port that they declare.
    pub deaf: Vec<Unready>,
    /// Proxies that were started again within the last day, the oldest first.
    #[serde(default)]
    pub restarted: Vec<Restart>,
    /// Applications that ended unexpectedly within the last day, the oldest first.
    #[serde(default)]
    pub ended: Vec<Restart>,
    /// Signs from instances and connections, within the last day.
    #[serde(default)]
    pub signs: Vec<Sign>,
    /// Why the last edit of the documents was refused.
    pub refused_edit: Option<String>,
}

/// Most entries of each list of a [`MeshState`]. A mesh in which more instances take no traffic is broken as a whole.
pub(crate) const MAX_STATE: usize = 4_096;

impl MeshState {
    /// Shortens each list to its bound, by dropping entries of the namespace that has the most. Returns how many
    /// entries were dropped.
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
    /// It runs.
    Running,
    /// It does not run: proxies continue with their last configuration.
    Away,
    /// No workload has a proxy.
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
    /// Why, if that is known.
    pub reason: String,
    /// The number of instances of the workload.
    pub of: u32,
    /// Whether it is still being started.
    pub starting: bool,
}

/// One or more ends of an instance's process between two observations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restart {
    /// The namespace of its instance.
    pub namespace: String,
    /// The workload of its instance.
    pub workload: String,
    /// Its instance.
    pub instance: String,
    /// When they were observed, in milliseconds since 1970.
    pub at_ms: u64,
    /// How often it ended.
    pub times: u32,
    /// How the process ended the last time: `was ended by SIGKILL`.
    pub ended: String,
}

/// Evidence about a workload that does not come from the counters of its clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sign {
    /// Its kind.
    pub kind: SignKind,
    /// The namespace of the workload.
    pub namespace: String,
    /// The workload.
    pub workload: String,
    /// The instance, the other workload (`shop/db`), or the name that was looked up, depending on the kind.
    pub subject: String,
    /// When it was last observed, in milliseconds since 1970.
    pub at_ms: u64,
    /// A description in one line.
    pub line: String,
}

/// The kinds of a [`Sign`], in the order of how likely they are the cause.
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
    /// One instance fails or is slow, and the others are not.
    Outlier,
}

/// Workloads and edges over a window of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Topology {
    /// The name of the mesh.
    pub mesh: String,
    /// The begin of the window.
    pub from_ms: u64,
    /// Its end.
    pub to_ms: u64,
    /// How much of it was observed; rates are over this time.
    pub observed_s: f64,
    /// The workloads, by namespace and name.
    pub workloads: Vec<Workload>,
    /// The edges, by client and server.
    pub edges: Vec<Edge>,
    /// What is broken, the worst first.
    pub problems: Vec<Problem>,
    /// How many workloads, edges and rules of routes did not fit into the history, at most at one time; 0 for readers
    /// who may not see all namespaces.
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
    /// How many instances it had at the end.
    pub instances: u32,
    /// How many of them took traffic.
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
    /// The client's namespace, empty for clients without a proxy.
    pub client_namespace: String,
    /// The client.
    pub client: String,
    /// The server's namespace, empty outside of the mesh.
    pub server_namespace: String,
    /// The server.
    pub server: String,
    /// The identity that the client proves, if all connections are mTLS.
    #[serde(default)]
    pub client_identity: Option<String>,
    /// The identity that the server proves, if all connections are mTLS.
    #[serde(default)]
    pub server_identity: Option<String>,
    /// Whether the connections between their proxies were mTLS.
    pub mtls: Mtls,
    /// The requests and connections between them.
    #[serde(flatten)]
    pub signals: Signals,
}

/// The rules of routes over a window of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Routes {
    /// The name of the mesh.
    pub mesh: String,
    /// The begin of the window.
    pub from_ms: u64,
    /// Its end.
    pub to_ms: u64,
    /// How much of it was observed; rates are over this time.
    pub observed_s: f64,
    /// The rules that requests followed, by service, route and rule.
    pub routes: Vec<Route>,
    /// Like [`Topology::left_out`].
    #[serde(default)]
    pub left_out: u64,
}

/// A service and one rule of one of its routes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// The namespace of the service.
    pub namespace: String,
    /// The service that clients called.
    pub service: String,
    /// The route, `HTTPRoute shop/cart`. Empty for requests that match no rule.
    pub route: String,
    /// The name of the rule, or its index in the route. Empty for requests that match no rule.
    pub rule: String,
    /// The requests that followed it.
    #[serde(flatten)]
    pub signals: Signals,
}

/// How much of an edge's traffic was mTLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mtls {
    /// All of it.
    All,
    /// A part of it.
    Partly,
    /// Nothing.
    None,
}

/// Counts of requests and connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Signals {
    /// The share of the answered requests that succeeded, 0 to 1; `None` if none was answered.
    pub success_rate: Option<f64>,
    /// Requests.
    pub requests: u64,
    /// Requests that failed, by their status or the `grpc-status` of their response.
    pub failed: u64,
    /// Requests that the client cancelled before there was a response.
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
    /// Opaque connections open at the end.
    pub tcp_open: u64,
    /// Bytes of opaque connections from the client, per second.
    pub tcp_read_bytes_per_s: f64,
    /// Bytes of opaque connections to the client, per second.
    pub tcp_written_bytes_per_s: f64,
    /// Connections to the server that could not be established.
    pub connect_failures: u64,
    /// Retries of requests and of connections.
    pub retries: u64,
    /// Workers of the client's proxies that have ejected an endpoint of the server at the end.
    pub ejected: u64,
    /// Failures that the mesh itself caused, the most frequent cause first.
    pub causes: Vec<Cause>,
}

/// A cause of `leno_errors_total` and its count.
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
    /// When it began, if that is within the history.
    pub since_ms: Option<u64>,
    /// What changed shortly before, the newest first: a hint, not a proof.
    pub changes: Vec<Mark>,
    /// The likely culprit, by the evidence: `the application of shop/cart`.
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
    /// It does not make anything fail yet.
    Warning,
}

/// The subject of a [`Problem`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ProblemSubject {
    /// The control plane.
    ControlPlane,
    /// The documents.
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

/// A workload or an edge over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Points {
    /// The time between two points.
    pub step_ms: u64,
    /// The points, in order; there is none for a span without an observation.
    pub points: Vec<Point>,
}

/// The counts of one span of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Its end.
    pub at_ms: u64,
    /// How much of it was observed, in seconds.
    pub observed_s: f64,
    /// For a workload: its instances that took traffic at the end of the span.
    pub ready: Option<u32>,
    /// What was counted.
    #[serde(flatten)]
    pub signals: Signals,
}

/// The requests to some workloads in a window, as counted for an error budget.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// How much of the window was observed, in seconds.
    pub observed_s: f64,
    /// Requests, without those that an authorization policy denied.
    pub requests: u64,
    /// Requests that failed, or that the client cancelled before there was a response.
    pub failed: u64,
    /// Requests that took longer than the requested bound; 0 without a bound.
    pub slow: u64,
    /// The bound that was applied: the highest bound of a histogram bucket that does not exceed the requested one.
    pub in_time_ms: Option<f64>,
}

/// The changes of a span of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// The changes, in order.
    pub changes: Vec<Mark>,
}
