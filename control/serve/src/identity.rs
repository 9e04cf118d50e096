//! The Identity service: it exchanges a token for a certificate.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{Authority, IssueError, IssuedCertificate};
use leno_types::{Identity, InstanceName};
use leno_wire::proto::identity_server;
use leno_wire::proto::{self, IssueCertificateRequest, IssueCertificateResponse};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::authenticate::{AuthenticationError, Authenticator, ProvenIdentity, ServedPod};
use crate::metrics::Metrics;
use crate::peer::ConnectionPeer;

/// Most signatures at a time. They only use processors, so more at a time would not be faster.
const SIGNING_AT_ONCE: usize = 8;

/// Issues certificates to clients that present a valid token.
pub(crate) struct IdentityService {
    issuer: Arc<Issuer>,
    metrics: Arc<Metrics>,
    signing: Semaphore,
}

/// The parts that are needed to issue certificates.
pub(crate) struct Issuer {
    pub(crate) authority: Arc<Authority>,
    pub(crate) authenticator: Arc<dyn Authenticator>,
    pub(crate) lifetime: Duration,
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the token is rejected")]
    Token(#[from] AuthenticationError),
    #[error("the request names an invalid pod")]
    Pod,
    #[error("the certificate of this connection is that of {0}, but the token is that of {1}")]
    Other(Identity, Identity),
    #[error("no certificate is issued")]
    Issue(#[from] IssueError),
    #[error("the control plane is ending")]
    Ending,
}

impl IdentityService {
    pub(crate) fn new(issuer: Arc<Issuer>, metrics: Arc<Metrics>) -> Self {
        Self { issuer, metrics, signing: Semaphore::new(SIGNING_AT_ONCE) }
    }
}

#[tonic::async_trait]
impl identity_server::Identity for IdentityService {
    async fn issue_certificate(
        &self,
        request: Request<IssueCertificateRequest>,
    ) -> Result<Response<IssueCertificateResponse>, Status> {
        let peer = request.extensions().get::<ConnectionPeer>().cloned();
        let peer = peer.ok_or_else(|| Status::internal("the connection is not known"))?;
        let address = peer.address;
        let message = request.into_inner();
        match self.issue(&message, &peer).await {
            Ok((proven, issued)) => {
                self.metrics.certificates.increment();
                let ProvenIdentity { identity, instance } = proven;
                let instance = instance.map(tracing::field::display);
                tracing::info!(instance, %identity, client = %address, "certificate issued");
                Ok(Response::new(response(issued, self.issuer.authority.trust().bundle_der())))
            }
            Err(refusal) => {
                self.metrics.certificates_refused.increment();
                let error: &dyn std::error::Error = &refusal;
                tracing::warn!(client = %address, error, "no certificate issued");
                Err(refusal.status())
            }
        }
    }
}

impl IdentityService {
    async fn issue(
        &self,
        message: &IssueCertificateRequest,
        peer: &ConnectionPeer,
    ) -> Result<(ProvenIdentity, IssuedCertificate), Refusal> {
        let authenticator = &self.issuer.authenticator;
        let proven = match &message.pod {
            None => authenticator.authenticate(&message.token).await?,
            Some(pod) => authenticator.authenticate_for(&message.token, &served(pod)?).await?,
        };
        if let Some(shown) = &peer.certificate
            && shown.identity != proven.identity
        {
            return Err(Refusal::Other(shown.identity.clone(), proven.identity));
        }
        let _turn = self.signing.acquire().await.map_err(|_| Refusal::Ending)?;
        let (issuer, csr) = (Arc::clone(&self.issuer), message.csr.clone());
        let identity = proven.identity.clone();
        // A blocking task, because signing uses a processor for a while.
        let signed = tokio::task::spawn_blocking(move || {
            issuer.authority.sign(&csr, &identity, issuer.lifetime)
        });
        let issued = signed.await.map_err(|_| Refusal::Ending)??;
        Ok((proven, issued))
    }
}

impl Refusal {
    fn status(&self) -> Status {
        match self {
            Self::Token(AuthenticationError::Bad(reason)) => Status::unauthenticated(reason),
            Self::Token(AuthenticationError::Unavailable(_)) | Self::Ending => {
                Status::unavailable("certificates cannot be issued now: retry")
            }
            Self::Token(AuthenticationError::Denied(reason)) => Status::permission_denied(reason),
            Self::Other(..) => Status::permission_denied(self.to_string()),
            Self::Pod => Status::invalid_argument(self.to_string()),
            Self::Issue(error) if error.is_bad_request() => {
                Status::invalid_argument(error.to_string())
            }
            // Paths and causes are only logged, because they must not be revealed to clients.
            Self::Token(AuthenticationError::Broken(_)) | Self::Issue(_) => {
                Status::internal("see the control plane's log")
            }
        }
    }
}

fn served(pod: &proto::ServedPod) -> Result<ServedPod, Refusal> {
    let instance = InstanceName::new(&pod.namespace, &pod.name).map_err(|_| Refusal::Pod)?;
    Ok(ServedPod { instance, uid: pod.uid.clone() })
}

fn response(issued: IssuedCertificate, roots: Vec<Vec<u8>>) -> IssueCertificateResponse {
    let end = issued.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    IssueCertificateResponse {
        chain: issued.chain_der.into_iter().map(Into::into).collect(),
        roots: roots.into_iter().map(Into::into).collect(),
        issuer: issued.issuer,
        not_after_unix_s: i64::try_from(end.as_secs()).unwrap_or(i64::MAX),
    }
}
