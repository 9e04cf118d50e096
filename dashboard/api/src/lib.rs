//! Stores what a mesh did in the last day, in bounded memory, and offers a read-only interface to it.
//!
//! ```text
//!  proxies ─ MeshGrowth, every 5 s ─► Hub ─┬─► History: frames by time ─► HistoryStore, a file
//!                (leno-observe)            └─► serve: JSON ◄─┬─ DashboardFront: page, Host, token ◄─ browser
//!                                                            ├─ grpc ◄─ other programs
//!                                                            └─ leno stat --since
//! ```
//!
//! This crate does not know how proxies are reached or what runs a mesh. A collector passes the counts and the
//! state of the mesh to [`hub::Hub`], so `leno up` and a cluster have the same dashboard.
//!
//! Besides the history, the hub holds the present proxies, policies and connections ([`inventory`]).
//!
//! Read first: [`history::History`], [`api`].

pub mod api;
mod bytes;
mod fair;
mod file;
mod frame;
pub mod front;
pub mod grpc;
pub mod history;
pub mod hub;
pub mod inventory;
mod limits;
pub mod objective;
mod outliers;
pub mod policies;
mod problems;
pub mod query;
mod restarts;
pub mod series;
pub mod serve;
mod signs;
pub mod tally;
#[cfg(test)]
mod testing;
mod view;
pub mod visible_namespaces;

pub use file::HistoryStore;
pub use limits::ReaderLimits;
pub use outliers::outliers;
pub use restarts::{ProcessEnds, Restarts};
pub use signs::Signs;
