//! `leno up`: workloads as processes in network namespaces, over the same control plane, capture
//! and proxy as a cluster.

mod error;

pub mod addresses;
pub mod admin;
pub mod backoff;
pub mod cgroup;
pub mod check;
pub mod cleanup;
pub mod controller;
pub mod dns;
pub mod enclosure;
pub mod exec;
pub mod instance;
pub mod layout;
pub mod listening;
pub mod metrics;
pub mod netns;
pub mod network;
pub mod output;
pub mod plan;
pub mod process;
pub mod program;
pub mod proxy;
pub mod record;
pub mod stat;
pub mod status;
pub mod supervise;
pub mod token;
pub mod up;
pub mod watch;

pub use error::{Error, Result};
