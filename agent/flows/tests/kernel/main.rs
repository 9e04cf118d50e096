//! The flow programs on the real kernel: real connections between two network namespaces, compared with what
//! both ends know of them. Needs root; a skip is printed, and fails if `LENO_REQUIRE` names root.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod budget;
mod drops;
mod lab;
mod life;
mod list;
mod packets;
mod parity;
mod wire;
