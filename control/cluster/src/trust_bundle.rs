//! Publishes the mesh's trust bundle as a `ClusterTrustBundle` (KEP-3257), while this replica leads. Pods can
//! mount such an object without further help of Leno.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::rbac::v1::ClusterRole;
use leno_identity::Authority;
use leno_kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams};
use leno_kube::{
    Api, Client, Error, Reflection, Resource, WatchReport, WatchSelection, apply, is_status,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::certificates_api::{CertificatesKind, SIGNER};
use crate::counts;
use crate::pem::pem;
use crate::reconcile::{Reconciler, while_leading};
use crate::roots::changes;

/// The name of the object. It must begin with the signer's name.
pub const TRUST_BUNDLE: &str = "leno.dev:identity:mesh";
pub(crate) const KIND: CertificatesKind = CertificatesKind {
    kind: "ClusterTrustBundle",
    plural: "clustertrustbundles",
    versions: &["v1", "v1beta1"],
    remedy: "it does by default from Kubernetes 1.37 on, and before by its flags --feature-gates and --runtime-config",
};
/// The field manager of its fields.
const FIELD_MANAGER: &str = "leno-controller";
/// The name of the `ClusterRole` that grants the rights to the object. It owns the object, so the API server's
/// garbage collection removes the object together with it.
const OWNER: &str = "leno-trust-bundle";
/// Longest wait for all answers of the API server in one round.
const ANSWERS: Duration = Duration::from_secs(10);

/// Publishes the trust bundle of an authority in a `ClusterTrustBundle`, or removes the object if it is not wanted
/// any more.
pub struct TrustBundleReconciler {
    client: Client,
    authority: Arc<Authority>,
    is_wanted: bool,
    /// What this replica knows about the object.
    published: Mutex<Published>,
    written: AtomicU64,
    failed: AtomicU64,
}

/// What a replica knows about the object.
#[derive(Debug, PartialEq, Eq)]
enum Published {
    /// Nothing: this replica has not read the object yet, or no longer leads.
    Unknown,
    /// The API server does not serve the kind, so no pod can mount the object.
    Unserved,
    /// This replica leads, and the object had these roots when it was last read.
    Roots(Option<String>),
}

impl TrustBundleReconciler {
    /// Creates the reconciler, which publishes the roots that the authority has at each moment.
    #[must_use]
    pub fn new(client: Client, authority: Arc<Authority>, is_wanted: bool) -> Self {
        let published = Mutex::new(Published::Unknown);
        let [written, failed] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { client, authority, is_wanted, published, written, failed }
    }

    /// Whether pods that mount the object get the authority's current roots. False if this is not known; true if no pod
    /// mounts it, because it is not wanted or the API server does not serve the kind.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        match &*self.published() {
            _ if !self.is_wanted => true,
            Published::Unknown => false,
            Published::Unserved => true,
            Published::Roots(roots) => roots.as_deref() == Some(&*self.wanted()),
        }
    }

    /// Watches, and writes while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, mut leads: watch::Receiver<bool>) {
        if !self.is_wanted {
            if leads.wait_for(|leads| *leads).await.is_ok() {
                self.remove().await;
            }
            return;
        }
        let resource = KIND.wait(&self.client, || self.publish(Published::Unserved)).await;
        self.publish(Published::Unknown);
        while_leading(leads, || {
            self.publish(Published::Roots(None));
            let api = Api::all_with(self.client.clone(), &resource);
            Observed { own: self, resource: &resource, api, found: Reflection::default() }
        })
        .await;
    }

    /// Removes the object that an earlier configuration has left. If the control plane no longer has the right to
    /// remove it, its owner was deleted, and the API server removes the object.
    async fn remove(&self) {
        let failure = match timeout(ANSWERS, self.delete()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) if is_status(&error, 403) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        tracing::warn!(
            failure,
            "a ClusterTrustBundle may be left behind: delete {TRUST_BUNDLE} if it exists"
        );
    }

    async fn delete(&self) -> Result<(), Error> {
        let Some(resource) = KIND.served(&self.client).await? else { return Ok(()) };
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let named = ListParams::default().fields(&format!("metadata.name={TRUST_BUNDLE}"));
        if api.list(&named).await?.items.is_empty() {
            return Ok(());
        }
        match api.delete(TRUST_BUNDLE, &DeleteParams::default()).await {
            Err(error) if is_status(&error, 404) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                tracing::info!(
                    name = TRUST_BUNDLE,
                    "removed the ClusterTrustBundle, which is no longer configured"
                );
                Ok(())
            }
        }
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that the ClusterTrustBundle was written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("trust_bundle_writes_total", help), &results);
    }

    fn publish(&self, published: Published) {
        *self.published() = published;
    }

    fn published(&self) -> MutexGuard<'_, Published> {
        // Poisoning is ignored, because the value is only replaced as a whole.
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content that the object should have: all roots that proxies trust, including those of another authority
    /// of the trust domain.
    fn wanted(&self) -> String {
        self.authority.trust().bundle_der().iter().map(|root| pem(root)).collect()
    }
}

struct Observed<'a> {
    own: &'a TrustBundleReconciler,
    resource: &'a ApiResource,
    api: Api<DynamicObject>,
    /// The roots in the object, as last reported.
    found: Reflection<(), String>,
}

enum Observation {
    Object(Box<WatchReport<DynamicObject>>),
    /// The authority has changed its roots.
    Roots,
}

impl Observed<'_> {
    async fn write(&self, roots: &str) -> Result<(), String> {
        let owners: Api<ClusterRole> = Api::all(self.own.client.clone());
        let owner = owners.get_opt(OWNER).await.map_err(|error| error.to_string())?;
        let owner = owner.and_then(|owner| owner.owner_ref(&()));
        let owner =
            owner.ok_or_else(|| format!("ClusterRole {OWNER}, which owns it, does not exist"))?;
        let object = json!({
            "apiVersion": self.resource.api_version, "kind": self.resource.kind,
            "metadata": {
                "name": TRUST_BUNDLE, "labels": {"app.kubernetes.io/part-of": "leno"},
                "ownerReferences": [owner],
            },
            "spec": {"signerName": SIGNER, "trustBundle": roots},
        });
        // Server-side apply creates the object if it does not exist. The control plane needs only the right to
        // this name.
        let applied = apply(&self.api, FIELD_MANAGER, TRUST_BUNDLE, &object).await;
        applied.map(drop).map_err(|error| error.to_string())
    }

    fn found(&self) -> Option<&String> {
        self.found.values().get(&())
    }

    fn publish_found(&self) {
        self.own.publish(Published::Roots(self.found().cloned()));
    }
}

impl Reconciler for Observed<'_> {
    type Observation = Observation;

    fn watches(&self) -> BoxStream<'static, Observation> {
        let objects = leno_kube::watch(self.api.clone(), WatchSelection::named(TRUST_BUNDLE));
        let roots = changes(&self.own.authority).map(|()| Observation::Roots);
        let objects = objects.map(|report| Observation::Object(Box::new(report)));
        stream::select(objects, roots).boxed()
    }

    fn observe(&mut self, observation: Observation) {
        let Observation::Object(report) = observation else { return };
        match *report {
            WatchReport::Event(event) => {
                self.found.take(event, |object| {
                    ((), object.data["spec"]["trustBundle"].as_str().map(str::to_owned))
                });
                self.publish_found();
            }
            WatchReport::Failed(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "cannot watch the ClusterTrustBundle; retrying");
            }
            WatchReport::Resumed => {}
        }
    }

    fn is_due(&self) -> bool {
        self.found.is_complete() && self.found() != Some(&self.own.wanted())
    }

    async fn reconcile(&mut self) -> bool {
        let wanted = self.own.wanted();
        let failure = match timeout(ANSWERS, self.write(&wanted)).await {
            Ok(Ok(())) => {
                self.own.written.fetch_add(1, Ordering::Relaxed);
                self.found.insert((), wanted);
                self.publish_found();
                return true;
            }
            Ok(Err(failure)) => failure,
            Err(_elapsed) => "no answer".to_owned(),
        };
        self.own.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(failure, "cannot write the ClusterTrustBundle; retrying");
        false
    }
}

impl Drop for Observed<'_> {
    /// Runs when this replica stops leading.
    fn drop(&mut self) {
        self.own.publish(Published::Unknown);
    }
}

#[cfg(test)]
mod tests {
    use leno_types::TrustDomain;

    use super::*;

    #[tokio::test]
    async fn roots_are_written_as_they_are_read() {
        let client = leno_kube::connect_to("http://127.0.0.1:1".parse().unwrap());
        let authority = Arc::new(Authority::ephemeral(&TrustDomain::default()).unwrap());
        let own = authority.trust().roots_pem().replace("\r\n", "\n");
        let reconciler = TrustBundleReconciler::new(client.unwrap(), authority, true);
        assert_eq!(reconciler.wanted(), own);
    }

    #[tokio::test]
    async fn a_rotation_waits_while_the_published_roots_are_unknown() {
        let client = leno_kube::connect_to("http://127.0.0.1:1".parse().unwrap()).unwrap();
        let authority = Arc::new(Authority::ephemeral(&TrustDomain::default()).unwrap());
        let unwanted = TrustBundleReconciler::new(client.clone(), Arc::clone(&authority), false);
        assert!(unwanted.is_settled(), "there is nothing to wait for");
        let reconciler = TrustBundleReconciler::new(client, authority, true);
        assert!(!reconciler.is_settled(), "it is not known yet whether the kind is served");
        reconciler.publish(Published::Unserved);
        assert!(reconciler.is_settled());
        for (roots, is_settled) in
            [(None, false), (Some("other".to_owned()), false), (Some(reconciler.wanted()), true)]
        {
            reconciler.publish(Published::Roots(roots));
            assert_eq!(reconciler.is_settled(), is_settled);
        }
        reconciler.publish(Published::Unknown);
        assert!(!reconciler.is_settled(), "another replica leads");
    }
}
