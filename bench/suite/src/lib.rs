//! `leno bench`: measures any mesh, or none, under the same load, on one machine or in a cluster.
//!
//! It is for users who must choose a mesh and do not want to trust the figures of others. It uses the methods of the
//! published comparisons and keeps the raw data; every report is made from the records alone.
//!
//! ```text
//!  scenario × mesh × round ─► lab or cluster ─► load ─► record ─┬─► report, compare
//!                                                               ├─► cost, claims
//!  published samples ─► resources                               └─► (one file per run, units in the names)
//! ```
//!
//! The crate does not parse the command line, and it treats every mesh as a black box that consists of a configuration,
//! a command and a version.
//!
//! Read [`scenario::Scenario`], [`lab`], [`cluster`] and [`record::Record`] first.

mod chart;
mod figures;
mod kernel_counters;
mod process;
mod revision;
mod tools;

#[cfg(test)]
mod golden;

pub mod application;
pub mod claims;
pub mod cluster;
pub mod compare;
pub mod cost;
pub mod files;
pub mod generator;
pub mod interrupt;
pub mod lab;
pub mod machine;
pub mod measurement;
pub mod mesh_names;
pub mod picture;
pub mod pod_program;
pub mod prometheus;
pub mod real_application;
pub mod record;
pub mod report;
pub mod resources;
pub mod scenario;
pub mod statistics;
pub mod tabular;
