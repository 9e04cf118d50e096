//! The policies of requests and of endpoints, with the state that they need.
//!
//! Retries, timeouts and faults are policies of requests: those of the dialled service, or of the route that a
//! request follows ([`RequestPolicy`]). Balancing, ejection and limits are policies of a service's endpoints,
//! whichever route leads to them ([`EndpointPolicy`]).

mod endpoints;
mod requests;

pub(crate) use endpoints::{EndpointPolicy, cookie};
pub(crate) use requests::{Plan, RequestPolicy};
