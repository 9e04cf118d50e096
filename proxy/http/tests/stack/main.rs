//! The engine between scripted peers.
#![expect(clippy::unwrap_used, reason = "tests")]

mod abuse;
mod endings;
mod exchange;
mod h2;
mod memory;
mod properties;
mod support;
mod tcp;
