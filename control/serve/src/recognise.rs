//! Checks that the proxy of a stream belongs to the instance that it names.

use std::sync::Arc;

use leno_types::{Identity, InstanceName};
use leno_wire::PROTOCOL;
use leno_wire::proto::DeltaDiscoveryRequest;
use tonic::Status;

use crate::authenticate::Authenticator;
use crate::peer::PeerCertificate;
use crate::state::PlaneState;

/// Looks up the identity of an instance, first with the authenticator, then in the index. In a local mesh the
/// authenticator has the identities even after a restart of the control plane, and those of instances without a
/// proxy.
#[derive(Clone, Debug)]
pub(crate) struct Recogniser {
    pub(crate) state: Arc<PlaneState>,
    authenticator: Arc<dyn Authenticator>,
}

impl Recogniser {
    pub(crate) fn new(authenticator: Arc<dyn Authenticator>, state: Arc<PlaneState>) -> Self {
        Self { state, authenticator }
    }

    /// Checks that the node in the first request of a stream has the identity of the client's certificate.
    ///
    /// # Errors
    /// `Unauthenticated` if the instance is not known, `PermissionDenied` if it has another identity,
    /// `InvalidArgument` if the node has no valid name, `FailedPrecondition` if the proxy uses another version of
    /// discovery.
    pub(crate) async fn recognise(
        &self,
        certificate: &PeerCertificate,
        first: &DeltaDiscoveryRequest,
    ) -> Result<InstanceName, Status> {
        let node = first.node.as_ref();
        let node = node.ok_or_else(|| Status::invalid_argument("the first request has no node"))?;
        if node.protocol != PROTOCOL {
            return Err(Status::failed_precondition(format!(
                "the proxy uses version {} of discovery, but this control plane {PROTOCOL}: \
                 restart the pod of {}, to give it the proxy of this release",
                node.protocol, node.id
            )));
        }
        let instance: InstanceName = node
            .id
            .parse()
            .map_err(|_| Status::invalid_argument("the node ID is not an instance name"))?;
        match self.identity_of(&instance).await {
            Some(identity) if identity == certificate.identity => Ok(instance),
            Some(_) => Err(Status::permission_denied(format!(
                "{} is not the identity of {instance}",
                certificate.identity
            ))),
            None => Err(Status::unauthenticated(format!(
                "{instance} is unknown to this replica: request a certificate with your token"
            ))),
        }
    }

    async fn identity_of(&self, instance: &InstanceName) -> Option<Identity> {
        if let Some(identity) = self.authenticator.identity_of(instance).await {
            return Some(identity);
        }
        // Subscribes before reading the index, so that no change is missed.
        let mut version = self.state.subscribe();
        let known = async {
            loop {
                version.borrow_and_update();
                if let Some(identity) = self.state.identity_of(instance) {
                    return Some(identity);
                }
                // The sender lives as long as the state, so this cannot fail here.
                version.changed().await.ok()?;
            }
        };
        tokio::time::timeout(self.authenticator.patience(), known).await.ok().flatten()
    }
}
