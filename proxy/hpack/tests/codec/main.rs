//! Sections of fields, beside other implementations and the examples of the RFC.

mod peers;
mod rfc7541;
