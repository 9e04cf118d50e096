//! Tests of the engine between a scripted client and scripted servers.
#![expect(clippy::unwrap_used, reason = "tests")]

mod abuse;
mod connect;
mod corpus;
mod endings;
mod exact;
mod exchange;
mod h2;
mod matrix;
mod memory;
mod pairs;
mod properties;
mod support;
mod tcp;
