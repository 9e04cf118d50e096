//! Counters of requests in memory that a proxy shares with the aggregator of flows.
//!
//! Each worker of a proxy creates one [`WorkerMemory`], an anonymous file, and counts in its [`Row`]s by plain
//! additions: without a system call, a lock or an atomic instruction. The aggregator opens the file through `/proc` and
//! reads the same cells. As long as the aggregator has the file open, it can read the counts even after the proxy was
//! killed.
//!
//! ```text
//!  worker        Rows::claim(labels) ─► Row ── count ─┐
//!                                                     ▼
//!  WorkerMemory  header │ row 0 │ row 1 │ ...     cells of 64 bits
//!                                                     │
//!  aggregator    WorkerMemory::open(/proc/PID/fd/N) ◄─┘ read_rows
//! ```
//! A row is for one client, one server, and how they are connected. Only the worker writes to its memory. Labels are
//! written under a sequence lock, for which the writer never waits. This crate does not deal with what is counted, or
//! where sums are kept.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod histogram;
mod memory;
mod row;
mod rows;

pub use histogram::{BUCKET_BOUNDS_S, BUCKETS, Histogram, bucket_of};
pub use memory::{FOUND_WITHIN, MEMORY_NAME, SEALS, WorkerMemory};
pub use row::{CLASSES, GRPC_STATUSES, LABEL_BYTES, Labels, RequestCounts, Row};
pub use rows::{MAX_ROWS, Rows, WorkerRows};
