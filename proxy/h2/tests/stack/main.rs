//! Tests connections over in-memory pipes. The peer is the `h2` crate, or a script.
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
