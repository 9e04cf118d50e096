//! Mesh TLS told from an application's own TLS on the first bytes.

use leno_transport::Hello;

use crate::stream::Alpn;

/// Whether first bytes are mesh TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sniffed {
    /// A ClientHello that names a protocol of the mesh.
    Mesh,
    /// Anything else, an application's own TLS included.
    Other,
    /// Too few bytes to tell.
    NeedMore,
}

/// Tells mesh TLS from everything else, on as few bytes as allow it. A decision never changes when
/// more bytes follow.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Sniffed {
    let is_mesh = |name: &[u8]| Alpn::from_bytes(name).is_some();
    match Hello::read(bytes) {
        Hello::NeedMore => Sniffed::NeedMore,
        Hello::Read(hello) if hello.protocols().any(is_mesh) => Sniffed::Mesh,
        Hello::Read(_) | Hello::Unreadable => Sniffed::Other,
    }
}
