//! Measuring instruments for benches and tests: load at a constant rate, and the resources that processes use during
//! it.
//!
//! Everything here observes a mesh from outside. The crate shares no code with the data plane, so that a bug of the
//! mesh cannot hide behind the same bug in the instrument. The crate starts no servers, namespaces or proxies: its
//! callers (`leno-testkit`, `leno-suite`) do.
//!
//! - [`load`]: an open-loop generator for HTTP/1.1, HTTP/2, gRPC and TCP. Latency counts from the moment a request was
//!   due, so a stalled server cannot delay the moments from which its own latency counts.
//! - [`usage`]: CPU, memory and descriptors of a process or a cgroup, from /proc.
//! - [`http1`]: a reader of HTTP/1.1 responses.
//!
//! Start with [`load::Plan`] and [`load::Report`].

pub mod http1;
pub mod load;
pub mod usage;
