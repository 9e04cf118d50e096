//! The client of a connection, as its certificate describes it.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use leno_types::Identity;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The client of one connection. Requests carry it as an extension.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPeer {
    pub(crate) address: SocketAddr,
    /// The certificate that the client has shown; `None` if it has shown none, for example to request its first one.
    pub(crate) certificate: Option<PeerCertificate>,
}

/// The content of a client's certificate, which the handshake has verified against the trust bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    pub(crate) identity: Identity,
    pub(crate) not_after: SystemTime,
}

impl PeerCertificate {
    /// Reads a verified certificate; `None` if it is not an X509-SVID, which has exactly one URI (SPIFFE X509-SVID
    /// section 2).
    pub(crate) fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let mut uris = certificate.extensions().iter().filter_map(|e| match e.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        });
        let [GeneralName::URI(uri)] = uris.next()?.as_slice() else {
            return None;
        };
        let end = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
        let not_after = SystemTime::UNIX_EPOCH + Duration::from_secs(end);
        Some(Self { identity: uri.parse().ok()?, not_after })
    }
}
