//! Whether the proxy of a stream is the one it says it is.

use std::sync::Arc;

use leno_identity::TokenStore;
use leno_types::{Identity, InstanceName};
use leno_wire::proto::DeltaDiscoveryRequest;
use tonic::Status;

use crate::peer::PeerCertificate;
use crate::state::State;

/// Knows who each instance is: by the token it was granted, which outlives the control plane and is
/// there for an unmeshed instance too, else by the index.
#[derive(Clone, Debug)]
pub(crate) struct Recogniser {
    pub(crate) state: Arc<State>,
    tokens: Arc<TokenStore>,
}

impl Recogniser {
    pub(crate) fn new(tokens: Arc<TokenStore>, state: Arc<State>) -> Self {
        Self { state, tokens }
    }

    /// Whether the first request's node is who the certificate says.
    ///
    /// # Errors
    /// `Unauthenticated` for an instance that is not known, `PermissionDenied` for one that is
    /// another's, `InvalidArgument` for a node without a name.
    pub(crate) async fn recognise(
        &self,
        certificate: &PeerCertificate,
        first: &DeltaDiscoveryRequest,
    ) -> Result<InstanceName, Status> {
        let node = first.node.as_ref();
        let node = node.ok_or_else(|| Status::invalid_argument("the first request has no node"))?;
        let instance: InstanceName = node
            .id
            .parse()
            .map_err(|_| Status::invalid_argument("the node id is no instance name"))?;
        match self.identity_of(&instance).await {
            Some(identity) if identity == certificate.identity => Ok(instance),
            Some(_) => Err(Status::permission_denied(format!(
                "{} is not the identity of {instance}",
                certificate.identity
            ))),
            None => Err(Status::unauthenticated(format!(
                "{instance} is not known here: ask for a certificate with your token"
            ))),
        }
    }

    async fn identity_of(&self, instance: &InstanceName) -> Option<Identity> {
        let (tokens, asked) = (Arc::clone(&self.tokens), instance.clone());
        // It may read a directory, which blocks.
        let granted = tokio::task::spawn_blocking(move || tokens.identity_of(&asked)).await;
        match granted {
            Ok(Ok(Some(identity))) => return Some(identity),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%instance, error, "the tokens cannot be read");
            }
            // The runtime is ending.
            Err(_cancelled) => return None,
        }
        self.state.identity_of(instance)
    }
}
