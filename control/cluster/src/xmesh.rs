//! Keeps the Gateway API's `XMesh` up to date, which lists the features that the mesh supports, while this replica
//! leads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::jiff::Timestamp;
use leno_kube::api::{
    ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use leno_kube::{
    Api, Client, Error, Event, Reflection, Resource, WatchError, WatchReport, WatchSelection,
    is_status,
};
use leno_status::CONTROLLER;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::counts;
use crate::reconcile::{Reconciler, while_leading};

/// The name of the object that is created if the mesh has none.
pub const MESH: &str = "leno";
/// The features of the mesh, by their names in the Gateway API: all that its conformance suite can test in a mesh.
/// A test in `e2e/conformance` compares this list. It is sorted, as GEP-3949 requires.
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

/// The name of the installed object that owns the `XMesh`, so that the API server's garbage collection removes
/// both together.
const OWNER: &str = "leno-controller";
/// Longest wait for all answers of the API server in one round.
const ANSWERS: Duration = Duration::from_secs(20);
/// Most `XMesh` objects that are followed. A mesh needs one.
const MOST: usize = 32;

/// Creates the mesh's own `XMesh`, and keeps the status of each `XMesh` that names this controller up to date.
/// Does nothing if the kind is not installed.
pub struct XMeshReconciler {
    client: Client,
    /// The release and the namespace of this mesh, as text for the condition `Accepted`.
    instance: String,
    written: AtomicU64,
    failed: AtomicU64,
}

impl XMeshReconciler {
    /// Creates the reconciler for the mesh whose control plane runs in this namespace.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        let instance = format!("Leno {} in namespace {namespace}", env!("CARGO_PKG_VERSION"));
        Self { client, instance, written: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Watches, and writes while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, leads: watch::Receiver<bool>) {
        while_leading(leads, || Observed { own: self, meshes: Reflection::default() }).await;
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Times that an XMesh was written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("mesh_writes_total", help), &results);
    }

    async fn create(&self, api: &Api<DynamicObject>) -> Result<DynamicObject, Error> {
        let mut made = DynamicObject::new(MESH, &resource())
            .data(json!({"spec": {"controllerName": CONTROLLER}}));
        let labels = [("app.kubernetes.io/part-of".to_owned(), "leno".to_owned())];
        made.metadata.labels = Some(labels.into());
        let owners: Api<ClusterRole> = Api::all(self.client.clone());
        let owner = owners.get_opt(OWNER).await?;
        made.metadata.owner_references =
            owner.and_then(|owner| owner.owner_ref(&())).map(|it| vec![it]);
        let made = api.create(&PostParams::default(), &made).await?;
        tracing::info!(name = MESH, "the XMesh was created");
        Ok(made)
    }

    fn failed(&self, failure: &str) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(failure, "cannot write the XMesh; retrying");
    }
}

fn resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("gateway.networking.x-k8s.io", "v1alpha1", "XMesh");
    ApiResource::from_gvk_with_plural(&kind, "xmeshes")
}

/// The objects, by name.
struct Observed<'a> {
    own: &'a XMeshReconciler,
    meshes: Reflection<String, DynamicObject>,
}

impl Observed<'_> {
    fn api(&self) -> Api<DynamicObject> {
        Api::all_with(self.own.client.clone(), &resource())
    }

    /// Whether all objects are known, and the mesh's own one is not among them.
    fn lacks_ours(&self) -> bool {
        self.meshes.is_complete() && !self.meshes.values().contains_key(MESH)
    }

    /// The statuses that have to be written, each with the object's name and the version that it replaces.
    fn due(&self) -> Vec<(String, Value)> {
        let now = Timestamp::now().to_string();
        let patch = |(name, mesh): (&String, &DynamicObject)| {
            let status = status(mesh, &self.own.instance, &now)?;
            // Only applies to the version that was read, so that conditions that other clients have written
            // meanwhile are not lost.
            let version = &mesh.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
            Some((name.clone(), patch))
        };
        self.meshes.values().iter().filter_map(patch).collect()
    }

    /// Writes everything that is due. Returns whether all of it was written.
    async fn write(&mut self) -> Result<bool, Error> {
        let api = self.api();
        if self.lacks_ours() {
            let made = self.own.create(&api).await?;
            self.meshes.insert(MESH.to_owned(), made);
        }
        let mut all = true;
        for (name, patch) in self.due() {
            let patch = Patch::Merge(&patch);
            match api.patch_status(&name, &PatchParams::default(), &patch).await {
                Ok(stored) => {
                    self.own.written.fetch_add(1, Ordering::Relaxed);
                    self.meshes.insert(name, stored);
                }
                // The object has changed or was deleted, and the watch will report that.
                Err(error) if is_status(&error, 409) || is_status(&error, 404) => all = false,
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

impl Reconciler for Observed<'_> {
    type Observation = WatchReport<DynamicObject>;

    fn watches(&self) -> BoxStream<'static, Self::Observation> {
        leno_kube::watch(self.api(), WatchSelection::default()).boxed()
    }

    fn observe(&mut self, report: Self::Observation) {
        match report {
            WatchReport::Event(event) => {
                if let Event::InitApply(mesh) | Event::Apply(mesh) = &event
                    && self.meshes.values().len() >= MOST
                    && !self.meshes.values().contains_key(&name(mesh))
                {
                    return;
                }
                self.meshes.take(event, |mesh| (name(&mesh), Some(mesh)));
            }
            WatchReport::Resumed => {}
            // This error means that the kind is not installed.
            WatchReport::Failed(
                WatchError::InitialListFailed(error) | WatchError::WatchStartFailed(error),
            ) if is_status(&error, 404) => {}
            // The state of the objects is not known, so nothing is written. For example, the API server answers
            // 429 while it prepares to serve a kind.
            WatchReport::Failed(error) => {
                tracing::warn!(%error, "cannot watch the XMesh; retrying")
            }
        }
    }

    fn is_due(&self) -> bool {
        self.lacks_ours() || !self.due().is_empty()
    }

    async fn reconcile(&mut self) -> bool {
        let own = self.own;
        match timeout(ANSWERS, self.write()).await {
            Ok(Ok(all)) => return all,
            Ok(Err(error)) => own.failed(&error.to_string()),
            Err(_elapsed) => own.failed("no answer"),
        }
        false
    }
}

fn name(mesh: &DynamicObject) -> String {
    mesh.metadata.name.clone().unwrap_or_default()
}

/// The status that an `XMesh` should have; `None` if it has that status, or if it belongs to another mesh.
fn status(mesh: &DynamicObject, instance: &str, now: &str) -> Option<Value> {
    let (spec, said) = (&mesh.data["spec"], &mesh.data["status"]);
    if spec["controllerName"] != CONTROLLER {
        return None;
    }
    let (status, reason, message) = match &spec["parametersRef"] {
        Value::Null => ("True", "Accepted", instance.to_owned()),
        _ => (
            "False",
            "InvalidParameters",
            format!("{instance} supports no parameters by reference"),
        ),
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
