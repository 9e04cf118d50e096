//! Connections over in-memory pipes: against the `h2` crate as a real peer, and against scripts.
#![expect(clippy::unwrap_used, reason = "tests")]

mod abuse;
mod memory;
mod peers;
mod repeats;
mod rules;
mod script;
mod silence;
mod splits;
mod stalls;
mod support;
mod traces;
mod writes;
