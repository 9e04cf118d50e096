//! Computes the status that a route or a policy should have, for each of its targets.
//!
//! [`status`] compares a route with the index, and computes the two conditions that the Gateway API specifies:
//! `Accepted` (does it attach?) and `ResolvedRefs` (do its references lead somewhere?). [`policy_status`] does the same
//! for policies with the conditions of GEP-713: `Accepted`, and `Programmed` (are there proxies that apply it, and none
//! that cannot?). [`refused`] and [`refused_policy`] are for objects that cannot be understood. Entries of other
//! controllers stay as they are. The result is `None` if the status would not change, so that nothing is written.
//!
//! This crate knows neither where objects come from nor how a status is written. It takes objects, the index and
//! the current time, and returns a value.
//!
//! ```text
//! route, index  -> attached? (parent) -> resolved? (references) -> conditions -> merged with the old
//! policy, index -> target there? rivals? proxies? (policy)      -> conditions -> merged with the old
//! ```
//!
//! Read first: [`status`], [`policy_status`], [`CONTROLLER`].

mod conditions;
mod parent;
mod policy;
mod references;
mod route;
mod status;

pub use conditions::{ACCEPTED, PROGRAMMED, RESOLVED};
pub use policy::{OlderProxies, policy_status, refused_policy};
pub use status::{CONTROLLER, refused, status};
