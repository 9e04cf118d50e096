//! The certificate authority: which key it signs with, and which certificates it issues.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use aws_lc_rs::hmac;
use leno_types::TrustDomain;
use rcgen::KeyPair;
use tokio::sync::watch;

mod fields;
mod issue;
mod issuer_files;
mod request;
mod root;
mod signer;
mod state;
mod store;
#[cfg(test)]
mod tests;

pub use issue::{CertificateWithKey, IssueError, IssuedCertificate};
pub use issuer_files::read_issuer;
pub use request::PodKey;
pub use root::OpenError;
pub use signer::SignerPem;
pub use state::{AuthorityState, IdentityRevocation, RotationError, RotationPhase};
pub use store::{AuthorityDirectory, OperatorRequest, OperatorVerb};

use root::Root;
use signer::Signer;

/// By how much another machine's clock may be behind this one's: a certificate becomes valid this long before it
/// is issued.
///
/// This is never longer than the certificate's own lifetime, so that a very short lifetime is not extended much.
pub const CLOCK_SKEW: Duration = Duration::from_mins(5);

/// Shortest lifetime of a workload's certificate. Proxies renew at half of the lifetime and need time for that.
pub const MIN_LIFETIME: Duration = Duration::from_secs(10);

/// The tolerance for clocks in certificates for a `PodCertificateRequest`. Kubernetes rejects a certificate whose
/// validity begins five or more minutes before its own time. So with this value the control plane's clock may
/// differ from the API server's by up to three minutes.
pub const POD_CLOCK_SKEW: Duration = Duration::from_mins(2);

/// Shortest validity, from begin to end, of a certificate that Kubernetes accepts for a pod.
pub const MIN_POD_LIFETIME: Duration = Duration::from_hours(1);

/// Longest lifetime of a workload's certificate, and how long a revocation is kept.
pub const MAX_LIFETIME: Duration = Duration::from_hours(90 * 24);

/// Default lifetime of a workload's certificate.
pub const DEFAULT_LIFETIME: Duration = Duration::from_hours(24);

/// Most roots of a trust bundle, including those of a rotation and those of another authority. Proxies reject a
/// larger bundle and keep the previous one.
pub const MAX_ROOTS: usize = 32;

/// The label under which the webhooks' secret is derived from the authority's key.
const WEBHOOK: &[u8] = b"leno webhook secret v1";

/// A certificate authority of one trust domain. Its keys and roots may change while it is in use.
pub struct Authority {
    trust_domain: TrustDomain,
    current: watch::Sender<Arc<AuthorityTrust>>,
}

/// The key with which an authority signs and the roots that verifiers trust, in the time between two changes.
#[derive(Clone)]
pub struct AuthorityTrust {
    state: AuthorityState,
    signer: Arc<Signer>,
    roots_pem: String,
    roots_der: Vec<Vec<u8>>,
    /// The roots of other authorities of the same trust domain.
    others_der: Vec<Vec<u8>>,
    /// The roots of other trust domains.
    federated_der: BTreeMap<TrustDomain, Vec<Vec<u8>>>,
}

/// A trust bundle would have more roots than proxies accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a trust bundle has at most {MAX_ROOTS} roots, but the mesh has {own} of its own (with those \
     of a rotation), and another authority has {others}: remove roots that no longer sign \
     certificates"
)]
pub struct TooManyRoots {
    /// How many roots the mesh itself has, in all phases of a rotation.
    pub own: usize,
    /// How many roots other authorities of the trust domain have.
    pub others: usize,
}

impl Authority {
    /// Loads the authority that is stored in a directory. If there is none, creates one: with a new root, or with
    /// the issuer in the files `tls.crt`, `tls.key` and `ca.crt` of the directory `issuer`.
    ///
    /// If two processes open the same new directory at once, both get the same root.
    ///
    /// # Errors
    /// [`OpenError`] if a file cannot be read or written, if one file of a pair is missing, or if the authority is
    /// not valid at present or not of `trust_domain`. Existing files are never overwritten.
    pub fn open(
        directory: &Path,
        issuer: Option<&Path>,
        trust_domain: &TrustDomain,
    ) -> Result<Self, OpenError> {
        let now = SystemTime::now();
        let state = AuthorityDirectory::new(directory).open(issuer, trust_domain, now)?;
        Self::from_state(directory, state, trust_domain)
    }

    /// Creates an authority that exists only in memory, and so ends with the process.
    ///
    /// # Errors
    /// [`OpenError::Generate`] if the system provides no random bytes.
    pub fn ephemeral(trust_domain: &TrustDomain) -> Result<Self, OpenError> {
        let signer = Self::new_root(trust_domain)?;
        let state = AuthorityState::stable(signer, unix_s(SystemTime::now()));
        Self::from_state(Path::new("memory"), state, trust_domain)
    }

    /// Creates a new root of a trust domain.
    ///
    /// # Errors
    /// [`OpenError::Generate`] if the system provides no random bytes.
    pub fn new_root(trust_domain: &TrustDomain) -> Result<SignerPem, OpenError> {
        Ok(Root::generate(trust_domain, SystemTime::now())?.signer())
    }

    /// The authority with a state that is stored elsewhere than in a directory. `kept` is the place that errors
    /// name.
    ///
    /// # Errors
    /// [`OpenError`] if the authority could not sign certificates that verifiers accept.
    pub fn from_state(
        kept: &Path,
        state: AuthorityState,
        trust_domain: &TrustDomain,
    ) -> Result<Self, OpenError> {
        let trust = AuthorityTrust::load(kept, state, trust_domain)?;
        Ok(Self {
            trust_domain: trust_domain.clone(),
            current: watch::Sender::new(Arc::new(trust)),
        })
    }

    /// Replaces the state. All certificates from now on are signed with the new one.
    ///
    /// # Errors
    /// As for [`from_state`](Self::from_state). The authority is then unchanged.
    pub fn apply(&self, kept: &Path, state: AuthorityState) -> Result<(), OpenError> {
        let trust = AuthorityTrust::load(kept, state, &self.trust_domain)?;
        self.current.send_modify(|current| {
            let others_der = current.others_der.clone();
            let federated_der = current.federated_der.clone();
            *current = Arc::new(AuthorityTrust { others_der, federated_der, ..trust });
        });
        Ok(())
    }

    /// Makes workloads trust the roots of another authority of the same trust domain, such as SPIRE, besides the
    /// mesh's own roots. The roots replace those of an earlier call.
    ///
    /// # Errors
    /// [`TooManyRoots`] if a trust bundle has no room for them besides the mesh's own roots, including those of a
    /// rotation. The roots of the earlier call then stay.
    pub fn trust_others(&self, roots_der: Vec<Vec<u8>>) -> Result<(), TooManyRoots> {
        let mut result = Ok(());
        self.current.send_if_modified(|current| {
            result = TooManyRoots::check(&current.state, &roots_der);
            let is_other = result.is_ok() && current.others_der != roots_der;
            if is_other {
                *current = Arc::new(AuthorityTrust {
                    others_der: roots_der,
                    ..AuthorityTrust::clone(current)
                });
            }
            is_other
        });
        result
    }

    /// Makes workloads accept clients of another trust domain, which are verified only with these roots. The roots
    /// replace those of an earlier call for the same domain. Does nothing for the authority's own trust domain.
    pub fn federate(&self, domain: &TrustDomain, roots_der: Vec<Vec<u8>>) {
        if *domain == self.trust_domain {
            return;
        }
        self.current.send_if_modified(|current| {
            let is_other = current.federated_der.get(domain) != Some(&roots_der);
            if is_other {
                let mut next = AuthorityTrust::clone(current);
                next.federated_der.insert(domain.clone(), roots_der);
                *current = Arc::new(next);
            }
            is_other
        });
    }

    /// The trust domain for whose identities the authority issues certificates.
    #[must_use]
    pub fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The present key and roots.
    #[must_use]
    pub fn trust(&self) -> Arc<AuthorityTrust> {
        Arc::clone(&self.current.borrow())
    }

    /// A receiver of each change of the key or the roots.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Arc<AuthorityTrust>> {
        self.current.subscribe()
    }

    /// The secret by which the API server proves its identity to the control plane's webhooks. All replicas derive
    /// the same secret from the authority's key. The key cannot be derived from the secret.
    #[must_use]
    pub fn webhook_secret(&self) -> String {
        let trust = self.trust();
        trust.state.webhook_secret.clone().unwrap_or_else(|| webhook_secret(&trust.state.to))
    }
}

impl AuthorityTrust {
    fn load(
        kept: &Path,
        state: AuthorityState,
        trust_domain: &TrustDomain,
    ) -> Result<Self, OpenError> {
        let signer = Signer::load(kept, state.signing(), (trust_domain, SystemTime::now()))?;
        let signer = Arc::new(signer);
        let roots_pem = state.roots_pem();
        let roots_der = state.roots().into_iter().map(|root| root.to_vec()).collect();
        let (others_der, federated_der) = (Vec::new(), BTreeMap::new());
        Ok(Self { state, signer, roots_pem, roots_der, others_der, federated_der })
    }

    /// Checks that a trust bundle has room for the roots of the next state and for those of other authorities.
    ///
    /// # Errors
    /// [`TooManyRoots`]
    pub fn check_room(&self, next: &AuthorityState) -> Result<(), TooManyRoots> {
        TooManyRoots::check(next, &self.others_der)
    }

    /// The state from which everything else is derived.
    #[must_use]
    pub fn state(&self) -> &AuthorityState {
        &self.state
    }

    /// The mesh's own roots as PEM. They also verify the control plane's certificates.
    #[must_use]
    pub fn roots_pem(&self) -> &str {
        &self.roots_pem
    }

    /// The mesh's own roots, one DER certificate each.
    #[must_use]
    pub fn roots_der(&self) -> &[Vec<u8>] {
        &self.roots_der
    }

    /// The roots of other authorities of the trust domain, one DER certificate each.
    #[must_use]
    pub fn others_der(&self) -> &[Vec<u8>] {
        &self.others_der
    }

    /// The roots of other trust domains, one DER certificate each.
    #[must_use]
    pub fn federated_der(&self) -> &BTreeMap<TrustDomain, Vec<Vec<u8>>> {
        &self.federated_der
    }

    /// The trust bundle of workloads: the mesh's own roots and those of other authorities, one DER certificate
    /// each.
    #[must_use]
    pub fn bundle_der(&self) -> Vec<Vec<u8>> {
        let others = self.others_der.iter().filter(|root| !self.roots_der.contains(root));
        self.roots_der.iter().chain(others).cloned().collect()
    }

    /// The certificates from the one that signs up to its root, in DER.
    #[must_use]
    pub fn chain_der(&self) -> Vec<Vec<u8>> {
        let signing = self.state.signing();
        let chain = signer::certificates(&signing.certificates).unwrap_or_default();
        let roots = self.signer.roots.iter().filter(|root| !chain.contains(root)).cloned();
        chain.iter().cloned().chain(roots).map(|one| one.to_vec()).collect()
    }

    /// The identifier of the signing key, in lower-case hexadecimal.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.signer.key_id
    }

    /// When the root or the issuer expires, whichever is first. No certificate is valid for longer.
    #[must_use]
    pub fn not_after(&self) -> SystemTime {
        self.signer.not_after
    }

    /// When the root expires.
    #[must_use]
    pub fn root_not_after(&self) -> SystemTime {
        self.signer.root_not_after
    }

    /// When the signing certificate or an intermediate certificate above it expires, whichever is first. If the mesh's
    /// own root signs, this is the root's expiry.
    #[must_use]
    pub fn issuer_not_after(&self) -> SystemTime {
        self.signer.issuer_not_after
    }
}

impl TooManyRoots {
    /// Checks that a trust bundle has room for all roots of a state, in each phase of its rotation, and for those
    /// of other authorities.
    fn check(state: &AuthorityState, others_der: &[Vec<u8>]) -> Result<(), Self> {
        let own = state.all_roots();
        let is_other = |root: &&Vec<u8>| !own.iter().any(|known| known.as_ref() == **root);
        let others = others_der.iter().filter(is_other).count();
        let own = own.len();
        if own + others > MAX_ROOTS { Err(Self { own, others }) } else { Ok(()) }
    }
}

/// Derives the webhooks' secret from a signer's key.
fn webhook_secret(signer: &SignerPem) -> String {
    // A key that cannot be parsed does not occur here, because an authority with such a key cannot be created.
    let der = KeyPair::from_pem(&signer.key).map(|key| key.serialize_der()).unwrap_or_default();
    crate::files::hex(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &der), WEBHOOK).as_ref())
}

/// Converts a time to seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("trust_domain", &self.trust_domain)
            .field("issuer", &self.trust().issuer())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for AuthorityTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust")
            .field("phase", &self.state.phase)
            .field("issuer", &self.signer.key_id)
            .field("not_after", &self.signer.not_after)
            .finish_non_exhaustive()
    }
}
