//! What the status of a route or a policy should say, of each object that it attaches to.
//!
//! [`status`] compares what a route asks for with what the index holds, and gives the two conditions
//! that the Gateway API specifies: `Accepted` (does it attach?) and `ResolvedRefs` (do its references
//! lead somewhere?). [`policy_status`] does the same for policies, by the conditions of GEP-713: `Accepted`, and
//! `Programmed` (are there proxies that apply it, and none that cannot?). [`refused`] and [`refused_policy`] are for objects that are not
//! understood. Entries of other controllers stay as they are. A status that would not change is `None`, so that it is
//! not written.
//!
//! It knows neither where objects come from nor how a status is written: objects, the index and a
//! moment in, a value out.
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
