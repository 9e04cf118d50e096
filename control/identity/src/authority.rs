//! The certificate authority: its root, and what it certifies.

use std::fmt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use leno_types::TrustDomain;
use rcgen::{Issuer, KeyPair};

mod fields;
mod issue;
mod request;
mod root;
#[cfg(test)]
mod tests;

pub use issue::{IssueError, Issued, ServerCertificate};
pub use root::OpenError;

use root::Root;

/// How far another machine's clock may be behind this one: certificates become valid this long
/// before they are issued.
///
/// Never longer than the certificate's own lifetime, so that a very short one stays short.
pub const CLOCK_SKEW: Duration = Duration::from_mins(5);

/// Shortest lifetime of a workload's certificate: proxies renew at half of it and need time for
/// that.
pub const MIN_LIFETIME: Duration = Duration::from_secs(10);

/// Longest lifetime of a workload's certificate. There is no revocation: a certificate is valid
/// until it expires.
pub const MAX_LIFETIME: Duration = Duration::from_hours(90 * 24);

/// Default lifetime of a workload's certificate.
pub const DEFAULT_LIFETIME: Duration = Duration::from_hours(24);

/// The label under which the webhooks' secret is derived from the authority's key.
const WEBHOOK: &[u8] = b"leno webhook secret v1";

/// A root's certificate and key, both in PEM.
#[derive(Clone)]
pub struct RootPair {
    /// The certificate; not secret.
    pub certificate_pem: String,
    /// The key. A holder of the key can impersonate any workload of the mesh.
    pub key_pem: String,
}

impl fmt::Debug for RootPair {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RootPair")
            .field("certificate_pem", &self.certificate_pem)
            .finish_non_exhaustive()
    }
}

/// A certificate authority of one trust domain: one self-signed root that signs workloads directly.
pub struct Authority {
    trust_domain: TrustDomain,
    issuer: Issuer<'static, KeyPair>,
    root_der: Vec<u8>,
    root_pem: String,
    /// In lower-case hexadecimal.
    webhook_secret: String,
    /// When the root expires, in whole seconds.
    not_after: SystemTime,
}

impl Authority {
    /// Loads `ca.pem` and `ca-key.pem` from a directory, or creates the directory (mode 0700) and
    /// both files (mode 0600).
    ///
    /// If two processes open the same new directory at once, both get the same root.
    ///
    /// # Errors
    /// [`OpenError`] if a file cannot be read or written, if one file of the pair is missing, or if
    /// the pair is not a currently valid root of `trust_domain`. Existing files are never
    /// overwritten.
    pub fn open(directory: &Path, trust_domain: &TrustDomain) -> Result<Self, OpenError> {
        let now = SystemTime::now();
        Self::from_root(Root::open(directory, trust_domain, now)?, trust_domain)
    }

    /// An authority that exists only in memory and ends with the process.
    ///
    /// # Errors
    /// [`OpenError::Generate`] if the system provides no random bytes.
    pub fn ephemeral(trust_domain: &TrustDomain) -> Result<Self, OpenError> {
        Self::from_root(Root::generate(trust_domain, SystemTime::now())?, trust_domain)
    }

    /// A new authority, and its pair for the caller to store.
    ///
    /// # Errors
    /// [`OpenError::Generate`] if the system provides no random bytes.
    pub fn generate(trust_domain: &TrustDomain) -> Result<(Self, RootPair), OpenError> {
        let root = Root::generate(trust_domain, SystemTime::now())?;
        let pair =
            RootPair { certificate_pem: root.pem.clone(), key_pem: root.key.serialize_pem() };
        Ok((Self::from_root(root, trust_domain)?, pair))
    }

    /// The authority of a pair that is stored elsewhere than in a directory. Errors refer to the
    /// place as `kept`.
    ///
    /// # Errors
    /// [`OpenError`] if the pair is not a currently valid root of `trust_domain`.
    pub fn from_pair(
        kept: &Path,
        pair: &RootPair,
        trust_domain: &TrustDomain,
    ) -> Result<Self, OpenError> {
        let root = Root::from_pair(kept, pair, (trust_domain, SystemTime::now()))?;
        Self::from_root(root, trust_domain)
    }

    /// The trust domain whose identities it certifies.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The trust bundle as PEM.
    #[must_use]
    pub fn roots_pem(&self) -> &str {
        &self.root_pem
    }

    /// The trust bundle, one DER certificate each.
    #[must_use]
    pub fn roots_der(&self) -> Vec<Vec<u8>> {
        vec![self.root_der.clone()]
    }

    /// The secret with which the API server authenticates itself to the control plane's webhooks.
    /// All replicas derive the same secret from the authority's key; the key cannot be derived from
    /// it.
    #[must_use]
    pub fn webhook_secret(&self) -> &str {
        &self.webhook_secret
    }

    /// When the root expires, and with it all certificates that it signed.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    fn from_root(root: Root, trust_domain: &TrustDomain) -> Result<Self, OpenError> {
        let Root { certificate, pem, key, not_after } = root;
        let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key.serialize_der()), WEBHOOK);
        let webhook_secret = mac.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(OpenError::Generate)?;
        let root_der = certificate.to_vec();
        let trust_domain = trust_domain.clone();
        Ok(Self { trust_domain, issuer, root_der, root_pem: pem, webhook_secret, not_after })
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("trust_domain", &self.trust_domain)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}
