//! Requests as proxies count them, under the same names and with the same life as the sums of connections.
//!
//! ```text
//!  memory of a worker ── every round ──► row {memory, claim}: as much as the worker has counted
//!                                            │ the worker has ended, or has freed the row
//!                                            ▼
//!                                        row {0, labels}: the sum of all that have ended
//! ```
//! Rows are written whole and never added to, but for the second kind, which notes the row that was added last: a process
//! that is killed at any point leaves nothing that the next one counts twice.

mod ledger;
mod metrics;
mod proxies;

pub(crate) use ledger::Requests;
pub use metrics::RequestRow;
pub(crate) use metrics::{PublishedRequests, add_family, add_histogram, quantile_ms, sums};
pub(crate) use proxies::ProxyCgroup;
