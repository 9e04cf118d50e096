//! Tests `leno` against the API server of a cluster: its output, and its errors.
//!
//! Needs `CLUSTER_KUBE`, as the controller's tests do (`scripts/cluster.sh api-test`).
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod ask;
mod bench;
mod refusals;
mod removal;
mod report;
mod shop;
