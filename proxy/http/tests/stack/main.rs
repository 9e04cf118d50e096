//! The engine between scripted peers.

mod abuse;
mod exchange;
mod properties;
mod support;
mod tcp;
