//! Tests routes of the Gateway API through the real `leno-proxy --static`. The tests are named after the cases of
//! the upstream conformance suite.
//!
//! ```text
//!   client ──► leno-proxy (all requests are for t/echo) ──► echo, echo-v1, echo-v2: they return what they received
//! ```

mod cases;
mod client;
mod conformance;
mod echo;
mod fixture;
