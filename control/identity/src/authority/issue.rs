//! Signs the certificates of workloads.

use std::time::{Duration, SystemTime};

use leno_types::{Identity, TrustDomain};
use rcgen::{
    DistinguishedName, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};
use rustls_pki_types::PrivatePkcs8KeyDer;

use super::request::{MAX_REQUEST, PodKey, proven_key};
use super::{
    Authority, AuthorityTrust, CLOCK_SKEW, MAX_LIFETIME, MIN_LIFETIME, MIN_POD_LIFETIME,
    POD_CLOCK_SKEW, fields,
};

/// A newly signed certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate first, then intermediates up to the root; the root itself is omitted.
    pub chain_der: Vec<Vec<u8>>,
    /// When it becomes valid, in whole seconds.
    pub not_before: SystemTime,
    /// When it expires, in whole seconds.
    pub not_after: SystemTime,
    /// The identifier of the key that signed it, in lower-case hexadecimal.
    pub issuer: String,
}

/// A certificate together with its private key, which was created with it.
#[derive(Debug)]
pub struct CertificateWithKey {
    /// The certificate.
    pub issued: IssuedCertificate,
    /// Its private key.
    pub key: PrivatePkcs8KeyDer<'static>,
}

/// Why no certificate was signed.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// The request is longer than any valid one.
    #[error("the certificate request has {0} bytes, more than {MAX_REQUEST}")]
    RequestSize(usize),
    /// The request is not PKCS #10, or its key is not a public key.
    #[error("the certificate request is not PKCS #10 in DER, or its key is not a public key")]
    Request,
    /// The request's key is not a P-256 key.
    #[error("the certificate request's key is not an uncompressed P-256 key")]
    Key,
    /// The request is not signed by its own key.
    #[error("the certificate request is not signed by its key with ECDSA and SHA-256")]
    Signature,
    /// The lifetime is out of bounds.
    #[error("a lifetime of {0:?} is not between {MIN_LIFETIME:?} and {MAX_LIFETIME:?}")]
    Lifetime(Duration),
    /// The identity belongs to another trust domain than the authority's.
    #[error("{identity} is not of the trust domain {ours}")]
    TrustDomain {
        /// The requested identity.
        identity: Identity,
        /// The authority's trust domain.
        ours: TrustDomain,
    },
    /// The root or the issuer has expired, or it expires too soon for even the shortest lifetime.
    #[error("the authority's own certificate expires too soon: replace the authority")]
    AuthorityEnds,
    /// Signing itself failed, or the system provides no random bytes.
    #[error("cannot sign")]
    Sign(#[source] rcgen::Error),
}

impl IssueError {
    /// Whether the request is at fault, and not the authority or its configuration.
    #[must_use]
    pub fn is_bad_request(&self) -> bool {
        matches!(self, Self::RequestSize(_) | Self::Request | Self::Key | Self::Signature)
    }
}

/// How long after a revocation certificates may still be signed by a replica that has not applied it yet.
const UNTIL_APPLIED: Duration = Duration::from_secs(30);

/// The validity of a certificate.
struct Validity {
    begin: SystemTime,
    end: SystemTime,
}

/// What a certificate states about the holder of its key.
struct Holder {
    names: Vec<SanType>,
    purposes: Vec<ExtendedKeyUsagePurpose>,
}

impl Authority {
    /// Certifies that the key of a certificate request belongs to `identity`.
    ///
    /// The certificate (an X509-SVID) names exactly that identity, and ignores names in the request. It expires after
    /// `lifetime`, or with the root or the issuer if that is sooner.
    ///
    /// # Errors
    /// [`IssueError`]. [`IssueError::is_bad_request`] is true if the request is at fault, and false if the
    /// authority is.
    pub fn sign(
        &self,
        csr_der: &[u8],
        identity: &Identity,
        lifetime: Duration,
    ) -> Result<IssuedCertificate, IssueError> {
        let key = proven_key(csr_der)?;
        self.certify(&key, identity, lifetime, SystemTime::now())
    }

    /// As [`sign`](Self::sign), for a `PodCertificateRequest` of Kubernetes. The API server only accepts a certificate
    /// whose validity began less than five minutes ago, and is at least an hour and at most `longest` in length. A
    /// shorter `lifetime` is extended to an hour.
    ///
    /// # Errors
    /// As [`sign`](Self::sign).
    pub fn sign_for_pod(
        &self,
        key: PodKey<'_>,
        identity: &Identity,
        (lifetime, longest): (Duration, Duration),
    ) -> Result<IssuedCertificate, IssueError> {
        let key = key.proven()?;
        let (trust, now) = (self.trust(), SystemTime::now());
        let (holder, earliest) = self.workload(identity, &trust)?;
        let earliest = SystemTime::UNIX_EPOCH + Duration::from_secs(earliest.unwrap_or(0));
        let begin = fields::seconds(earliest.max(now - POD_CLOCK_SKEW));
        let wanted = fields::seconds(now + lifetime.clamp(MIN_POD_LIFETIME, MAX_LIFETIME));
        let end = wanted.min(begin + longest).min(trust.signer.not_after);
        if end < begin + MIN_POD_LIFETIME {
            return Err(IssueError::AuthorityEnds);
        }
        certify_as(&trust, &key, holder, &Validity { begin, end })
    }

    /// Creates a key and its certificate for a workload that does not create a key itself.
    ///
    /// # Errors
    /// [`IssueError`], never one for which a request is at fault.
    pub fn workload_certificate(
        &self,
        identity: &Identity,
        lifetime: Duration,
    ) -> Result<CertificateWithKey, IssueError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError::Sign)?;
        let issued = self.certify(&key, identity, lifetime, SystemTime::now())?;
        Ok(CertificateWithKey { issued, key: key.serialize_der().into() })
    }

    /// Creates a key and its certificate for a server of the control plane. Its SPIFFE ID
    /// ([`TrustDomain::control_plane`]) does not belong to a service account, so [`sign`](Self::sign) cannot issue
    /// such a certificate. The certificate is only valid for servers.
    ///
    /// # Errors
    /// [`IssueError`], never one for which a request is at fault.
    pub fn server_certificate(&self, lifetime: Duration) -> Result<CertificateWithKey, IssueError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError::Sign)?;
        let id = self.trust_domain.control_plane().try_into().map_err(IssueError::Sign)?;
        let purposes = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let holder = Holder { names: vec![SanType::URI(id)], purposes };
        let issued = self.certify_until(&key, holder, (lifetime, None), SystemTime::now())?;
        Ok(CertificateWithKey { issued, key: key.serialize_der().into() })
    }

    /// Creates a key and its certificate for a server that clients verify by its DNS names, such as the webhook
    /// that the API server calls. The certificate has no identity of the mesh, so no proxy accepts it as a
    /// workload's.
    ///
    /// # Errors
    /// [`IssueError`], never one for which a request is at fault.
    pub fn serving_certificate(
        &self,
        names: &[String],
        lifetime: Duration,
    ) -> Result<CertificateWithKey, IssueError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IssueError::Sign)?;
        let names = names.iter().map(|name| Ok(SanType::DnsName(name.as_str().try_into()?)));
        let names: Result<Vec<SanType>, rcgen::Error> = names.collect();
        let purposes = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let holder = Holder { names: names.map_err(IssueError::Sign)?, purposes };
        let issued = self.certify_until(&key, holder, (lifetime, None), SystemTime::now())?;
        Ok(CertificateWithKey { issued, key: key.serialize_der().into() })
    }

    /// Signs a certificate, at time `now`, for a key whose holder was authenticated.
    pub(super) fn certify(
        &self,
        key: &impl PublicKeyData,
        identity: &Identity,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<IssuedCertificate, IssueError> {
        let (holder, earliest) = self.workload(identity, &self.trust())?;
        self.certify_until(key, holder, (lifetime, earliest), now)
    }

    /// What the certificate of a workload states, and the earliest begin of its validity in seconds since 1970.
    fn workload(
        &self,
        identity: &Identity,
        trust: &AuthorityTrust,
    ) -> Result<(Holder, Option<u64>), IssueError> {
        if identity.trust_domain() != &self.trust_domain {
            return Err(IssueError::TrustDomain {
                identity: identity.clone(),
                ours: self.trust_domain.clone(),
            });
        }
        let uri = identity.to_string().try_into().map_err(IssueError::Sign)?;
        let purposes =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let holder = Holder { names: vec![SanType::URI(uri)], purposes };
        Ok((holder, trust.state().earliest_begin(identity)))
    }

    /// The latest time, in seconds since 1970, at which the validity of any certificate may begin that was issued to a
    /// workload up to `now` with this lifetime. A revocation up to this time covers all of them. If there are other
    /// authorities, it is `now`, because they may let the validity begin at the time of issue.
    #[must_use]
    pub fn newest_begin(&self, lifetime: Duration, now: SystemTime) -> u64 {
        let is_alone = self.trust().others_der().is_empty();
        // Of the authority's own certificates, the validity of those for pods begins last. Replicas that have not
        // applied the revocation may sign some of these for another `UNTIL_APPLIED`.
        let skew = POD_CLOCK_SKEW.saturating_sub(UNTIL_APPLIED).min(lifetime);
        let skew = if is_alone { skew } else { Duration::ZERO };
        fields::since_epoch(now - skew).as_secs()
    }

    fn certify_until(
        &self,
        key: &impl PublicKeyData,
        holder: Holder,
        (lifetime, earliest): (Duration, Option<u64>),
        now: SystemTime,
    ) -> Result<IssuedCertificate, IssueError> {
        if !(MIN_LIFETIME..=MAX_LIFETIME).contains(&lifetime) {
            return Err(IssueError::Lifetime(lifetime));
        }
        let trust = self.trust();
        if now + MIN_LIFETIME > trust.signer.not_after {
            return Err(IssueError::AuthorityEnds);
        }
        let end = fields::seconds(now + lifetime).min(trust.signer.not_after);
        let earliest = SystemTime::UNIX_EPOCH + Duration::from_secs(earliest.unwrap_or(0));
        let begin = fields::seconds(earliest.max(now - CLOCK_SKEW.min(lifetime)));
        certify_as(&trust, key, holder, &Validity { begin, end })
    }
}

fn certify_as(
    trust: &AuthorityTrust,
    key: &impl PublicKeyData,
    holder: Holder,
    validity: &Validity,
) -> Result<IssuedCertificate, IssueError> {
    let signer = &trust.signer;
    let mut params = fields::params(validity.begin, validity.end).map_err(IssueError::Sign)?;
    params.subject_alt_names = holder.names;
    // If the subject is empty, the alternative name is critical, so every verifier has to check it.
    params.distinguished_name = DistinguishedName::new();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = holder.purposes;
    params.use_authority_key_identifier_extension = true;
    let certificate = params.signed_by(key, &signer.issuer).map_err(IssueError::Sign)?;
    let mut chain_der = vec![certificate.der().to_vec()];
    chain_der.extend_from_slice(&signer.above_der);
    let (not_before, not_after) = (validity.begin, validity.end);
    Ok(IssuedCertificate { chain_der, not_before, not_after, issuer: signer.key_id.clone() })
}
