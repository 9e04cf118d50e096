//! Gets a certificate from the control plane and renews it before it expires. Certificates of a Workload API are
//! handled by [`workload_api`], those of a kubelet by [`certificate_files`].
//!
//! ```text
//!   make a key -> request, token -> certificate --published--> 70 % of its life, or earlier: --+
//!        ^             |  failed: wait, longer each time                                       |
//!        +-------------+--- the control plane refuses it, another key signs, it is revoked ----+
//! ```

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_types::Revocations;
use leno_wire::proto;
use leno_wire::proto::identity_client::IdentityClient as Rpc;
use leno_wire::trust::{FederatedRoots, TrustBundle};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::backoff::{Backoff, random_fraction};
use crate::certificate::Certificate;
use crate::connection::{self, ConnectError};
use crate::settings::{CertificateSource, Settings};
use crate::{certificate_files, workload_api};

/// How long to wait for a certificate on an open connection. Signing takes a millisecond.
const ISSUE_TIMEOUT: Duration = Duration::from_secs(5);
/// The first wait after a failure. It is short because a control plane that starts together with the proxy is ready
/// soon.
const FIRST_WAIT: Duration = Duration::from_millis(50);
/// The longest wait while there is no certificate. It is short because the proxy cannot serve without a certificate.
const LONGEST_WAIT: Duration = Duration::from_secs(3);
/// While the wait before the next attempt is shorter than this, for about a second, a control plane that cannot be
/// reached causes no warning.
const SILENT_WAIT: Duration = Duration::from_millis(500);
/// The longest wait while the current certificate is still valid.
const LONGEST_WAIT_RENEWAL: Duration = Duration::from_secs(60);
/// When to renew, as a share of the remaining life, and how much that share varies at random.
const RENEW_AT: f64 = 0.7;
const RENEW_JITTER: f64 = 0.05;
/// The shortest wait between renewals, even for a very short lifetime. It bounds the number of requests if a clock is
/// wrong.
const SHORTEST_RENEWAL: Duration = Duration::from_secs(1);
/// The longest wait before a certificate is renewed because another key signs now.
const LONGEST_SPREAD: Duration = Duration::from_secs(3);
/// The largest token in bytes. A Kubernetes service-account token has about 1 KiB.
const MAX_TOKEN: usize = 64 * 1024;
/// The largest number of certificates in a chain or a trust bundle.
const MAX_CERTIFICATES: usize = 100;

/// Gets certificates, so that there is always a valid one. Cheap to clone; all clones publish to the same watch.
#[derive(Clone, Debug)]
pub struct IdentityClient {
    settings: Arc<Settings>,
    certificate: watch::Sender<Option<Arc<Certificate>>>,
    /// Notified when the control plane refuses the certificate.
    wanted: Arc<Notify>,
    /// The trust bundle that the control plane has sent last.
    bundle: watch::Sender<Option<Arc<TrustBundle>>>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The token's file cannot be read.
    #[error("cannot read the token in {0}")]
    Token(PathBuf, #[source] io::Error),
    /// Certificates come from a Workload API, so there is no token.
    #[error("there is no token, because certificates come from a Workload API")]
    NoToken,
    /// The key or the certificate request could not be made.
    #[error("cannot create a certificate request")]
    Request(#[source] rcgen::Error),
    /// There is no connection to the control plane.
    #[error("cannot reach the control plane")]
    Connect(#[from] ConnectError),
    /// The control plane refused the request. `Unauthenticated` means that the token is not valid.
    #[error("the control plane issued no certificate: {} ({})", .0.message(), .0.code())]
    Refused(tonic::Status),
    /// Issuing took too long.
    #[error("no certificate within {ISSUE_TIMEOUT:?}")]
    Timeout,
    /// The response is not a certificate.
    #[error("the control plane's response cannot be used: {0}")]
    Answer(&'static str),
}

impl IdentityClient {
    /// Creates the client without sending anything.
    #[must_use]
    pub fn new(settings: Arc<Settings>) -> Self {
        let (certificate, wanted) = (watch::Sender::new(None), Arc::default());
        Self { settings, certificate, wanted, bundle: watch::Sender::new(None) }
    }

    /// The certificate in use. `None` until the first certificate was issued. A certificate stays in use until the next
    /// one has been issued.
    #[must_use]
    pub fn certificates(&self) -> watch::Receiver<Option<Arc<Certificate>>> {
        self.certificate.subscribe()
    }

    /// Renews the certificate early, because the control plane does not accept it.
    pub(crate) fn renew(&self) {
        self.wanted.notify_one();
    }

    /// From now on verifies peers with the roots of `bundle`. If another key signs now, or the certificate is revoked,
    /// the certificate is renewed.
    pub(crate) fn trust(&self, bundle: &Arc<TrustBundle>) {
        self.certificate.send_if_modified(|current| {
            let Some(certificate) = current else { return false };
            let next = certificate.under(bundle);
            let is_other = next != **certificate;
            if is_other {
                *current = Some(Arc::new(next));
            }
            is_other
        });
        self.bundle.send_replace(Some(Arc::clone(bundle)));
    }

    /// Puts a certificate of a Workload API or of a kubelet into use.
    pub(crate) fn take(&self, certificate: Certificate) {
        let bundle = self.bundle.borrow().clone();
        let certificate = match bundle {
            Some(bundle) => certificate.under(&bundle),
            None => certificate,
        };
        self.certificate.send_replace(Some(Arc::new(certificate)));
    }

    /// Whether the control plane has sent a trust bundle.
    pub(crate) fn has_bundle(&self) -> bool {
        self.bundle.borrow().is_some()
    }

    /// Whether a certificate must be renewed early, by the trust bundle that the control plane has sent last.
    pub(crate) fn is_outdated(&self, certificate: &Certificate) -> bool {
        self.bundle.borrow().as_ref().is_some_and(|bundle| certificate.is_outdated(bundle))
    }

    /// Waits until the control plane refuses the certificate.
    pub(crate) async fn refused(&self) {
        self.wanted.notified().await;
    }

    /// Discards a refusal that was already reported, so that [`refused`](Self::refused) waits for the next one.
    pub(crate) async fn forget_refusal(&self) {
        tokio::select! {
            biased;
            () = self.wanted.notified() => {}
            () = std::future::ready(()) => {}
        }
    }

    /// Waits until the certificate must be renewed early, by a trust bundle that the control plane sends.
    pub(crate) async fn outdated(&self, certificate: &Certificate) {
        let mut bundle = self.bundle.subscribe();
        let is_outdated = |bundle: &Option<Arc<TrustBundle>>| {
            bundle.as_ref().is_some_and(|bundle| certificate.is_outdated(bundle))
        };
        // The sender lives as long as `self`. The result holds the lock of the value.
        let is_urgent = bundle.wait_for(is_outdated).await.is_ok_and(|bundle| {
            bundle.as_ref().is_some_and(|bundle| certificate.is_revoked(&bundle.revoked))
        });
        // A revoked certificate is replaced at once, because peers refuse it. Otherwise the certificate is still
        // accepted, and the wait spreads the requests of all proxies, which learn of a new key at the same time.
        if !is_urgent {
            sleep(LONGEST_SPREAD.mul_f64(random_fraction())).await;
        }
    }

    /// Requests one certificate from the control plane, with a new key.
    ///
    /// # Errors
    /// [`IdentityError`]
    pub async fn issue(&self) -> Result<Certificate, IdentityError> {
        let file = self.settings.certificates.token().ok_or(IdentityError::NoToken)?;
        let failed = |error| IdentityError::Token(file.clone(), error);
        let token = std::fs::read_to_string(file).map_err(failed)?;
        if token.len() > MAX_TOKEN {
            return Err(failed(io::Error::other("it is too long")));
        }
        let (key, csr) = request().map_err(IdentityError::Request)?;
        // The connection presents no certificate: the token suffices, and an expired certificate would be refused.
        let current = self.certificate.borrow().clone();
        let connection = connection::connect_as(&self.settings, current.as_deref(), None).await?;
        let mut rpc = Rpc::with_origin(connection, connection::origin());
        let request = proto::IssueCertificateRequest {
            csr: csr.into(),
            token: token.trim().to_owned(),
            pod: self.settings.served_pod(),
        };
        let answer = timeout(ISSUE_TIMEOUT, rpc.issue_certificate(request))
            .await
            .map_err(|_| IdentityError::Timeout)?
            .map_err(IdentityError::Refused)?
            .into_inner();
        let mut issued = certificate(answer, &key)?;
        if let Some(bundle) = &*self.bundle.borrow() {
            issued.revoked = bundle.revoked.clone();
            issued.federated = bundle.federated.clone();
        }
        Ok(issued)
    }

    /// Gets a certificate and renews it, for as long as the future is polled.
    pub async fn run(self) -> Infallible {
        match &self.settings.certificates {
            CertificateSource::Token(_) => self.renew_by_token().await,
            // In boxes, because few proxies need these futures, and without a box every proxy would reserve space for
            // the largest.
            CertificateSource::WorkloadApi(address, identity) => {
                Box::pin(workload_api::follow(&self, address, identity)).await
            }
            CertificateSource::Files(files, _) => {
                Box::pin(certificate_files::follow(&self, files)).await
            }
        }
    }

    /// Gets a certificate with the token and renews it, for as long as the future is polled.
    pub(crate) async fn renew_by_token(&self) -> Infallible {
        let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
        loop {
            // In a box that is freed before the wait for the next renewal, which takes hours.
            match Box::pin(self.issue()).await {
                Ok(certificate) => {
                    let remaining = remaining(&certificate);
                    tracing::info!(remaining_s = remaining.as_secs(), "certificate issued");
                    let certificate = Arc::new(certificate);
                    self.certificate.send_replace(Some(Arc::clone(&certificate)));
                    let longest = (remaining / 20).clamp(LONGEST_WAIT / 6, LONGEST_WAIT_RENEWAL);
                    backoff = Backoff::new(FIRST_WAIT, longest);
                    // Even if the control plane refuses every certificate, it gets no more requests
                    // than this.
                    sleep(SHORTEST_RENEWAL).await;
                    let due = until_renewal(remaining, random_fraction());
                    tokio::select! {
                        () = sleep(due.saturating_sub(SHORTEST_RENEWAL)) => {}
                        () = self.wanted.notified() => {}
                        () = self.outdated(&certificate) => {}
                    }
                }
                Err(error) => {
                    let wait = backoff.wait();
                    warn(&error, wait);
                    sleep(wait).await;
                }
            }
        }
    }
}

/// A control plane that starts at the same time as the proxy, or restarts, is not worth a warning at once.
fn warn(error: &IdentityError, wait: Duration) {
    let (cause, wait_ms) = (crate::chain(error), wait.as_millis());
    match error {
        IdentityError::Connect(_) if wait < SILENT_WAIT => {
            tracing::debug!(error = cause, wait_ms, "no certificate yet; trying again");
        }
        _ => tracing::warn!(error = cause, wait_ms, "no certificate; trying again"),
    }
}

/// A new key, and a certificate request without a subject that proves possession of the key.
fn request() -> Result<(KeyPair, Vec<u8>), rcgen::Error> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let csr = params.serialize_request(&key)?.der().to_vec();
    Ok((key, csr))
}

fn certificate(
    answer: proto::IssueCertificateResponse,
    key: &KeyPair,
) -> Result<Certificate, IdentityError> {
    let good = |list: &[_]| (1..=MAX_CERTIFICATES).contains(&list.len());
    if !good(&answer.chain) {
        return Err(IdentityError::Answer("the chain has no or too many certificates"));
    }
    if !good(&answer.roots) {
        return Err(IdentityError::Answer("the trust bundle has no or too many certificates"));
    }
    let not_after = u64::try_from(answer.not_after_unix_s)
        .ok()
        .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)))
        .filter(|end| *end > SystemTime::now())
        .ok_or(IdentityError::Answer("the certificate has already expired: check the clocks"))?;
    Ok(Certificate {
        chain_der: answer.chain.into_iter().map(Vec::from).collect(),
        key_der: key.serialize_der(),
        published_der: answer.roots.into_iter().map(Vec::from).collect(),
        lasting_der: Vec::new(),
        not_after,
        issuer: answer.issuer,
        revoked: Revocations::default(),
        federated: FederatedRoots::new(),
    })
}

fn remaining(certificate: &Certificate) -> Duration {
    certificate.not_after.duration_since(SystemTime::now()).unwrap_or_default()
}

/// When to renew a certificate with this remaining lifetime. `chance` is from 0 to 1.
fn until_renewal(remaining: Duration, chance: f64) -> Duration {
    let share = RENEW_AT - RENEW_JITTER + 2.0 * RENEW_JITTER * chance;
    remaining.mul_f64(share).max(SHORTEST_RENEWAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_around_seventy_percent_of_its_life() {
        let day = Duration::from_hours(24);
        assert_eq!(until_renewal(day, 0.0), day.mul_f64(0.65));
        assert_eq!(until_renewal(day, 1.0), day.mul_f64(0.75));
        assert_eq!(until_renewal(Duration::ZERO, 0.5), SHORTEST_RENEWAL);
    }

    /// A proxy whose clock is 5 minutes slow renews a certificate before it ends by a clock that is 5 minutes fast.
    /// This holds for lifetimes above 35 minutes.
    #[test]
    fn clocks_that_are_wrong_by_five_minutes_delay_no_renewal_until_the_end() {
        let skew = Duration::from_mins(5);
        for life in [36 * skew / 5, Duration::from_hours(1), Duration::from_hours(24)] {
            let latest = until_renewal(life + skew, 1.0);
            assert!(latest < life - skew, "{life:?}: {latest:?}");
        }
    }

    #[test]
    fn an_answer_is_checked() {
        let (key, _) = request().unwrap();
        let good = proto::IssueCertificateResponse {
            chain: vec![b"leaf".as_slice().into()],
            roots: vec![b"root".as_slice().into()],
            not_after_unix_s: i64::from(u32::MAX),
            issuer: "key".to_owned(),
        };
        assert!(certificate(good.clone(), &key).is_ok());
        for bad in [
            proto::IssueCertificateResponse { chain: vec![], ..good.clone() },
            proto::IssueCertificateResponse { roots: vec![], ..good.clone() },
            proto::IssueCertificateResponse { not_after_unix_s: -1, ..good.clone() },
            proto::IssueCertificateResponse { not_after_unix_s: 1, ..good.clone() },
        ] {
            let refused = certificate(bad.clone(), &key);
            assert!(matches!(refused, Err(IdentityError::Answer(_))), "{bad:?}");
        }
    }
}
