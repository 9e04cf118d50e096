//! The messages of discovery and identity: the only crate that handles protobuf.
//!
//! [`proto`] is generated from the files in `proto/` by `make proto`; a test checks that both agree. All other modules
//! convert between its messages and the values of [`leno_types::mesh`]: [`encode`] never fails, and [`decode`] checks
//! everything that the sender may have done wrong, and names the invalid field. [`names`] contains the resource names
//! on which client and server must agree.
//!
//! [`trust`] has the hash with which proxies acknowledge trust bundles.
//!
//! [`ext_authz`] is the protocol of external authorizers, which is Envoy's. [`otlp`] is OpenTelemetry's protocol for
//! exporting spans and log records. [`prometheus`] is the format of Prometheus pages with native histograms. [`spiffe`]
//! is SPIFFE's Workload API.
//!
//! A [`ClientConnection`] is the transport of the generated clients.
//!
//! This crate has no code for sockets, for TLS, or for the state of a stream.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod codec;
mod connection;
pub mod decode;
pub mod encode;
pub mod ext_authz;
pub mod names;
pub mod otlp;
pub mod prometheus;
pub mod spiffe;
pub mod trust;

#[expect(
    missing_docs,
    clippy::allow_attributes,
    clippy::too_many_lines,
    reason = "generated; the proto files have the comments"
)]
pub mod proto {
    //! Messages and services, generated from `proto/leno/v1`.
    include!("generated/leno.v1.rs");
}

pub use bytes::Bytes;
pub use connection::ClientConnection;
pub use decode::{DecodeError, MAX_ENDPOINTS};

/// `type_url` of [`proto::Address`].
pub const ADDRESS_TYPE: &str = "type.googleapis.com/leno.v1.Address";
/// `type_url` of [`proto::ServerPolicy`].
pub const SERVER_POLICY_TYPE: &str = "type.googleapis.com/leno.v1.ServerPolicy";
/// `type_url` of [`proto::UsedServices`].
pub const USED_SERVICES_TYPE: &str = "type.googleapis.com/leno.v1.UsedServices";
/// `type_url` of [`proto::TrustBundle`].
pub const TRUST_BUNDLE_TYPE: &str = "type.googleapis.com/leno.v1.TrustBundle";
/// `type_url` of a response without resources. With it the control plane asks the proxy to open another stream on
/// another connection, and to use the current stream until then.
pub const RECONNECT_TYPE: &str = "type.googleapis.com/leno.v1.Reconnect";
/// The version of discovery's messages. It is increased with every change that an older proxy or
/// control plane would misinterpret.
pub const PROTOCOL: u32 = 1;
/// The feature of proxies that enforce [`proto::Authorization`].
pub const AUTHORIZATION_FEATURE: &str = "authorization";
/// The highest level of [`proto::Authorization`] that this version encodes and reads. A message has the lowest level at
/// which a proxy understands all parts of its policies. A proxy denies every client if a message has a higher level
/// than it knows.
pub const AUTHORIZATION_LEVEL: u32 = 5;
/// The level that suffices for policies without tokens.
pub(crate) const LEVEL_WITHOUT_TOKENS: u32 = 1;
/// The level that suffices for policies with tokens but without external authorizers.
pub(crate) const LEVEL_WITHOUT_AUTHORIZERS: u32 = 2;
/// The level that suffices for policies with external authorizers but without headers of claims and without bodies for
/// authorizers.
pub(crate) const LEVEL_WITHOUT_BODIES: u32 = 3;
/// The level that suffices for policies that have no condition on the validity of certificates, unless the application
/// reads paths as they are sent ([`leno_types::authorization::PathReading::verbatim`]).
pub(crate) const LEVEL_WITHOUT_CERTIFICATES: u32 = 4;
/// The largest message in either direction, in bytes: one service with [`MAX_ENDPOINTS`] endpoints
/// takes about 5 MiB.
pub const MAX_MESSAGE: usize = 16 << 20;
/// The largest number of services that a proxy fetches before its workload uses them. It fetches any other service at
/// its first use, which then waits for one round trip; few workloads use more services than this number.
pub const MAX_PREFETCH: usize = 256;
/// The largest number of addresses to which one stream may subscribe. It is twice the number that a proxy watches.
pub const MAX_SUBSCRIPTIONS: usize = 32_768;

impl proto::Node {
    /// The node of an instance that uses [`PROTOCOL`] and has every feature.
    #[must_use]
    pub fn of(id: impl Into<String>) -> Self {
        let features = vec![AUTHORIZATION_FEATURE.to_owned()];
        Self { id: id.into(), protocol: PROTOCOL, features }
    }
}
