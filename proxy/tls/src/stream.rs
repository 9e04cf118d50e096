//! A TLS connection with another proxy, or with a server outside of the mesh.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_types::Identity;
use leno_types::authorization::CertificateValidity;

use crate::live::{Dialled, LiveConnection, ShownCertificate};
use crate::tls::Tls;
use crate::verify::Svid;

/// The protocol inside the mTLS of the mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Alpn {
    /// HTTP/2, whose streams carry requests of any HTTP version.
    Http2,
    /// HTTP/1.0 and HTTP/1.1 requests.
    Http1,
    /// The bytes of the application, unchanged.
    Opaque,
    /// A list of the client's other connections, which continue with the certificates of this one ([`crate::Renewal`]).
    Renewal,
    /// HBONE: HTTP/2 whose streams are CONNECTs, between proxies of any mesh. Its ALPN name is that of HTTP/2, so only
    /// the port distinguishes it from the application's own TLS.
    Hbone,
}

impl Alpn {
    /// The protocols between two proxies of this mesh, in the server's order of preference.
    pub const ALL: [Self; 4] = [Self::Http2, Self::Http1, Self::Opaque, Self::Renewal];

    /// The protocols that a client with HTTP requests offers.
    pub const HTTP: &'static [Self] = &[Self::Http2, Self::Http1];

    /// The ALPN name (RFC 7301).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http2 => "leno-h2",
            Self::Http1 => "leno-h1",
            Self::Opaque => "leno-tcp",
            Self::Renewal => "leno-renewal",
            Self::Hbone => "h2",
        }
    }

    /// The ALPN name as bytes.
    #[must_use]
    pub const fn as_bytes(self) -> &'static [u8] {
        self.as_str().as_bytes()
    }

    /// The protocol between two proxies of this mesh with this ALPN name.
    #[must_use]
    pub fn from_bytes(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|alpn| alpn.as_bytes() == name)
    }
}

/// A TLS connection with another proxy, or with a server outside of the mesh. The peer's identity is known, with two
/// exceptions: a client that was accepted with [`crate::ClientIdentity::Optional`] may have no identity, and a server
/// outside of the mesh has a name instead.
#[derive(Debug)]
pub struct TlsStream {
    /// The entry in the worker's list, which has the descriptor of the socket. Declared before `tls`, so that it is
    /// dropped before the socket is closed and the descriptor can be used again.
    live: Option<LiveConnection>,
    pub(crate) tls: Box<Tls>,
    /// The peer's identity; if it has none, the reason for metrics and logs.
    identity: Result<Identity, &'static str>,
    alpn: Alpn,
}

impl TlsStream {
    pub(crate) fn new(tls: Box<Tls>, identity: Result<Identity, &'static str>, alpn: Alpn) -> Self {
        Self { live: None, tls, identity, alpn }
    }

    /// The same connection, which ends once the peer's certificate is revoked, or expires without renewal.
    pub(crate) fn bounded(self, svid: &Svid, dialled: Option<Dialled>) -> Self {
        let tls = &self.tls;
        // Clients of HBONE do not renew connections.
        let binding = tls.binding().filter(|_| self.alpn != Alpn::Hbone);
        let named = (binding, tls.pipe_cutter());
        let live = LiveConnection::new(tls.socket(), svid, named, dialled);
        Self { live: Some(live), ..self }
    }

    /// The identity that the peer has proven. It is `None` only for a client that was accepted with
    /// [`crate::ClientIdentity::Optional`], and for a server outside of the mesh.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref().ok()
    }

    /// The last certificate that the peer has presented; `None` if it has proven no identity.
    #[must_use]
    pub fn certificate(&self) -> Option<ShownCertificate> {
        self.live.as_ref().map(LiveConnection::certificate)
    }

    /// For how long new work may begin on this connection, so that little is cut when the peer's certificate expires:
    /// until the last fifth of the certificate's life begins, or for half of the remaining time if that is longer.
    /// `None` without a certificate.
    #[must_use]
    pub fn fresh_for(&self) -> Option<Duration> {
        let CertificateValidity { not_before_s, not_after_s } = self.certificate()?.validity()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = not_after_s.saturating_sub(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let last = not_after_s.saturating_sub(not_before_s).checked_div(5).unwrap_or_default();
        let fresh_s = left.saturating_sub(last).max(left.checked_div(2).unwrap_or_default());
        Some(Duration::from_secs(u64::try_from(fresh_s).unwrap_or_default()))
    }

    /// Why the peer has no identity. The texts are those of [`crate::HandshakeError::reason`].
    #[must_use]
    pub fn unproven(&self) -> Option<&'static str> {
        self.identity.as_ref().err().copied()
    }

    /// The protocol inside the TLS connection.
    #[must_use]
    pub fn alpn(&self) -> Alpn {
        self.alpn
    }

    /// Whether an accepted connection continues in memory, because its client is in this process.
    #[must_use]
    pub fn is_in_process(&self) -> bool {
        self.tls.passage.writes
    }

    /// Whether an earlier session was resumed.
    #[must_use]
    pub fn resumed(&self) -> bool {
        self.tls.common().handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    }

    #[cfg(test)]
    pub(crate) fn session(&self) -> &rustls::CommonState {
        self.tls.common()
    }

    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.tls.is_idle()
    }
}
