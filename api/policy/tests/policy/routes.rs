//! Tests of route tables through the public API.

mod conformance;
mod cors;
mod grpc;
mod properties;
mod streams;
mod support;
mod tables;
