//! Route tables, from the outside.

mod conformance;
mod cors;
mod grpc;
mod properties;
mod support;
mod tables;
