//! What the status of a route should say, of each Service that it attaches to.
//!
//! [`status`] compares what a route asks for with what the index holds, and gives the two conditions
//! that the Gateway API specifies: `Accepted` (does it attach?) and `ResolvedRefs` (do its references
//! lead somewhere?); [`refused`] is for a route that is not understood. What others have said of the route stays as it is, and where nothing is to be
//! changed there is no answer, so that nobody writes in vain.
//!
//! It knows neither where routes come from nor how a status is written: objects, the index and a
//! moment in, a value out.
//!
//! ```text
//! route, index -> attached? (parent) -> resolved? (references) -> conditions -> merged with the old
//! ```
//!
//! Read first: [`status`], [`CONTROLLER`].

mod conditions;
mod parent;
mod references;
mod route;
mod status;

pub use conditions::{ACCEPTED, RESOLVED};
pub use status::{CONTROLLER, refused, status};
