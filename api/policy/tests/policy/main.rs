//! Tests of routes and authorization through the public API.

mod authorization;
mod routes;
