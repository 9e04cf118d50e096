//! Distinguishes mTLS of the mesh from an application's own TLS by the first bytes.

use leno_transport::Hello;

use crate::stream::Alpn;

/// What the first bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// A ClientHello that offers a protocol of the mesh.
    Mesh,
    /// Anything else, including an application's own TLS.
    Other,
    /// Too few bytes to decide.
    NeedMore,
}

/// Distinguishes mTLS of the mesh from everything else, with as few bytes as possible. More bytes
/// never change a decision.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Sniffed {
    let is_mesh = |name: &[u8]| Alpn::from_bytes(name).is_some();
    match Hello::read(bytes) {
        Hello::NeedMore => Sniffed::NeedMore,
        Hello::Read(hello) if hello.protocols().any(is_mesh) => Sniffed::Mesh,
        Hello::Read(_) | Hello::Unreadable => Sniffed::Other,
    }
}
