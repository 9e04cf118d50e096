//! The Identity service: a token in, a certificate out.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use leno_identity::{Authority, IssueError, Issued, TokenError, TokenStore};
use leno_types::{Identity, InstanceName};
use leno_wire::proto::identity_server;
use leno_wire::proto::{IssueCertificateRequest, IssueCertificateResponse};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::metrics::Metrics;
use crate::peer::Peer;

/// Signatures at once: more would only take turns on the processors. The others wait.
const SIGNING_AT_ONCE: usize = 8;

/// Issues certificates to whoever shows a token.
pub(crate) struct IdentityService {
    issuer: Arc<Issuer>,
    metrics: Arc<Metrics>,
    signing: Semaphore,
}

/// What a certificate is made with; used on a thread that may block.
pub(crate) struct Issuer {
    pub(crate) authority: Arc<Authority>,
    pub(crate) tokens: Arc<TokenStore>,
    pub(crate) lifetime: Duration,
}

#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("the token is refused")]
    Token(#[from] TokenError),
    #[error("the certificate of this connection is {0}, the token is of {1}")]
    Other(Identity, Identity),
    #[error("no certificate is issued")]
    Issue(#[from] IssueError),
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
        let peer = request.extensions().get::<Peer>().cloned();
        let peer = peer.ok_or_else(|| Status::internal("the connection is not known"))?;
        let address = peer.address;
        let message = request.into_inner();
        let _turn = self.signing.acquire().await.map_err(|_| Status::unavailable("ending"))?;
        let issuer = Arc::clone(&self.issuer);
        let issued = tokio::task::spawn_blocking(move || {
            let issued = issuer.issue(&message, &peer);
            let roots = issuer.authority.roots_der();
            issued.map(|issued| (issued, roots))
        });
        let issued = issued.await.map_err(|_| Status::internal("signing failed"))?;
        match issued {
            Ok(((instance, identity, issued), roots)) => {
                self.metrics.certificates.increment();
                tracing::info!(%instance, %identity, client = %address, "certificate issued");
                Ok(Response::new(response(issued, roots)))
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

impl Issuer {
    fn issue(
        &self,
        message: &IssueCertificateRequest,
        peer: &Peer,
    ) -> Result<(InstanceName, Identity, Issued), Refusal> {
        let (instance, identity) = self.tokens.authenticate(&message.token)?;
        if let Some(shown) = &peer.certificate
            && shown.identity != identity
        {
            return Err(Refusal::Other(shown.identity.clone(), identity));
        }
        let issued = self.authority.sign(&message.csr, &identity, self.lifetime)?;
        Ok((instance, identity, issued))
    }
}

impl Refusal {
    fn status(&self) -> Status {
        match self {
            Self::Token(error @ (TokenError::Malformed | TokenError::Unknown)) => {
                Status::unauthenticated(error.to_string())
            }
            Self::Other(..) => Status::permission_denied(self.to_string()),
            Self::Issue(error) if error.is_bad_request() => {
                Status::invalid_argument(error.to_string())
            }
            // Paths and causes are for the operator's log, not for the network.
            Self::Token(_) | Self::Issue(_) => Status::internal("see the control plane's log"),
        }
    }
}

fn response(issued: Issued, roots: Vec<Vec<u8>>) -> IssueCertificateResponse {
    let end = issued.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    IssueCertificateResponse {
        chain: issued.chain_der.into_iter().map(Into::into).collect(),
        roots: roots.into_iter().map(Into::into).collect(),
        not_after_unix_s: i64::try_from(end.as_secs()).unwrap_or(i64::MAX),
    }
}
