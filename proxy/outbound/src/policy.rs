//! What policy says about requests and about endpoints, with the state that this takes.
//!
//! Retries, timeouts and faults are of requests: of the service that was dialled, or of the route that a
//! request follows ([`RequestPolicy`]). Balancing, ejection and limits are of endpoints: of the service
//! that has them, whatever led there ([`EndpointPolicy`]).

mod endpoints;
mod requests;

pub(crate) use endpoints::{EndpointPolicy, cookie};
pub(crate) use requests::{Plan, RequestPolicy};
