//! Routes of the Gateway API through the real `leno-proxy --static`, under the names of upstream's
//! conformance suite.
//!
//! ```text
//!   client ──► leno-proxy (everything goes to t/echo) ──► echo, echo-v1, echo-v2: they say what they saw
//! ```

mod bed;
mod cases;
mod client;
mod conformance;
mod echo;
