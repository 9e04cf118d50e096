//! Sections of fields, compared with other implementations and with the examples of the RFC.

mod peers;
mod rfc7541;
