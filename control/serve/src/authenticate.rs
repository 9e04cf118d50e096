//! Finds the workload to which a token belongs, with a directory of tokens or another authority such as the API
//! server.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leno_identity::{TokenError, TokenStore};
use leno_types::{Identity, InstanceName};

/// A future answer of an [`Authenticator`].
pub type AnswerFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Verifies tokens. It is called for every certificate request, concurrently.
pub trait Authenticator: fmt::Debug + Send + Sync + 'static {
    /// The workload to which the token was issued.
    ///
    /// # Errors
    /// [`AuthenticationError`]. Either the client or the authority is at fault.
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
    ) -> AnswerFuture<'a, Result<ProvenIdentity, AuthenticationError>>;

    /// The workload of a pod that a node proxy serves. The token is the node proxy's. By default, every such request is
    /// denied, because a local mesh has no node proxies.
    ///
    /// # Errors
    /// The errors of [`authenticate`](Self::authenticate), and if this node proxy may not serve the pod.
    fn authenticate_for<'a>(
        &'a self,
        _token: &'a str,
        _pod: &'a ServedPod,
    ) -> AnswerFuture<'a, Result<ProvenIdentity, AuthenticationError>> {
        let reason =
            "this control plane knows no pods: request a certificate with the instance's own token";
        Box::pin(std::future::ready(Err(AuthenticationError::Denied(reason.to_owned()))))
    }

    /// The identity of an instance, if it is known without a token. The index is only consulted if this returns `None`.
    fn identity_of<'a>(&'a self, instance: &'a InstanceName) -> AnswerFuture<'a, Option<Identity>>;

    /// How long to wait until the index has an instance whose proxy has connected. The proxy may connect before the
    /// control plane has learned of the instance from the API server.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// What a valid token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenIdentity {
    /// The identity in certificates for the token's owner.
    pub identity: Identity,
    /// The instance that the token was issued for; `None` if it was issued for any instance of the identity.
    pub instance: Option<InstanceName>,
}

/// A pod that a node proxy serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedPod {
    /// Its namespace and name.
    pub instance: InstanceName,
    /// The UID that the API server has given it, which distinguishes it from a later pod with the same name.
    pub uid: String,
}

/// Why a token was rejected.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AuthenticationError {
    /// The token is not valid. The text is for the client that has sent it.
    #[error("{0}")]
    Bad(String),
    /// The token is valid, but not for the workload that the client names. The text is for the client.
    #[error("{0}")]
    Denied(String),
    /// The token cannot be verified now, and the client should try again.
    #[error("tokens cannot be checked now: retry")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// The authority that verifies tokens is broken.
    #[error("tokens cannot be checked")]
    Broken(#[source] Arc<dyn Error + Send + Sync>),
}

/// Verifies the tokens of a local mesh, which are in a directory.
#[derive(Clone, Debug)]
pub struct LocalTokens(Arc<TokenStore>);

impl LocalTokens {
    /// Verifies with the tokens that are in the store at the time of each call.
    #[must_use]
    pub fn new(store: Arc<TokenStore>) -> Self {
        Self(store)
    }
}

impl Authenticator for LocalTokens {
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
    ) -> AnswerFuture<'a, Result<ProvenIdentity, AuthenticationError>> {
        let (store, token) = (Arc::clone(&self.0), token.to_owned());
        Box::pin(async move {
            // A blocking task, because the store may have to read the directory.
            let known = tokio::task::spawn_blocking(move || store.authenticate(&token)).await;
            match known {
                Ok(Ok((instance, identity))) => {
                    Ok(ProvenIdentity { identity, instance: Some(instance) })
                }
                Ok(Err(error @ (TokenError::Malformed | TokenError::Unknown))) => {
                    Err(AuthenticationError::Bad(error.to_string()))
                }
                Ok(Err(error)) => Err(AuthenticationError::Broken(Arc::new(error))),
                // The runtime is ending.
                Err(cancelled) => Err(AuthenticationError::Unavailable(Arc::new(cancelled))),
            }
        })
    }

    fn identity_of<'a>(&'a self, instance: &'a InstanceName) -> AnswerFuture<'a, Option<Identity>> {
        let (store, asked) = (Arc::clone(&self.0), instance.clone());
        Box::pin(async move {
            match tokio::task::spawn_blocking(move || store.identity_of(&asked)).await {
                Ok(Ok(identity)) => identity,
                Ok(Err(error)) => {
                    let error: &dyn Error = &error;
                    tracing::warn!(%instance, error, "cannot read the tokens");
                    None
                }
                // The runtime is ending.
                Err(_cancelled) => None,
            }
        })
    }
}
