//! Discovery and identity on the wire: the only crate that sees protobuf.
//!
//! [`proto`] is generated from the files in `proto/`. Everything else converts between its
//! messages and the values of [`leno_types::mesh`]: [`encode`] never fails, [`decode`] checks all
//! that a peer may have got wrong and says which field it was. [`names`] are the resource names
//! that client and server must agree on.
//!
//! It knows no sockets, no TLS and no state of a stream.

pub mod decode;
pub mod encode;
pub mod names;

#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::too_many_lines,
    reason = "generated; the proto files have the comments"
)]
pub mod proto {
    //! Messages and services, generated from `proto/leno/v1`.
    include!(concat!(env!("OUT_DIR"), "/leno.v1.rs"));
}

pub use decode::{DecodeError, MAX_ENDPOINTS};

/// `type_url` of [`proto::Address`].
pub const ADDRESS_TYPE: &str = "type.googleapis.com/leno.v1.Address";
/// `type_url` of [`proto::ServerPolicy`].
pub const SERVER_POLICY_TYPE: &str = "type.googleapis.com/leno.v1.ServerPolicy";
/// Largest message of either direction, in bytes: one service with [`MAX_ENDPOINTS`] endpoints
/// takes about 5 MiB.
pub const MAX_MESSAGE: usize = 16 << 20;
/// Most resources of one kind that the wildcard of a namespace yields; the others are asked for by
/// address, on demand.
pub const MAX_PREFETCH: usize = 256;
/// Most addresses that one stream may subscribe to; twice what a proxy watches.
pub const MAX_SUBSCRIPTIONS: usize = 32_768;
