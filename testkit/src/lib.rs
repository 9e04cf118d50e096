//! The foundation of Leno's tests and benches: load, scripted peers, a network lab, and packet
//! captures.
//!
//! Everything here observes the mesh from outside, with its own small HTTP/1.1 reader and packet
//! parser, so that a bug of the mesh cannot be hidden by the same bug in its test. It uses no type
//! of the data plane and no wire format of the control plane.
//!
//! - [`load`]: an open-loop load generator (`leno-load`). Latency counts from the time at which a request was due,
//!   so a stalled server cannot make the measurement look better.
//! - [`usage`]: CPU, memory and descriptors of a process or a cgroup, from /proc.
//! - [`peer`]: servers and clients that follow a script (`leno-peer` runs them as workloads).
//! - [`proxy`]: `leno-proxy` alone, configured by a file, in front of one server.
//! - [`tunnel`]: the same behind mTLS, as another proxy would reach it.
//! - [`lab`]: drives the real `leno up` and cleans up after it.
//! - [`clock`]: proxies whose time of day is wrong.
//! - [`reference`]: pages of `docs/reference` that are written from code.
//! - [`sniff`]: packets that crossed the bridge, captured by tcpdump and classified by an own
//!   reader of pcap files.
//!
//! ```text
//!   test ── Lab ── leno up ── namespaces ── nginx, redis, leno-peer ...
//!     │                │
//!     │                └── bridge ── Sniffer: TLS only?
//!     └── load::run ── open-loop requests ── Report
//! ```
//! Start with [`lab::Lab`], [`load::Plan`] and [`peer::Step`].

pub mod binaries;
pub mod browser;
pub mod clock;
pub mod command;
pub mod lab;
pub mod netns;
pub mod peer;
pub mod proxy;
pub mod reference;
pub mod resolver;
pub mod sniff;
pub mod spinning;
pub mod stopped;
pub mod tools;
mod tracer;
pub mod tunnel;
pub mod wait;

pub use leno_measure::{http1, load, usage};
