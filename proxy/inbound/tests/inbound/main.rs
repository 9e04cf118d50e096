//! Tests of the whole inbound side.

mod detection;
mod hbone;
mod matrix;
mod mesh;
mod support;
