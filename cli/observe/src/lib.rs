//! Turns the data of proxies into reports for people.
//!
//! [`admin`] queries a proxy's admin server over a connection that the caller has made: from a
//! network namespace of `leno up`, or through the API server of a cluster. [`metrics`] parses the
//! Prometheus text of the response. [`stat`] computes workloads and edges from two such responses
//! of each proxy of a mesh.
//!
//! [`flows`] reads the kernel's counts of connections from the pages of agents.
//!
//! [`tap`] joins the records of several proxies about the same requests.
//!
//! [`escape`] makes text that others wrote safe for a terminal.
//!
//! The crate does not know where a proxy runs or how to reach it, so that `leno stat` works in the same way for `leno
//! up` and for clusters.
//!
//! ```text
//! connection ─► admin ─► metrics ─┬─► Scrape ─┐
//!                          ...    └─► Scrape ─┴─► Report
//! ```
//! Read first: [`stat::Scrape`], [`stat::StatReport`].

pub mod admin;
pub mod ejected;
pub mod escape;
pub mod flows;
pub mod metrics;
pub mod prometheus;
pub mod stat;
pub mod tap;
