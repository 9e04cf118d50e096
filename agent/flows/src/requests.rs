//! Reads the requests that proxies have counted. They have the same names and the same lifetime as the counters of
//! connections.
//!
//! ```text
//!  memory of a worker ── every round ──► row {memory, claim}: as much as the worker has counted
//!                                            │ the worker has ended, or has freed the row
//!                                            ▼
//!                                        row {0, labels}: the sum of all that have ended
//! ```
//! The memory is that of a proxy's worker, in which it counts requests; a claim is one use of a row of that memory.
//! Rows are overwritten as a whole, and not incremented. A row of the second kind is a sum, and records which row was
//! last added to it. So if a process is killed at any point, the next one does not count anything twice.

mod ledger;
mod metrics;
mod proxies;

pub(crate) use ledger::Requests;
pub use metrics::RequestRow;
pub(crate) use metrics::{PublishedRequests, add_family, add_histogram, quantile_ms, sums};
pub(crate) use proxies::ProxyCgroup;
