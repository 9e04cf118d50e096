//! Why a handshake failed.

use std::io;

use rustls::AlertDescription;

use crate::Refusal;

/// Why no mTLS connection was established. Nothing of a request was sent.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// This workload has no certificate yet.
    #[error("no credentials yet")]
    NoCredentials,
    /// The peer did not complete the handshake in time.
    #[error("no answer in time")]
    Timeout,
    /// This side refused the peer's certificate.
    #[error("refused: {}", .0.reason())]
    Refused(#[source] Refusal),
    /// The peer refused this side's certificate, or the protocol.
    #[error("refused by the other side: {0:?}")]
    RefusedByPeer(AlertDescription),
    /// The peer uses TLS, but the two sides agreed on no protocol of the mesh.
    #[error("no protocol of the mesh was agreed")]
    NoProtocol,
    /// The peer does not use TLS, or breaks the rules of TLS 1.3.
    #[error("TLS failed")]
    Tls(#[source] rustls::Error),
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[source] io::Error),
}

impl HandshakeError {
    /// The label for metrics and logs.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoCredentials => "no-credentials",
            Self::Timeout => "timeout",
            Self::Refused(refusal) => refusal.reason(),
            Self::RefusedByPeer(_) => "refused-by-peer",
            Self::NoProtocol => "no-protocol",
            Self::Tls(_) => "tls",
            Self::Io(_) => "io",
        }
    }
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        match tls_error(&error) {
            None => Self::Io(error),
            Some(tls) => tls.clone().into(),
        }
    }
}

impl From<rustls::Error> for HandshakeError {
    fn from(error: rustls::Error) -> Self {
        if let Some(refusal) = Refusal::of(&error) {
            return Self::Refused(refusal);
        }
        match error {
            rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)
            | rustls::Error::NoApplicationProtocol => Self::NoProtocol,
            rustls::Error::AlertReceived(alert) => Self::RefusedByPeer(alert),
            other => Self::Tls(other),
        }
    }
}

impl From<Refusal> for HandshakeError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Which alert the server sent if the error of a read means that it has refused the client's certificate.
///
/// In TLS 1.3 the client's handshake ends before the server has seen the client's certificate, so the refusal arrives
/// with the first read. At that time the server has processed nothing.
#[must_use]
pub fn refused_by_server(error: &io::Error) -> Option<AlertDescription> {
    match tls_error(error) {
        Some(rustls::Error::AlertReceived(alert)) => Some(*alert),
        _ => None,
    }
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
