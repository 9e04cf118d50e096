//! The policies of requests and of endpoints, with the state that they need.
//!
//! Retries, timeouts and faults concern requests: the policy is that of the dialled service, or of the route that a
//! request follows ([`RequestPolicy`]). Balancing, ejection and limits concern a service's endpoints, whichever route
//! leads to them ([`EndpointPolicy`]).

mod endpoints;
mod requests;

pub(crate) use endpoints::{EndpointPolicy, cookie};
pub(crate) use requests::{Plan, RequestPolicy};
