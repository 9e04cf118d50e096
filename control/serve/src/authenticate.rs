//! Finds the workload that a token belongs to. A directory of this process decides, or another authority such as the
//! API server.

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
    /// The workload that the token's bearer is.
    ///
    /// # Errors
    /// [`AuthenticationError`]: either the client or the authority is at fault.
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
    ) -> AnswerFuture<'a, Result<ProvenIdentity, AuthenticationError>>;

    /// The workload of a pod. The token is that of the node proxy that serves the pod.
    ///
    /// # Errors
    /// Those of [`authenticate`](Self::authenticate); also if the token's bearer may not serve the pod.
    fn authenticate_for<'a>(
        &'a self,
        _token: &'a str,
        _pod: &'a ServedPod,
    ) -> AnswerFuture<'a, Result<ProvenIdentity, AuthenticationError>> {
        let reason =
            "this control plane knows no pods: request a certificate with the instance's own token";
        Box::pin(std::future::ready(Err(AuthenticationError::Denied(reason.to_owned()))))
    }

    /// The identity of an instance, as far as it is known without a token. Used before the index is.
    fn identity_of<'a>(&'a self, instance: &'a InstanceName) -> AnswerFuture<'a, Option<Identity>>;

    /// How long to wait until the index knows an instance whose proxy has connected: both learn of the instance from a
    /// third party, and the proxy may be faster.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// What a token proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvenIdentity {
    /// The identity that certificates for the token's bearer have.
    pub identity: Identity,
    /// The instance that the token was issued for; `None` if it was issued for any instance of the identity.
    pub instance: Option<InstanceName>,
}

/// A pod that a node proxy serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedPod {
    /// Its namespace and name.
    pub instance: InstanceName,
    /// The uid that the API server gave it: a later pod may have the same name.
    pub uid: String,
}

/// Why a token was not accepted.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AuthenticationError {
    /// It is not valid. The text is for the client that sent it.
    #[error("{0}")]
    Bad(String),
    /// It is valid, but not for the workload that its bearer names. The text is for the client that sent it.
    #[error("{0}")]
    Denied(String),
    /// It cannot be verified now: the client should try again.
    #[error("tokens cannot be checked now; ask again")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// The authority that checks tokens is broken.
    #[error("tokens cannot be checked")]
    Broken(#[source] Arc<dyn Error + Send + Sync>),
}

/// Authenticates the tokens of a directory.
#[derive(Clone, Debug)]
pub struct LocalTokens(Arc<TokenStore>);

impl LocalTokens {
    /// Uses the tokens that the store holds at the time of each call.
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
            // The store may read a directory, which blocks.
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
                    tracing::warn!(%instance, error, "the tokens cannot be read");
                    None
                }
                // The runtime is ending.
                Err(_cancelled) => None,
            }
        })
    }
}
