//! The load generator against servers.

mod load;
mod stream;
