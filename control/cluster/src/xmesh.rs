//! What the mesh says of itself: the Gateway API's `XMesh`, kept while this replica leads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::jiff::Timestamp;
use leno_kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use leno_kube::{Api, Client, Error, is_status};
use leno_status::CONTROLLER;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::counts;

/// The object that is made where there is none.
pub const MESH: &str = "leno";
/// What the mesh does, by the names of the Gateway API's features: all that its conformance suite can
/// ask of a mesh, which `e2e/conformance` compares. Ascending, as GEP-3949 has it.
pub const FEATURES: [&str; 17] = [
    "GRPCRoute",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteParentRefPort",
    "HTTPRouteResponseHeaderModification",
    "Mesh",
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteNamedRouteRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
];

/// The part of an installation that the object belongs to: with it the API server's garbage collection
/// removes the object.
const OWNER: &str = "leno-controller";
/// How often objects are looked at. Nothing waits for them but people, and programs that ask once.
const LOOK: Duration = Duration::from_secs(10);
/// Longest wait for all answers of the API server at one look.
const ANSWERS: Duration = Duration::from_secs(20);
/// Most objects looked at: a mesh needs one.
const MOST: u32 = 32;

/// Creates our `XMesh` and keeps the status of each that names this controller up to date. If the
/// kind is not installed there is nothing to do.
pub struct XMeshReconciler {
    client: Client,
    /// Which mesh it is, in words.
    instance: String,
    written: AtomicU64,
    failed: AtomicU64,
}

impl XMeshReconciler {
    /// Of the mesh whose control plane is in this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        let instance = format!("Leno {} in namespace {namespace}", env!("CARGO_PKG_VERSION"));
        Self { client, instance, written: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Writes while `leads` says so, until its sender ends.
    pub async fn run(&self, mut leads: watch::Receiver<bool>) {
        while leads.wait_for(|leads| *leads).await.is_ok() {
            let failure = match timeout(ANSWERS, self.keep()).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_elapsed) => Some("no answer".to_owned()),
            };
            if let Some(failure) = failure {
                self.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(failure, "XMesh cannot be kept; trying again");
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Appends what was counted, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that an XMesh was written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("mesh_writes_total", help), &results);
    }

    async fn keep(&self) -> Result<(), Error> {
        let kind = GroupVersionKind::gvk("gateway.networking.x-k8s.io", "v1alpha1", "XMesh");
        let resource = ApiResource::from_gvk_with_plural(&kind, "xmeshes");
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
        let mut all = match api.list(&ListParams::default().limit(MOST)).await {
            Ok(all) => all.items,
            Err(error) if is_status(&error, 404) => return Ok(()),
            Err(error) => return Err(error),
        };
        if !all.iter().any(|one| one.metadata.name.as_deref() == Some(MESH)) {
            all.push(self.create(&api, &resource).await?);
        }
        for one in all {
            let now = Timestamp::now();
            let name = one.metadata.name.as_deref().unwrap_or_default();
            let Some(status) = status(&one, &self.instance, &now.to_string()) else { continue };
            // Only in the version that was read: what others have said meanwhile is not lost.
            let version = &one.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
            let written =
                api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            match written {
                Ok(_) => self.written.fetch_add(1, Ordering::Relaxed),
                // Another version, or none, is there already: judged at the next look.
                Err(error) if is_status(&error, 409) || is_status(&error, 404) => continue,
                Err(error) => return Err(error),
            };
        }
        Ok(())
    }

    async fn create(
        &self,
        api: &Api<DynamicObject>,
        resource: &ApiResource,
    ) -> Result<DynamicObject, Error> {
        let mut made = DynamicObject::new(MESH, resource)
            .data(json!({"spec": {"controllerName": CONTROLLER}}));
        let labels = [("app.kubernetes.io/part-of".to_owned(), "leno".to_owned())];
        made.metadata.labels = Some(labels.into());
        let owners: Api<ClusterRole> = Api::all(self.client.clone());
        let owner = owners.get_opt(OWNER).await?;
        made.metadata.owner_references =
            owner.and_then(|owner| leno_kube::Resource::owner_ref(&owner, &())).map(|it| vec![it]);
        let made = api.create(&PostParams::default(), &made).await?;
        tracing::info!(name = MESH, "the XMesh was made");
        Ok(made)
    }
}

/// What the status of an `XMesh` should be. `None` if it is right already, or the object is another mesh's.
fn status(mesh: &DynamicObject, instance: &str, now: &str) -> Option<Value> {
    let (spec, said) = (&mesh.data["spec"], &mesh.data["status"]);
    if spec["controllerName"] != CONTROLLER {
        return None;
    }
    let (status, reason, message) = match &spec["parametersRef"] {
        Value::Null => ("True", "Accepted", instance.to_owned()),
        _ => ("False", "InvalidParameters", format!("{instance} takes no parameters by reference")),
    };
    let accepted = |condition: &&Value| condition["type"] == "Accepted";
    let conditions = said["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let before = conditions.iter().find(accepted).filter(|before| before["status"] == status);
    let since = before.map_or_else(|| json!(now), |before| before["lastTransitionTime"].clone());
    let ours = json!({
        "type": "Accepted", "status": status, "reason": reason, "message": message,
        "observedGeneration": mesh.metadata.generation, "lastTransitionTime": since,
    });
    let others = conditions.iter().filter(|condition| !accepted(condition)).cloned();
    let conditions: Vec<Value> = std::iter::once(ours).chain(others).collect();
    let features: Vec<Value> = match status {
        "True" => FEATURES.iter().map(|name| json!({"name": name})).collect(),
        _ => Vec::new(),
    };
    let wanted = json!({"conditions": conditions, "supportedFeatures": features});
    let features = said.get("supportedFeatures").cloned().unwrap_or_else(|| json!([]));
    let same = wanted == json!({"conditions": said["conditions"], "supportedFeatures": features});
    (!same).then_some(wanted)
}

#[cfg(test)]
mod tests;
