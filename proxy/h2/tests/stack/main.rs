//! Connections over in-memory pipes: against the `h2` crate as a real peer, and against scripts.
#![expect(clippy::unwrap_used, reason = "tests")]

mod abuse;
mod memory;
mod peers;
mod rules;
mod script;
mod splits;
mod support;
mod writes;
