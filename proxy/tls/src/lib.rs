//! mTLS between proxies: TLS 1.3 on the service's own port, SPIFFE identities on both sides.
//!
//! A [`Keyring`] holds this workload's [`Credentials`]. Rotating them swaps a pointer and closes no connection. Each
//! worker gets a [`Connector`] and an [`Acceptor`] from it. Both return a [`TlsStream`], which knows the peer's
//! identity and which protocol the connection carries ([`Alpn`]).
//!
//! ```text
//! Credentials ─rotate─► Keyring ─┬─ Connector.connect(tcp, expected identity, ALPNs) ─► TlsStream
//!                                └─ Acceptor.accept(tcp with the bytes read)        ─► TlsStream
//! ClientHello ─► offers_mesh, offers_hbone: whether an Acceptor should accept the connection
//! ```
//!
//! An [`Originator`] opens TLS connections to servers outside of the mesh, which have no identity but a name.
//!
//! webpki validates the certificate chains. This crate adds the rules of SPIFFE: a certificate has exactly one URI; the
//! URI is of this trust domain or of a federated one, and only the roots of that domain prove it; a client accepts only
//! the expected identity. If a certificate breaks them, the handshake fails with a [`Refusal`] that names the reason.
//! Only with [`ClientIdentity::Optional`] an acceptor accepts such a client, without an identity. The crate knows no
//! further policy and issues no certificates.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod binding;
mod channel;
mod clients;
mod configs;
mod connector;
mod credentials;
mod cut;
mod error;
mod keyring;
mod live;
mod originate;
mod passage;
mod pipe;
mod refusal;
mod renewal;
mod session;
mod sniff;
mod stream;
mod tls;
mod verify;

pub use channel::Channel;
pub use configs::{DATAGRAM_ALPN, ProvenPeer, TlsConfigs};
pub use connector::{Acceptor, ClientIdentity, Connector, HANDSHAKE_TIMEOUT};
pub use credentials::{Credentials, CredentialsError, FederatedRoots};
pub use error::{HandshakeError, refused_by_server};
pub use keyring::Keyring;
pub use live::{ShownCertificate, end_revoked};
pub use originate::{OriginationError, Originator};
pub use pipe::made_in_process;
pub use refusal::Refusal;
pub use renewal::{Renewal, RenewalDue, RenewalsArrive};
pub use sniff::{offers_hbone, offers_mesh};
pub use stream::{Alpn, TlsStream};

#[cfg(test)]
mod tests;
