//! Distinguishes mTLS between proxies from an application's own TLS by the ClientHello.

use leno_transport::ClientHello;

use crate::stream::Alpn;

/// Whether a client offers a protocol of the mesh, which only other proxies do.
#[must_use]
pub fn offers_mesh(hello: &ClientHello) -> bool {
    hello.protocols().any(|name| Alpn::from_bytes(name).is_some())
}

/// Whether a client offers HTTP/2, which clients of HBONE do.
#[must_use]
pub fn offers_hbone(hello: &ClientHello) -> bool {
    hello.protocols().any(|name| name == Alpn::Hbone.as_bytes())
}
