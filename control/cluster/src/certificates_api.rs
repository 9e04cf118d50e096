//! The kinds for pods in Kubernetes' certificates API. API servers serve these by default since Kubernetes 1.37.

use std::time::Duration;

use leno_kube::api::{ApiResource, GroupVersionKind};
use leno_kube::{Client, Error, is_status};
use tokio::time::sleep;

/// The signer's name. In RBAC, the verb `sign` on it is the right to issue certificates, and `attest` the right to
/// publish roots.
pub(crate) const SIGNER: &str = "leno.dev/identity";

const GROUP: &str = "certificates.k8s.io";
/// The pause before the API server is asked again whether it serves a kind. It may serve the kind after a restart
/// with other flags.
const PAUSE: Duration = Duration::from_secs(30);

/// A kind of the certificates API.
pub(crate) struct CertificatesKind {
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    /// The versions of the kind that have all needed fields, the newest first.
    pub(crate) versions: &'static [&'static str],
    /// What an operator can do to make the API server serve the kind.
    pub(crate) remedy: &'static str,
}

impl CertificatesKind {
    /// The kind in the newest version that the API server serves; `None` if it serves none.
    pub(crate) async fn served(&self, client: &Client) -> Result<Option<ApiResource>, Error> {
        for version in self.versions {
            match client.list_api_group_resources(&format!("{GROUP}/{version}")).await {
                Ok(list) if list.resources.iter().any(|one| one.name == self.plural) => {
                    let kind = GroupVersionKind::gvk(GROUP, version, self.kind);
                    return Ok(Some(ApiResource::from_gvk_with_plural(&kind, self.plural)));
                }
                Ok(_) => {}
                Err(error) if is_status(&error, 404) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// Waits until the API server serves the kind. Calls `unserved` whenever a check shows that it does not.
    pub(crate) async fn wait(&self, client: &Client, unserved: impl Fn()) -> ApiResource {
        let mut logged = String::new();
        loop {
            let reason = match self.served(client).await {
                Ok(Some(resource)) => return resource,
                Ok(None) => {
                    unserved();
                    format!("the API server does not serve {}: {}", self.kind, self.remedy)
                }
                Err(error) => error.to_string(),
            };
            if reason != logged {
                tracing::warn!(reason, kind = self.kind, "waiting until the API server serves it");
                logged = reason;
            }
            sleep(PAUSE).await;
        }
    }
}
