//! What a mesh did in the last day, in bounded memory, and the read-only interface to it.
//!
//! ```text
//!  proxies ─► Growth ─► Hub ─┬─► History: frames by time ─► Store, a file
//!   (every 5 s, leno-observe) └─► serve: JSON ◄─ Front: page, Host, token ◄─ browser; grpc ◄─ other programs
//!                                      ▲
//!                                      └─ leno stat --since
//! ```
//!
//! It does not know how proxies are reached or what runs a mesh: a collector gives [`hub::Hub`] what was
//! counted, and the state of the mesh beside it, so that `leno up` and a cluster have the same dashboard.
//!
//! Beside the history the hub has what there is now: proxies, policies, connections ([`inventory`]).
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
