//! Whether the proxy of a stream is the one it says it is.

use std::sync::Arc;

use leno_types::{Identity, InstanceName};
use leno_wire::PROTOCOL;
use leno_wire::proto::DeltaDiscoveryRequest;
use tonic::Status;

use crate::authenticate::Authenticator;
use crate::peer::PeerCertificate;
use crate::state::PlaneState;

/// Knows who each instance is: by what its token has proved, which outlives the control plane where
/// tokens are kept here and is there for an unmeshed instance too, else by the index.
#[derive(Clone, Debug)]
pub(crate) struct Recogniser {
    pub(crate) state: Arc<PlaneState>,
    authenticator: Arc<dyn Authenticator>,
}

impl Recogniser {
    pub(crate) fn new(authenticator: Arc<dyn Authenticator>, state: Arc<PlaneState>) -> Self {
        Self { state, authenticator }
    }

    /// Whether the first request's node is who the certificate says.
    ///
    /// # Errors
    /// `Unauthenticated` for an instance that is not known, `PermissionDenied` for one that is
    /// another's, `InvalidArgument` for a node without a name, `FailedPrecondition` for one that
    /// speaks another version of discovery.
    pub(crate) async fn recognise(
        &self,
        certificate: &PeerCertificate,
        first: &DeltaDiscoveryRequest,
    ) -> Result<InstanceName, Status> {
        let node = first.node.as_ref();
        let node = node.ok_or_else(|| Status::invalid_argument("the first request has no node"))?;
        if node.protocol != PROTOCOL {
            return Err(Status::failed_precondition(format!(
                "the proxy speaks version {} of discovery and this control plane {PROTOCOL}: restart \
                 the pod of {}, so that it gets the proxy of this release",
                node.protocol, node.id
            )));
        }
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
        if let Some(identity) = self.authenticator.identity_of(instance).await {
            return Some(identity);
        }
        // Subscribed first, so that no change is missed.
        let mut version = self.state.subscribe();
        let known = async {
            loop {
                version.borrow_and_update();
                if let Some(identity) = self.state.identity_of(instance) {
                    return Some(identity);
                }
                // The sender lives as long as the state.
                version.changed().await.ok()?;
            }
        };
        tokio::time::timeout(self.authenticator.patience(), known).await.ok().flatten()
    }
}
