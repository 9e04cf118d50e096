//! Compares sections with those of other implementations and with the examples of the RFC.

mod peers;
mod rfc7541;
