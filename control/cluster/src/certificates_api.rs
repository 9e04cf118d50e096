//! The kinds of Kubernetes' certificates API for pods, which API servers serve by default from Kubernetes 1.37 on.

use std::time::Duration;

use leno_kube::api::{ApiResource, GroupVersionKind};
use leno_kube::{Client, Error, is_status};
use tokio::time::sleep;

/// The signer: the right to sign for it is the right to issue certificates, and the right to attest for it is the right to
/// publish roots.
pub(crate) const SIGNER: &str = "leno.dev/identity";

const GROUP: &str = "certificates.k8s.io";
/// Pause before the API server is asked again whether it serves a kind: it does after it was started with other flags.
const PAUSE: Duration = Duration::from_secs(30);

/// A kind.
pub(crate) struct CertificatesKind {
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    /// The versions that have what is needed, the newest first.
    pub(crate) versions: &'static [&'static str],
    /// How an API server comes to serve it.
    pub(crate) remedy: &'static str,
}

impl CertificatesKind {
    /// The kind in the newest version that is served; `None` if it is in none.
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

    /// Waits until it is served. `unserved` is called each time that it is known not to be.
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
