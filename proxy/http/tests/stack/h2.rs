//! Tests with HTTP/2 on one side or both.

mod copies;
mod h1_to_h2;
mod h2_to_h1;
mod h2_to_h2;
mod mesh;
pub(crate) mod support;
