//! TLS with servers outside of the mesh, whose certificates come from public or given authorities.

use std::fs;
use std::future::poll_fn;
use std::sync::{Arc, OnceLock};

use leno_types::mesh::{Origination, Roots, SubjectName};
use rustls::client::{
    ClientSessionMemoryCache, Resumption, UnbufferedClientConnection, verify_server_name,
};
use rustls::crypto::aws_lc_rs;
use rustls::server::ParsedCertificate;
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, Error, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::connector::HANDSHAKE_TIMEOUT;
use crate::session::Session;
use crate::stream::{Alpn, TlsStream};
use crate::tls::Tls;
use crate::verify::{CheckServer, ServerVerifier};
use crate::{HandshakeError, Refusal};

/// Files in which operating systems list the authorities that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
];

/// How many sessions are cached for one external service. A service has few addresses.
const SESSIONS: usize = 64;

/// The ALPN names (RFC 7301) that are offered to servers outside of the mesh.
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Opens TLS connections to one external service, according to its policy.
#[derive(Clone, Debug)]
pub struct Originator {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

/// Why TLS cannot be attempted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OriginationError {
    /// The policy has no usable authorities.
    #[error("no certificate authority to verify the server's certificate with: {0}")]
    Roots(Arc<str>),
    /// The host name is not valid for TLS.
    #[error("{0:?} is not a valid server name")]
    Name(Arc<str>),
}

impl Originator {
    /// Creates an originator. To be called once per policy, because only its own sessions can be resumed.
    ///
    /// # Errors
    /// [`OriginationError`]
    pub fn new(how: &Origination) -> Result<Self, OriginationError> {
        let wrong = |_| OriginationError::Name(Arc::clone(&how.hostname));
        let name = ServerName::try_from(how.hostname.to_string()).map_err(wrong)?;
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = ServerVerifier {
            roots: roots(&how.roots)?,
            algorithms: provider.signature_verification_algorithms,
            check: Names(Arc::clone(&how.names)),
        };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("the provider has suites of both versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let sessions = ClientSessionMemoryCache::new(SESSIONS);
        config.resumption = Resumption::store(Arc::new(sessions));
        Ok(Self { config: Arc::new(config), name })
    }

    /// Makes `tcp` a TLS connection with the server that the policy names. It carries the protocol
    /// that the server prefers among `offered`. If none of them can be offered, it carries the
    /// application's bytes.
    ///
    /// # Errors
    /// [`HandshakeError`]. Nothing of a request was sent.
    pub async fn connect(
        &self,
        tcp: TcpStream,
        offered: &[Alpn],
    ) -> Result<TlsStream, HandshakeError> {
        let alpns = offered.iter().filter_map(|alpn| match alpn {
            Alpn::Http2 => Some(HTTP2.to_vec()),
            Alpn::Http1 => Some(HTTP1.to_vec()),
            Alpn::Opaque | Alpn::Renewal | Alpn::Hbone => None,
        });
        let (config, name) = (Arc::clone(&self.config), self.name.clone());
        let session = UnbufferedClientConnection::new_with_alpn(config, name, alpns.collect())?;
        let mut tls = Tls::new(tcp, Session::Client(session));
        let handshake = poll_fn(|cx| tls.poll_handshake(cx));
        let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
        done.map_err(|_| HandshakeError::Timeout)??;
        // HTTP/2 is used only if the server has agreed to it (RFC 9113 section 3.3).
        let alpn = match tls.common().alpn_protocol() {
            Some(HTTP2) => Alpn::Http2,
            _ if offered.contains(&Alpn::Http1) => Alpn::Http1,
            _ => Alpn::Opaque,
        };
        Ok(TlsStream::new(tls, Err("outside"), alpn))
    }
}

/// The authorities that a policy trusts.
fn roots(of: &Roots) -> Result<Arc<RootCertStore>, OriginationError> {
    match of {
        Roots::System => Ok(system_roots()),
        Roots::Given(certificates) => {
            let mut roots = RootCertStore::empty();
            let certificates = certificates.iter().map(|der| CertificateDer::from(der.as_slice()));
            let (added, _ignored) = roots.add_parsable_certificates(certificates);
            match added {
                0 => Err(OriginationError::Roots("the configured ones cannot be parsed".into())),
                _ => Ok(Arc::new(roots)),
            }
        }
        Roots::Missing(why) => Err(OriginationError::Roots(Arc::clone(why))),
    }
}

/// The authorities that the machine trusts. There are hundreds, which are read once per process and shared by all
/// policies. If the machine has no list, as in the image of the proxy, Mozilla's list is used.
fn system_roots() -> Arc<RootCertStore> {
    static SYSTEM: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    Arc::clone(SYSTEM.get_or_init(|| Arc::new(authorities(&SYSTEM_ROOTS))))
}

/// The authorities in the first of these files that has any. If none has, the authorities that are compiled into the
/// program.
fn authorities(files: &[&str]) -> RootCertStore {
    let of_machine = files.iter().find_map(|file| {
        let mut roots = RootCertStore::empty();
        let pem = fs::read(file).ok()?;
        let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        let (added, _ignored) = roots.add_parsable_certificates(certificates);
        (added > 0).then_some(roots)
    });
    of_machine.unwrap_or_else(|| webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect())
}

/// The check of servers outside of the mesh: the certificate is valid for one of the names in the policy, or for the
/// host name if the policy has no names.
#[derive(Debug)]
struct Names(Arc<[SubjectName]>);

impl CheckServer for Names {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        parsed: &ParsedCertificate<'_>,
        server_name: &ServerName<'_>,
    ) -> Result<(), Error> {
        if self.0.is_empty() {
            return verify_server_name(parsed, server_name);
        }
        if self.0.iter().any(|name| is_for(certificate, parsed, name)) {
            return Ok(());
        }
        Err(CertificateError::NotValidForName.into())
    }
}

/// Whether a certificate is valid for a name of either kind.
fn is_for(der: &CertificateDer<'_>, parsed: &ParsedCertificate<'_>, name: &SubjectName) -> bool {
    match name {
        SubjectName::Host(host) => ServerName::try_from(&**host)
            .is_ok_and(|host| verify_server_name(parsed, &host).is_ok()),
        SubjectName::Uri(uri) => {
            let Ok((_, certificate)) = X509Certificate::from_der(der) else { return false };
            let names = certificate.subject_alternative_name().ok().flatten();
            names.is_some_and(|extension| {
                let mut names = extension.value.general_names.iter();
                names.any(|name| matches!(name, GeneralName::URI(own) if *own == &**uri))
            })
        }
    }
}

impl HandshakeError {
    /// Why TLS with a server outside of the mesh failed, for `leno-error` and metrics.
    #[must_use]
    pub fn outside_cause(&self) -> &'static str {
        match self {
            Self::Refused(Refusal::UnknownIssuer | Refusal::BadSignature) => {
                "external-unknown-authority"
            }
            Self::Refused(Refusal::Expired | Refusal::NotYetValid) => "external-expired",
            Self::Refused(Refusal::Invalid(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => "external-wrong-name",
            _ => "external-tls-failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The image of the proxy contains no other file.
    #[test]
    fn a_machine_without_a_list_of_authorities_has_the_built_in_one() {
        let built_in = authorities(&["/nowhere/ca-certificates.crt"]);
        assert_eq!(built_in.len(), webpki_roots::TLS_SERVER_ROOTS.len());
        assert!(built_in.len() > 50, "{}", built_in.len());
    }
}
