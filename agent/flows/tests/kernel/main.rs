//! Tests the flow programs on the real kernel: compares their counts of real connections between two network
//! namespaces with what both ends have sent. Needs root. Without root a test reports that it is skipped, or fails
//! if `LENO_REQUIRE` contains `root`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod budget;
mod drops;
mod lab;
mod life;
mod list;
mod packets;
mod parity;
mod wire;
