//! Counters of requests in memory that a proxy shares with the aggregator of flows.
//!
//! Each worker of a proxy makes one [`WorkerMemory`], an anonymous file, and counts in its [`Row`]s by plain additions: no system
//! call, no lock, no atomic instruction. The aggregator opens the file through `/proc` and reads the same cells; what
//! a proxy has counted can still be read after the proxy was killed, for as long as the aggregator has it open.
//!
//! ```text
//!  worker      Rows::claim(labels) ─► Row ── count ─┐
//!                                                   ▼
//!  Memory      header │ row 0 │ row 1 │ ...      cells of 64 bits
//!                                                   │
//!  aggregator  Memory::open(/proc/PID/fd/N) ◄───────┘ read_rows
//! ```
//! A row is one client, one server and how they are connected; a worker has one writer. Labels are written under a
//! sequence lock, which the writer never waits for. This crate does not know what counts, nor where sums are kept.

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
