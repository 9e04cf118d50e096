//! Distinguishes mTLS of the mesh from an application's own TLS by the ClientHello.

use leno_transport::ClientHello;

use crate::stream::Alpn;

/// Whether a client offers a protocol of the mesh, as only other proxies do.
#[must_use]
pub fn offers_mesh(hello: &ClientHello) -> bool {
    hello.protocols().any(|name| Alpn::from_bytes(name).is_some())
}
