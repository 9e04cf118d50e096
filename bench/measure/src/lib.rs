//! What benches and tests measure with: load at a constant rate, and what processes use meanwhile.
//!
//! Everything here looks at a mesh from outside. It shares no code with the data plane, so that a
//! bug of the mesh cannot hide behind the same bug in what measures it, and it starts nothing: the
//! servers, namespaces and proxies are its callers' affair (`leno-testkit`, `leno-suite`).
//!
//! - [`load`]: an open-loop generator for HTTP/1.1, HTTP/2, gRPC and TCP; latency counts from the
//!   moment a request was due, so a stalled server cannot slow the clock that measures it.
//! - [`usage`]: CPU, memory and descriptors of a process or a cgroup, from /proc.
//! - [`http1`]: a reader of HTTP/1.1 responses.
//!
//! Start with [`load::Plan`] and [`load::Report`].

pub mod http1;
pub mod load;
pub mod usage;
