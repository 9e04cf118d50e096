//! `leno bench`: any mesh, or none, under the same load, on one machine or in a cluster.
//!
//! For users who must choose a mesh and do not want to trust the figures of others. It runs the
//! methods of the published comparisons and keeps the raw data; every report is made from the
//! records alone.
//!
//! ```text
//!  scenario × mesh × round ─► lab or cluster ─► load ─► record ─┬─► report, compare
//!                                                               ├─► cost, claims
//!  published samples ─► resources                               └─► (one file per run, units in the names)
//! ```
//!
//! The crate does not parse the command line, and it treats every mesh as a black box: a
//! configuration, a command and a version.
//!
//! Read [`scenario::Scenario`], [`mesh::Mesh`], [`run`], [`cluster`] and [`record::Record`] first.

mod counters;
mod error;
mod lab;
mod loopback;
mod meter;
mod revision;

pub mod application;
pub mod chart;
pub mod claims;
pub mod cluster;
pub mod compare;
pub mod cost;
pub mod distribution;
pub mod generator;
pub mod interrupt;
pub mod machine;
pub mod mesh;
pub mod picture;
pub mod place;
pub mod prometheus;
pub mod real;
pub mod record;
pub mod report;
pub mod resources;
pub mod run;
pub mod scenario;
pub mod station;
pub mod statistics;
pub mod watch;

pub use error::{Error, Result};
