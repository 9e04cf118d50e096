//! Loads, attaches, pins and updates the kernel programs of `bpf/progs`.
//!
//! One [`Instance`] is one load of the capture programs, with its own maps, for one workload: attached to the
//! workload's cgroup, the proxy's cgroup inside it, and the network namespace. Everything is pinned in one directory,
//! so that the programs outlive the process that has attached them, and any later process can find, upgrade or remove
//! them:
//!
//! ```text
//! <bpffs>/leno/<owner>/     owner, version       notes (symbolic links: bpffs has no plain files)
//!                           map_<name>           listeners, originals, inflight, clients, arriving, excluded, counters
//!                           link_<program>       one for each hook
//! ```
//!
//! [`flows::Flows`] is one load of the flow programs, for all workloads of a mesh or a node, pinned in the same way. A
//! [`SourceCheck`] drops frames that a workload sends from an address that is not its own.
//!
//! This crate does not know what a mesh is, who chooses a capture backend, or why a workload is captured;
//! `leno-capture` does. Read first: [`Instance`], [`InstanceTarget`], [`InstanceOptions`].

mod batch;
mod error;
mod features;
pub mod flows;
pub mod hooks;
pub mod inspect;
mod instance;
mod leftover;
pub mod mounts;
mod netns;
mod object;
mod pins;
mod run_time;
mod sources;

pub use error::Error;
pub use features::{has_atomic_fetch, has_netns_cookies, kernel_is_before};
pub use instance::{Instance, InstanceCounters, InstanceOptions, InstanceTarget};
pub use leftover::{LeftoverPrograms, list, prune};
pub use leno_bpf_abi as abi;
pub use netns::within;
pub use object::probe;
pub use pins::PinRoot;
pub use run_time::{RunTime, RunTimeCounting, run_time, run_times};
pub use sources::SourceCheck;

/// The compiled programs that capture workloads.
pub const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/capture.bpf.o"));

/// The compiled flow programs.
pub const FLOWS_OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/flows.bpf.o"));

/// The same for kernels before 5.12, without atomic instructions that return the previous value.
pub const FLOWS_PLAIN_OBJECT: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/flows_plain.bpf.o"));

#[cfg(test)]
mod tests;
