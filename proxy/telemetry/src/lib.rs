//! Counters, histograms, the access log, taps (live views of requests for operators) and traces of the data plane.
//!
//! Each worker has a [`Registry`] of `Cell`s: counting costs an addition, with no lock and no shared cache line. A
//! connection looks up its [`Edge`], which is a client, a server and whether they use mTLS, once and counts on it.
//! Requests are counted in memory that another process, the aggregator of flows, can read, too (`leno-requests`). For
//! `/metrics` each worker sends a [`Snapshot`], and the sum of all snapshots is rendered.
//!
//! ```text
//! worker: Registry ── edge(labels) ──► Edge: requests, durations, connections, bytes
//!             └─ snapshot() ──► merge ──► render ──► /metrics
//! ```
//!
//! Labels come from discovery and identities, never from requests, except the server names of TLS connections. The
//! numbers of edges, of rules of routes and of server names are limited: further ones are counted together as `other`.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod answers;
mod audited;
mod counter;
mod edge;
mod ended;
mod exemplar;
mod forgotten;
mod native;
mod observed;
mod queue;
mod registry;
mod render;
mod route;
#[expect(clippy::arithmetic_side_effects, reason = "sums of counters, which do not reach 2^64")]
mod snapshot;

pub mod access;
pub mod tap;
pub mod trace;

pub use audited::{AuditedRequest, MAX_AUDITED, MAX_PATH_BYTES};
pub use counter::Counter;
pub use edge::{Direction, Edge, EdgeLabels, Logged};
pub use ended::EndedCounts;
pub use leno_requests::BUCKET_BOUNDS_S;
pub use leno_tap::BodyCopies;
pub use native::{FIRST_INDEX, NativeCounts, SCHEMA, ZERO_THRESHOLD_S};
pub use queue::{Queue, Weigh};
pub use registry::{
    Arrival, Begun, EDGE_IDLE, MAX_AUTHORIZATION_POLICIES, MAX_EDGES, MAX_TLS_NAMES, Outcome,
    Registry, Relay,
};
pub use render::{
    Kind, Measured, MetricsCompat, NativeHistograms, OwnWorkload, render, render_compatible,
};
pub use route::{CountedRule, MAX_ROUTES, RouteCounter, RouteLabels};
pub use snapshot::Snapshot;
