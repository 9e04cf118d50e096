//! The report about an authority for operators: its key and roots, which proxies trust which roots, and the
//! progress of a rotation. It contains no secrets.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::authority::AuthorityTrust;
use crate::files;

/// The whole report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityReport {
    /// The trust domain.
    pub trust_domain: String,
    /// The phase of a rotation of the root, or `stable`.
    pub phase: String,
    /// Whether the rotation was aborted and is being reversed.
    pub aborted: bool,
    /// When the phase began.
    pub since_unix_s: u64,
    /// Which cryptography the control plane's TLS uses, `default` or `fips`. Empty if the control plane is of an
    /// earlier release.
    #[serde(default)]
    pub tls_profile: String,
    /// Whether the mesh has its own root, which it can replace.
    pub own_root: bool,
    /// The identifier of the signing key.
    pub issuer: String,
    /// The certificates from the signing one up to its root.
    pub chain: Vec<CertificateReport>,
    /// The mesh's own roots that are trusted.
    pub roots: Vec<CertificateReport>,
    /// The roots of another authority of the trust domain, such as SPIRE, that are trusted as well.
    #[serde(default)]
    pub others: Vec<CertificateReport>,
    /// The roots of other trust domains whose workloads are accepted as clients.
    #[serde(default)]
    pub federated: BTreeMap<String, Vec<CertificateReport>>,
    /// The hash of all trusted roots of the mesh's trust domain.
    pub bundle: String,
    /// The proxies.
    pub proxies: ProxiesReport,
    /// What a rotation waits for besides proxies: other replicas of the control plane, or time. Always empty
    /// outside of a cluster.
    #[serde(default)]
    pub waits: Vec<String>,
    /// Identities with revoked certificates.
    #[serde(default)]
    pub revoked: Vec<String>,
    /// The request that was handled last.
    #[serde(default)]
    pub request: Option<RequestReport>,
    /// Why the authority or a rotation makes no progress; `None` if nothing is wrong.
    #[serde(default)]
    pub problem: Option<String>,
}

impl ProxiesReport {
    /// Adds the proxies that are connected to another replica of the control plane.
    pub fn add(&mut self, other: Self) {
        self.connected += other.connected;
        self.current += other.current;
        for (bundle, count) in other.bundles {
            *self.bundles.entry(bundle).or_default() += count;
        }
        self.waiting.extend(other.waiting);
        self.waiting.truncate(MAX_NAMED);
        self.waiting_total += other.waiting_total;
    }
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateReport {
    /// The subject of the certificate, or its first alternative name if it has no subject.
    pub subject: String,
    /// The SHA-256 digest of the certificate, in lower-case hexadecimal.
    pub sha256: String,
    /// When its validity begins.
    pub not_before_unix_s: i64,
    /// When its validity ends.
    pub not_after_unix_s: i64,
}

/// Which roots and keys the connected proxies use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxiesReport {
    /// How many are connected.
    pub connected: usize,
    /// How many use the present trust bundle, and a certificate that the present key has signed.
    pub current: usize,
    /// How many proxies trust each bundle, by its hash; `unknown` for those that do not report it.
    pub bundles: BTreeMap<String, usize>,
    /// The proxies that the rotation waits for, at most [`MAX_NAMED`].
    pub waiting: Vec<WaitingProxy>,
    /// How many proxies the rotation waits for.
    pub waiting_total: usize,
}

/// Most proxies that [`ProxiesReport::waiting`] names.
pub const MAX_NAMED: usize = 100;

/// A proxy that does not use the present bundle and key yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingProxy {
    /// Its workload, `namespace/name`.
    pub workload: String,
    /// The hash of the roots that it trusts; `None` if it has not reported it.
    pub bundle: Option<String>,
    /// The identifier of the key that has signed its certificate; `None` if it has not reported it.
    pub issuer: Option<String>,
    /// Whether it is connected at present.
    pub connected: bool,
}

/// How a request was handled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestReport {
    /// The request's ID.
    pub id: String,
    /// Why it was rejected; `None` if it was carried out.
    pub refused: Option<String>,
}

impl CertificateReport {
    /// The report of a certificate in DER; `None` if it cannot be parsed.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let validity = certificate.validity();
        Some(Self {
            subject: certificate.subject().to_string(),
            sha256: files::hex(digest(&SHA256, der).as_ref()),
            not_before_unix_s: validity.not_before.timestamp(),
            not_after_unix_s: validity.not_after.timestamp(),
        })
    }
}

impl AuthorityTrust {
    /// The certificates from the signing one up to its root.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateReport> {
        self.chain_der().iter().filter_map(|der| CertificateReport::of(der)).collect()
    }

    /// The mesh's own roots.
    #[must_use]
    pub fn roots(&self) -> Vec<CertificateReport> {
        self.roots_der().iter().filter_map(|der| CertificateReport::of(der)).collect()
    }

    /// The roots of other trust domains.
    #[must_use]
    pub fn federated(&self) -> BTreeMap<String, Vec<CertificateReport>> {
        let report =
            |roots: &[Vec<u8>]| roots.iter().filter_map(|der| CertificateReport::of(der)).collect();
        let domains = self.federated_der().iter();
        domains.map(|(domain, roots)| (domain.to_string(), report(roots))).collect()
    }

    /// The roots of other authorities of the trust domain.
    #[must_use]
    pub fn others(&self) -> Vec<CertificateReport> {
        self.others_der().iter().filter_map(|der| CertificateReport::of(der)).collect()
    }
}
