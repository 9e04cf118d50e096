//! What proxies say of themselves, and what is made of it for people.
//!
//! [`admin`] asks a proxy's admin server over a connection that somebody else has made: from a network
//! namespace of `leno up`, or through the API server of a cluster. [`metrics`] reads the Prometheus text that
//! it answers with. [`stat`] makes workloads and edges of two such answers of all proxies of a mesh.
//!
//! It does not know where a proxy runs, nor how it is reached: so `leno stat` is the same for both.
//!
//! ```text
//! connection ─► admin ─► metrics ─┬─► Scrape ─┐
//!                          ...    └─► Scrape ─┴─► Report
//! ```
//! Read first: [`stat::Scrape`], [`stat::Report`].

pub mod admin;
pub mod metrics;
pub mod stat;
