//! Plays the controllers and kubelets of a cluster, as far as tests need them: finalises deleted namespaces, and
//! sets the status of pods.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use leno_kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use leno_kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::TestApiServer;

/// Pause between two rounds.
const LOOK: Duration = Duration::from_millis(50);

/// A namespace with its pods.
type NamespacePods = Mutex<Option<(Namespace, Vec<Pod>)>>;

/// A task that plays controllers and kubelets until this is dropped.
pub struct TestControllers {
    task: JoinHandle<()>,
    seen: Arc<NamespacePods>,
}

impl Drop for TestControllers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TestControllers {
    /// Starts the task. It finalises deleted namespaces, and sets this status on new pods in namespaces whose
    /// names begin with `beginning`.
    pub fn begin(bed: &TestApiServer, beginning: &'static str, status: Value) -> Self {
        let (client, seen) = (bed.admin.clone(), Arc::default());
        let shared = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            loop {
                look(&client, (beginning, &status), &shared).await;
                tokio::time::sleep(LOOK).await;
            }
        });
        Self { task, seen }
    }

    /// A namespace whose name begins with `beginning`, and its pods, from the round that saw the most pods.
    pub fn seen(&self) -> Option<(Namespace, Vec<Pod>)> {
        self.seen.lock().unwrap().clone()
    }
}

async fn look(client: &Client, (beginning, status): (&str, &Value), seen: &NamespacePods) {
    let all: Api<Namespace> = Api::all(client.clone());
    for namespace in all.list(&ListParams::default()).await.unwrap() {
        let name = namespace.name_any();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &name);
        let is_going = namespace.metadata.deletion_timestamp.is_some();
        if name.starts_with(beginning) {
            let there = pods.list(&ListParams::default()).await.unwrap().items;
            for pod in there.iter().filter(|pod| !is_going && is_new(pod)) {
                let patch = Patch::Merge(json!({"status": status}));
                // Meanwhile, the program that created the pod may delete it.
                let _gone =
                    pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await;
            }
            // The pods that were created last may be seen only after their namespace was deleted.
            let mut seen = seen.lock().unwrap();
            if seen.as_ref().is_none_or(|(_, pods)| pods.len() < there.len()) {
                *seen = Some((namespace.clone(), there));
            }
        }
        if is_going {
            let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
            pods.delete_collection(&now, &ListParams::default()).await.unwrap();
            finalize(client, &namespace).await;
        }
    }
}

/// Finalises a namespace, as the namespace controller does once it is empty.
async fn finalize(client: &Client, namespace: &Namespace) {
    let mut empty = serde_json::to_value(namespace).unwrap();
    empty["spec"]["finalizers"] = json!([]);
    empty["apiVersion"] = "v1".into();
    empty["kind"] = "Namespace".into();
    let path = format!("/api/v1/namespaces/{}/finalize", namespace.name_any());
    let request = http::Request::put(path).header("content-type", "application/json");
    let request = request.body(serde_json::to_vec(&empty).unwrap()).unwrap();
    // Fails if an earlier round has already finalised it.
    let _gone = client.request_text(request).await;
}

/// Whether a pod has no status yet.
fn is_new(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.is_none_or(|status| status.conditions.is_none() && status.container_statuses.is_none())
}
