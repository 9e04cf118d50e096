//! Tests of the whole outbound side.

mod gone;
mod hbone;
mod http1_only;
mod opaque;
mod support;
