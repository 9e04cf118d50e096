//! `leno up`: workloads as processes in network namespaces, over the same control plane, capture
//! and proxy as a cluster.
//!
//! ```text
//! files ─► plan ─► up         ─┬─► instance: namespace, links, groups, capture, proxy, application
//!                               ├─► controller, over state/state.yaml
//!                               ├─► observer: the history of what the proxies count
//!                               ├─► DNS, over a zone
//!                               └─► mesh.json ─► exec, stat, check
//! ```
//!
//! Everything that will be created is recorded before (`record`), so that the next run or `leno cleanup` can
//! remove what a killed run has left. The plan is a pure value; the rest makes the machine match it.
//!
//! This crate neither carries requests nor decides about them. The other commands (`exec`, `stat`, `check`,
//! `cleanup`) use the files that a running `leno up` writes, never its memory.
//!
//! Read first: [`plan::Plan`], [`up::up`], [`instance::live`].

mod absent;
mod compose;
mod error;

pub mod addresses;
pub mod admin;
pub mod analysis;
pub mod check;
pub mod cleanup;
pub mod controller;
pub mod credentials;
pub mod dns;
pub mod environment;
pub mod exec;
pub mod finished;
pub mod flows;
pub mod forward;
pub mod guard;
pub mod hint;
pub mod hung;
pub mod identity;
pub mod instance;
pub mod isolation;
pub mod layout;
pub mod limits;
pub mod listening;
pub mod log;
pub mod netns;
pub mod network;
pub mod node;
pub mod objectives;
pub mod observer;
pub mod open_ways;
pub mod orders;
pub mod output;
pub mod plan;
pub mod probe;
pub mod process;
pub mod program;
pub mod proxy;
pub mod publish;
pub mod ranges;
pub mod record;
pub mod root;
pub mod stat;
pub mod status;
pub mod token;
pub mod up;
pub mod uplink;
pub mod watch;
pub mod zone;

pub use error::{Error, Result};
