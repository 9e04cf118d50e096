//! Computes the status that a route or a policy should have, for each of its targets.
//!
//! [`status`] compares a route with the index, and computes the two conditions that the Gateway API specifies:
//! `Accepted` (does it attach?) and `ResolvedRefs` (do its references lead somewhere?). [`policy_status`] does the
//! same for policies with the conditions of GEP-713: `Accepted`, and `Programmed` (are there proxies that apply
//! it, and none that cannot?). [`refused`] and [`refused_policy`] are for invalid objects. Entries of other
//! controllers are not changed. The result is `None` if the status would not change, so that nothing is written.
//!
//! The crate only computes values from objects, the index and the current time. The caller reads the objects and
//! writes the status.
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
