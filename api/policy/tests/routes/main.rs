//! Route tables, from the outside.

mod conformance;
mod cors;
mod grpc;
mod properties;
mod streams;
mod support;
mod tables;
