//! The authority: its root, and what it vouches for.

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

/// How far another machine's clock may be behind ours: certificates begin this much in the past.
///
/// Never more than the certificate's own lifetime, so that a very short one stays short.
pub const CLOCK_SKEW: Duration = Duration::from_mins(5);

/// Shortest lifetime of a workload's certificate: a renewal at its half must have time to happen.
pub const MIN_LIFETIME: Duration = Duration::from_secs(10);

/// Longest lifetime of a workload's certificate; there is no revocation but its end.
pub const MAX_LIFETIME: Duration = Duration::from_hours(90 * 24);

/// Lifetime of a workload's certificate where nobody asks for another.
pub const DEFAULT_LIFETIME: Duration = Duration::from_hours(24);

/// Under which label the secret of the webhooks is derived from the authority's key.
const WEBHOOK: &[u8] = b"leno webhook secret v1";

/// A root's certificate and key, both in PEM.
#[derive(Clone)]
pub struct RootPair {
    /// The certificate; not secret.
    pub certificate_pem: String,
    /// The key; whoever has it can be anyone in the mesh.
    pub key_pem: String,
}

impl fmt::Debug for RootPair {
    /// Leaves the key out.
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
    /// The root's own end, in whole seconds.
    not_after: SystemTime,
}

impl Authority {
    /// Loads `ca.pem` and `ca-key.pem` from a directory, or creates all three (modes 0700, 0600).
    ///
    /// Two processes that open the same new directory at once get the same root.
    ///
    /// # Errors
    /// [`OpenError`] where a file cannot be read or written, where one of the pair is missing, and
    /// where the pair is not a root of `trust_domain` that is valid now. Nothing is overwritten.
    pub fn open(directory: &Path, trust_domain: &TrustDomain) -> Result<Self, OpenError> {
        let now = SystemTime::now();
        Self::from_root(Root::open(directory, trust_domain, now)?, trust_domain)
    }

    /// An authority that lives in memory alone and ends with the process.
    ///
    /// # Errors
    /// [`OpenError::Generate`] where the system yields no random bytes.
    pub fn ephemeral(trust_domain: &TrustDomain) -> Result<Self, OpenError> {
        Self::from_root(Root::generate(trust_domain, SystemTime::now())?, trust_domain)
    }

    /// A new authority, and its pair for whoever keeps it.
    ///
    /// # Errors
    /// [`OpenError::Generate`] where the system yields no random bytes.
    pub fn generate(trust_domain: &TrustDomain) -> Result<(Self, RootPair), OpenError> {
        let root = Root::generate(trust_domain, SystemTime::now())?;
        let pair =
            RootPair { certificate_pem: root.pem.clone(), key_pem: root.key.serialize_pem() };
        Ok((Self::from_root(root, trust_domain)?, pair))
    }

    /// The authority of a pair that is kept elsewhere than in a directory; `kept` says where, for
    /// errors.
    ///
    /// # Errors
    /// [`OpenError`] where the pair is not a root of `trust_domain` that is valid now.
    pub fn from_pair(
        kept: &Path,
        pair: &RootPair,
        trust_domain: &TrustDomain,
    ) -> Result<Self, OpenError> {
        let root = Root::from_pair(kept, pair, (trust_domain, SystemTime::now()))?;
        Self::from_root(root, trust_domain)
    }

    /// For whom it vouches.
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

    /// What the API server shows a webhook of the control plane to prove that it is the API server: all
    /// replicas derive the same from the authority's key, and nothing of the key can be learned from it.
    #[must_use]
    pub fn webhook_secret(&self) -> &str {
        &self.webhook_secret
    }

    /// When the root ends, and with it everything that it signed.
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
