//! mTLS between proxies: TLS 1.3 on the service's own port, SPIFFE identities on both sides.
//!
//! A [`Keyring`] holds this workload's [`Credentials`]; rotating them swaps a pointer, and what is
//! connected stays connected. Each worker has a [`Connector`] and an [`Acceptor`] of it. Both yield a
//! [`MeshStream`] that says who the other side is and what is inside ([`Alpn`]).
//!
//! ```text
//! Credentials ─rotate─► Keyring ─┬─ Connector.connect(tcp, whom to expect, ALPNs) ─► MeshStream
//!                                └─ Acceptor.accept(tcp with what was read)      ─► MeshStream
//! first bytes ─► sniff ─► Mesh | Other | NeedMore
//! ```
//!
//! An [`Originator`] begins TLS with a server outside of the mesh, which has no identity but a name.
//!
//! Certificate chains are validated by webpki; this crate adds what SPIFFE asks: exactly one URI in
//! the certificate, of the own trust domain, and on the client's side the very identity expected. A
//! certificate that is refused is refused with a [`Refusal`] that names the reason. An acceptor that is
//! told that an identity is optional lets such a client in, as nobody. It knows no policy beyond that
//! and does not issue certificates.

mod channel;
mod configs;
mod connector;
mod credentials;
mod error;
mod keyring;
mod originate;
mod refusal;
mod session;
mod sniff;
mod stream;
mod tls;
mod verify;

pub use channel::Channel;
pub use configs::TlsConfigs;
pub use connector::{Acceptor, ClientIdentity, Connector, HANDSHAKE_TIMEOUT};
pub use credentials::{Credentials, CredentialsError};
pub use error::{HandshakeError, refused_by_server};
pub use keyring::Keyring;
pub use originate::{OriginationError, Originator};
pub use refusal::Refusal;
pub use sniff::{Sniffed, sniff};
pub use stream::{Alpn, MeshStream};

#[cfg(test)]
mod tests;
