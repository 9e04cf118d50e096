//! Tests the `ClusterTrustBundle` with the mesh's roots.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use leno_charts::{NAMESPACE, Values, render};
use leno_identity::Authority;
use leno_kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use leno_kube::{Api, Event, WatchReport, WatchSelection, watch};
use leno_testkit_api::{TestApiServer, binary, until};
use leno_types::TrustDomain;
use serde_json::{Value, json};

use crate::kinds::own_pod;
use crate::replica::Replica;
use crate::rotation::{FLAGS, ask, identity, is};
use crate::{cluster, leads};

const NAME: &str = "leno.dev:identity:mesh";

fn bundle() -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
        "metadata": {"name": NAME}})
}

/// The roots in the object.
async fn published(bed: &TestApiServer) -> Option<String> {
    let object = bed.get(bundle()).await?;
    assert_eq!(object.data["spec"]["signerName"], "leno.dev/identity");
    object.data["spec"]["trustBundle"].as_str().map(str::to_owned)
}

/// The roots with which proxies start.
async fn roots(bed: &TestApiServer) -> Option<String> {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "leno-roots", "namespace": "shop"}});
    let map = bed.get(map).await?;
    map.data["data"]["roots.pem"].as_str().map(|text| text.replace("\r\n", "\n"))
}

/// Waits until the object has exactly the roots with which proxies start. Returns them.
async fn agrees(bed: &TestApiServer) -> String {
    until("the roots in the ClusterTrustBundle", async || {
        let published = published(bed).await?;
        (roots(bed).await? == published).then_some(published)
    })
    .await
}

/// The root of another authority. The API server accepts only certificates of authorities in such an object.
fn other_root() -> String {
    Authority::new_root(&TrustDomain::default()).unwrap().roots
}

/// Records the successive contents of the object from now on; an empty text stands for a deleted object.
fn history(bed: &TestApiServer) -> Arc<Mutex<Vec<String>>> {
    let kind = GroupVersionKind::gvk("certificates.k8s.io", "v1", "ClusterTrustBundle");
    let api: Api<DynamicObject> = Api::all_with(bed.admin.clone(), &ApiResource::from_gvk(&kind));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    tokio::spawn(async move {
        let mut reports = watch(api, WatchSelection::named(NAME)).boxed();
        while let Some(report) = reports.next().await {
            let roots = match report {
                WatchReport::Event(Event::Apply(object) | Event::InitApply(object)) => {
                    object.data["spec"]["trustBundle"].as_str().unwrap().to_owned()
                }
                WatchReport::Event(Event::Delete(_)) => String::new(),
                _ => continue,
            };
            let mut noted = noted.lock().unwrap();
            if noted.last() != Some(&roots) {
                noted.push(roots);
            }
        }
    });
    seen
}

/// The `ClusterRole`s and their bindings of an installation that publishes the roots.
fn rights() -> Vec<Value> {
    let values = Values::load(&[], &["identity.clusterTrustBundle=true".to_owned()]).unwrap();
    let all: Vec<Value> =
        serde_saphyr::from_multiple(&render(&values, NAMESPACE).unwrap()).unwrap();
    let ours = |one: &Value| one["metadata"]["name"] == "leno-trust-bundle";
    all.into_iter().filter(ours).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_roots_are_a_cluster_trust_bundle_through_a_rotation() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let flags = [&FLAGS[..], &["--cluster-trust-bundle"]].concat();
    for name in ["controller-0", "controller-1"] {
        bed.apply(own_pod(name)).await;
        bed.set_status(own_pod(name)).await;
    }
    // Every service account may read the object. While the control plane has no right to write it, the object does
    // not exist.
    let first = Replica::start_with("controller-0", &kubeconfig, &flags);
    leads(&first).await;
    first.line("cannot write the ClusterTrustBundle").await;
    assert_eq!(published(&bed).await, None);

    assert_eq!(rights().len(), 2);
    for object in rights() {
        bed.apply(object).await;
    }
    let old = agrees(&bed).await;
    let object = bed.get(bundle()).await.unwrap();
    let owner = &object.metadata.owner_references.unwrap()[0];
    assert_eq!((&*owner.kind, &*owner.name), ("ClusterRole", "leno-trust-bundle"));
    let owner_uid = bed.get(rights().remove(0)).await.unwrap().metadata.uid;
    assert_eq!(Some(&owner.uid), owner_uid.as_ref());
    assert_eq!(object.metadata.labels.unwrap()["app.kubernetes.io/part-of"], "leno");

    // Changes by other clients are undone.
    bed.delete(bundle()).await;
    assert_eq!(agrees(&bed).await, old);
    bed.merge(bundle(), json!({"spec": {"trustBundle": old.clone() + &other_root()}})).await;
    assert_eq!(agrees(&bed).await, old);

    // In a rotation, the next root is published before it signs, and the old one is removed last.
    let second = Replica::start_with("controller-1", &kubeconfig, &flags);
    second.line("serving discovery and identity").await;
    let seen = history(&bed);
    until("the first of the history", async || (!seen.lock().unwrap().is_empty()).then_some(()))
        .await;
    let before = identity(&first).await["bundle"].clone();
    ask(&bed, "first", json!("begin")).await;
    is(&first, "the beginning", |report| report["bundle"] != before).await;
    is(&first, "the end", |report| report["phase"] == "stable" && report["bundle"] != before).await;
    let new = agrees(&bed).await;
    until("the end of the history", async || {
        (seen.lock().unwrap().last() == Some(&new)).then_some(())
    })
    .await;
    assert!(!new.contains(&old));
    {
        let seen = seen.lock().unwrap();
        let [start, between @ .., _] = &seen[..] else { panic!("{seen:?}") };
        let both = |roots: &String| roots.contains(&old) && roots.contains(&new);
        assert!(*start == old && !between.is_empty() && between.iter().all(both), "{seen:?}");
    }

    // A replica that takes over does not write the object again if it is already right.
    first.end();
    leads(&second).await;
    bed.delete(bundle()).await;
    assert_eq!(agrees(&bed).await, new);
    let written = "leno_control_trust_bundle_writes_total{result=\"written\"}";
    until("the write is counted", async || {
        (second.metric(written).await as u64 >= 1).then_some(())
    })
    .await;
    assert_eq!(second.metric(written).await as u64, 1);
    second.end();

    // The installation no longer wants the object, but still has the rights to it.
    let third = Replica::start("controller-0", &kubeconfig);
    leads(&third).await;
    until("it is removed", async || bed.get(bundle()).await.is_none().then_some(())).await;
    third.end();
}
