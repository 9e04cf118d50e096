//! Why a handshake failed.

use std::io;

use rustls::AlertDescription;

use crate::Refusal;

/// Why there is no mTLS connection. Nothing of a request was sent then.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// This workload has no certificate yet.
    #[error("no credentials yet")]
    NoCredentials,
    /// The other side did not finish in time.
    #[error("no answer in time")]
    Timeout,
    /// This side refused the other's certificate.
    #[error("refused: {}", .0.reason())]
    Refused(#[source] Refusal),
    /// The other side refused: this side's certificate, or the protocol.
    #[error("refused by the other side: {0:?}")]
    RefusedByPeer(AlertDescription),
    /// It is TLS, but none of the mesh's protocols was agreed.
    #[error("no protocol of the mesh was agreed")]
    NoProtocol,
    /// It is not TLS 1.3 as it should be.
    #[error("TLS failed")]
    Tls(#[source] rustls::Error),
    /// The connection broke.
    #[error("the connection broke")]
    Io(#[source] io::Error),
}

impl HandshakeError {
    /// The label in metrics and logs.
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

/// Whether an error while reading is the server's refusal of the client's certificate.
///
/// In TLS 1.3 the client is done before the server has seen its certificate, so the refusal comes
/// with the first read. The server has processed nothing then.
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
