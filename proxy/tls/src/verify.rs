//! Reads a certificate as an X509-SVID (the SPIFFE form of a certificate), and checks it against what this side
//! expects.

use std::collections::BTreeMap;
use std::sync::Arc;

use leno_types::{Identity, Revocations, TrustDomain};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::Refusal;

/// The identity and the validity in a certificate. Proves something only once webpki has validated the chain.
#[derive(Clone, Debug)]
pub(crate) struct Svid {
    pub(crate) identity: Identity,
    /// Both times are seconds since 1970.
    pub(crate) not_before_s: i64,
    pub(crate) not_after_s: i64,
}

impl Svid {
    /// Reads an X509-SVID (section 2: exactly one URI).
    pub(crate) fn read(certificate: &CertificateDer<'_>) -> Result<Self, Refusal> {
        let malformed = |_| Refusal::Malformed;
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(malformed)?;
        let names = match parsed.subject_alternative_name() {
            Ok(Some(extension)) => extension.value.general_names.as_slice(),
            Ok(None) => &[],
            Err(_) => return Err(Refusal::Malformed),
        };
        let uri_of = |name: &GeneralName<'_>| match name {
            GeneralName::URI(uri) => Some((*uri).to_owned()),
            _ => None,
        };
        let uris: Vec<String> = names.iter().filter_map(uri_of).collect();
        let identity = match uris.as_slice() {
            [] => return Err(Refusal::NoIdentity),
            [uri] => uri.parse().map_err(Refusal::NotAnIdentity)?,
            several => return Err(Refusal::SeveralIdentities(several.len())),
        };
        Ok(Self {
            identity,
            not_before_s: parsed.validity().not_before.timestamp(),
            not_after_s: parsed.validity().not_after.timestamp(),
        })
    }

    /// Checks the validity period. This is needed for resumed sessions, which rustls does not validate again.
    pub(crate) fn check_time(&self, now: UnixTime) -> Result<(), Refusal> {
        let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now_s < self.not_before_s {
            Err(Refusal::NotYetValid)
        } else if now_s > self.not_after_s {
            Err(Refusal::Expired)
        } else {
            Ok(())
        }
    }

    pub(crate) fn check_revoked(&self, revoked: &Revocations) -> Result<(), Refusal> {
        match revoked.covers(&self.identity, self.not_before_s) {
            true => Err(Refusal::Revoked),
            false => Ok(()),
        }
    }

    pub(crate) fn check_domain(&self, expected: &TrustDomain) -> Result<(), Refusal> {
        let presented = self.identity.trust_domain();
        if presented == expected {
            return Ok(());
        }
        Err(Refusal::TrustDomain { expected: expected.clone(), presented: presented.clone() })
    }

    pub(crate) fn check_identity(&self, expected: &Identity) -> Result<(), Refusal> {
        if self.identity == *expected {
            return Ok(());
        }
        self.check_domain(expected.trust_domain())?;
        Err(Refusal::Unexpected { expected: expected.clone(), presented: self.identity.clone() })
    }
}

/// How a client checks a server's certificate: webpki checks the chain, and `check` the rest.
#[derive(Debug)]
pub(crate) struct ServerVerifier<C> {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
    pub(crate) check: C,
}

/// Checks a certificate whose chain is valid.
pub(crate) trait CheckServer: std::fmt::Debug + Send + Sync {
    /// Checks the server's certificate. `server_name` is the host name of the policy, or the server's IP address in the
    /// mesh.
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        parsed: &ParsedCertificate<'_>,
        server_name: &ServerName<'_>,
    ) -> Result<(), Error>;
}

/// Inside the mesh, the server must have the expected identity.
impl CheckServer for Identity {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        _parsed: &ParsedCertificate<'_>,
        _server_name: &ServerName<'_>,
    ) -> Result<(), Error> {
        Ok(Svid::read(certificate)?.check_identity(self)?)
    }
}

impl<C: CheckServer> ServerCertVerifier for ServerVerifier<C> {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let (roots, algorithms) = (&self.roots, self.algorithms.all);
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
        self.check.check(end_entity, &parsed, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    /// This is called only for servers outside of the mesh, because TLS 1.2 is not offered inside the mesh.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// How a server checks a client's certificate: the client must have an identity of this workload's trust domain, or of
/// a federated one. Only the roots of a domain prove identities of that domain.
///
/// If an identity is optional, the handshake accepts any certificate or none, and
/// [`TlsConfigs::identify`](crate::TlsConfigs) verifies the certificate afterwards. In the handshake a client still
/// proves that it has the key of its certificate; otherwise a copied certificate would give it an identity.
#[derive(Clone, Debug)]
pub(crate) struct ClientVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    domain: TrustDomain,
    /// The verifiers for chains of other trust domains.
    federated: Arc<BTreeMap<TrustDomain, Arc<dyn ClientCertVerifier>>>,
    revoked: Revocations,
    is_optional: bool,
}

impl ClientVerifier {
    pub(crate) fn new(
        (roots, federated): (&Arc<RootCertStore>, &BTreeMap<TrustDomain, Arc<RootCertStore>>),
        provider: &Arc<CryptoProvider>,
        domain: TrustDomain,
    ) -> Result<Self, VerifierBuilderError> {
        let chain = |roots: &Arc<RootCertStore>| {
            WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider))
                // Every client of the mesh has one certificate, so hints would only cost bytes.
                .clear_root_hint_subjects()
                .build()
        };
        let federated = federated.iter().map(|(domain, roots)| Ok((domain.clone(), chain(roots)?)));
        let federated = Arc::new(federated.collect::<Result<_, VerifierBuilderError>>()?);
        let (chain, revoked) = (chain(roots)?, Revocations::default());
        Ok(Self { chain, domain, federated, revoked, is_optional: false })
    }

    /// The same verifier, but it refuses revoked certificates.
    pub(crate) fn without(self, revoked: Revocations) -> Self {
        Self { revoked, ..self }
    }

    /// The same verifier, but for a server to which an identity is optional.
    pub(crate) fn optional(&self) -> Self {
        Self { is_optional: true, ..self.clone() }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        !self.is_optional
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.is_optional {
            return Ok(ClientCertVerified::assertion());
        }
        let svid = Svid::read(end_entity);
        let claimed = svid.as_ref().ok().map(|svid| svid.identity.trust_domain());
        let federated = claimed.and_then(|domain| self.federated.get(domain));
        let chain = federated.unwrap_or(&self.chain);
        let verified = chain.verify_client_cert(end_entity, intermediates, now)?;
        let svid = svid?;
        if federated.is_none() {
            svid.check_domain(&self.domain)?;
        }
        svid.check_revoked(&self.revoked)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
