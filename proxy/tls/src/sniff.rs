//! Mesh TLS told from an application's own TLS on the first bytes.

use rustls::server::Acceptor;

use crate::stream::Alpn;

/// The most bytes looked at: one record of the largest size and its header. A ClientHello of a mesh
/// proxy has about 1.8 KiB.
const MAX_HELLO: usize = 16 * 1024 + 5;

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

/// What a ClientHello says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientHello {
    /// The first protocol of the mesh that it names.
    pub alpn: Option<Alpn>,
    /// The server name, as an application's own TLS has one.
    pub sni: Option<String>,
}

/// Tells mesh TLS from everything else, on as few bytes as allow it. A decision never changes when
/// more bytes follow.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Sniffed {
    // Most that is not TLS is told by the first byte, without an attempt to parse it.
    match leno_transport::detect(bytes) {
        leno_transport::Detected::TlsClientHello => {}
        leno_transport::Detected::NeedMore if bytes.first().is_none_or(|b| *b == 0x16) => {
            return Sniffed::NeedMore;
        }
        _ => return Sniffed::Other,
    }
    match client_hello(bytes) {
        None => Sniffed::NeedMore,
        Some(hello) if hello.alpn.is_some() => Sniffed::Mesh,
        Some(_) => Sniffed::Other,
    }
}

/// Reads a ClientHello; none while it is not complete. One that cannot be read, or is longer than a
/// record can be, says nothing.
#[must_use]
pub fn client_hello(bytes: &[u8]) -> Option<ClientHello> {
    let mut acceptor = Acceptor::default();
    let mut rest = &bytes[..bytes.len().min(MAX_HELLO)];
    while !rest.is_empty() {
        if !matches!(acceptor.read_tls(&mut rest), Ok(n) if n > 0) {
            return Some(ClientHello::default());
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => return Some(read(&accepted.client_hello())),
            Ok(None) => {}
            Err(_unreadable) => return Some(ClientHello::default()),
        }
    }
    (bytes.len() >= MAX_HELLO).then(ClientHello::default)
}

fn read(hello: &rustls::server::ClientHello<'_>) -> ClientHello {
    ClientHello {
        alpn: hello.alpn().and_then(|mut names| names.find_map(Alpn::from_bytes)),
        sni: hello.server_name().map(str::to_owned),
    }
}
