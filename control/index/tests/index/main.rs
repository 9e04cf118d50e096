//! Tests the index: it is given objects, and its values and changes are compared.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod authorization;
mod changes;
mod external;
mod orders;
mod policies;
mod routes;
mod services;
mod support;
mod tenants;
mod waypoints;
mod workloads;
