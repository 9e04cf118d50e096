//! Tests that a removal of the mesh is cancelled once it was abandoned and the mesh was installed again.

use leno_cluster::{HeldRemoval, RemovalProgress, RemovalReconciler};
use leno_kube::api::Patch;
use leno_testkit_api::{TestApiServer, binary, until};
use leno_types::Removal;
use serde_json::{Value, json};

use crate::admission::install;
use crate::replica::Replica;
use crate::{cluster, is_documented, leads};

fn own() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leno-system"}})
}

async fn say(bed: &TestApiServer, notes: Value) {
    bed.merge(own(), json!({"metadata": {"annotations": notes}})).await;
}

async fn notes(bed: &TestApiServer) -> Value {
    json!(bed.get(own()).await.unwrap().metadata.annotations)
}

/// Sets on how many of two nodes the agent is ready, as the DaemonSet's controller would.
async fn agents(bed: &TestApiServer, ready: u64) {
    let mut agents = json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {"name": "leno-agent", "namespace": "leno-system"}});
    let generation = bed.get(agents.clone()).await.unwrap().metadata.generation;
    agents["status"] = json!({"observedGeneration": generation, "desiredNumberScheduled": 2,
        "numberReady": ready, "currentNumberScheduled": 2, "numberMisscheduled": 0});
    bed.set_status(agents).await;
}

fn looks(result: &str) -> String {
    format!("leno_control_removal_looks_total{{result=\"{result}\"}}")
}

async fn counted(replica: &Replica, result: &str) {
    until(&format!("a look ends {result}"), async || {
        (replica.metric(&looks(result)).await > 0.0).then_some(())
    })
    .await;
}

async fn step(replica: &Replica, wanted: u64) {
    until(&format!("step {wanted} of a removal"), async || {
        let step = replica.metric("leno_control_removal").await as u64;
        (step == wanted).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mesh_that_is_installed_again_stays_once_its_pods_are_captured_and_by_steps() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    say(&bed, json!({"leno.dev/removal": "plaintext", "removal.leno.dev/run": "1", "a": "b"}))
        .await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    step(&replica, 2).await;
    replica.line("the mesh is being removed: leno uninstall has begun a step step=plaintext").await;
    counted(&replica, "removed").await;

    install(&bed, replica.webhook().await).await;
    counted(&replica, "no_agents").await;
    let before = replica.metric(&looks("no_agents")).await;
    agents(&bed, 1).await;
    until("the agents' change is noticed", async || {
        (replica.metric(&looks("no_agents")).await > before).then_some(())
    })
    .await;
    step(&replica, 2).await;
    replica.line("mTLS waits until leno-agent is ready on all nodes").await;

    let removed = replica.metric(&looks("removed")).await;
    agents(&bed, 2).await;
    // The line stays in the log, so it can also be read late.
    replica.line("its removal goes back one step from=plaintext to=permissive").await;
    counted(&replica, "held").await;
    replica.line("the mesh was installed again while it was being removed: it stays").await;
    step(&replica, 0).await;
    until("both steps back are counted", async || {
        (replica.metric(&looks("back")).await as u64 == 2).then_some(())
    })
    .await;
    assert_eq!(replica.metric(&looks("removed")).await, removed, "no replica removes it any more");
    let left = notes(&bed).await;
    assert_eq!(
        (&left["leno.dev/removal"], &left["removal.leno.dev/run"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(left["a"], "b", "what others say there is left alone");
    is_documented(&replica).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_from_before_a_removal_began_again_takes_nothing_back() {
    let Some(kube) = binary() else { return };
    let (bed, _) = cluster(&kube).await;
    say(&bed, json!({"leno.dev/removal": "plaintext", "removal.leno.dev/run": "1"})).await;
    let stays = RemovalReconciler::new(bed.admin.clone(), "leno-system");
    assert_eq!(stays.look().await.unwrap(), RemovalProgress::Removed, "it is not installed");
    // No client calls these webhooks in this test.
    install(&bed, 1).await;
    agents(&bed, 2).await;
    let seen = halfway(&stays).await;
    assert_eq!((seen.step, seen.captures), (Removal::Plaintext, true));
    // A removal that is in progress writes the number of its run.
    say(&bed, json!({"removal.leno.dev/run": "2"})).await;
    assert!(!stays.write(&seen).await.unwrap());
    assert_eq!(notes(&bed).await["leno.dev/removal"], "plaintext");
    assert!(stays.write(&halfway(&stays).await).await.unwrap());
    assert_eq!(notes(&bed).await["leno.dev/removal"], "permissive");
    assert!(stays.write(&halfway(&stays).await).await.unwrap());
    assert_eq!(
        stays.look().await.unwrap(),
        RemovalProgress::Over,
        "it is no removal that would be counted"
    );
}

async fn halfway(stays: &RemovalReconciler) -> HeldRemoval {
    match stays.look().await.unwrap() {
        RemovalProgress::Halfway(seen) => seen,
        nothing => panic!("{nothing:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_control_plane_that_may_not_take_a_removal_back_says_what_to_do() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "leno-controller"}});
    let mut rules = bed.get(role.clone()).await.unwrap().data["rules"].as_array().unwrap().clone();
    // The role of an earlier version can list namespaces, but neither read nor change a single one.
    let mut left_out = 0;
    rules.retain_mut(|rule| {
        if rule["verbs"].as_array().unwrap().contains(&json!("list")) {
            return true;
        }
        let Some(resources) = rule["resources"].as_array_mut() else { return true };
        let before = resources.len();
        resources.retain(|resource| resource != "namespaces");
        left_out += before - resources.len();
        !resources.is_empty()
    });
    assert_eq!(left_out, 2);
    bed.change(role, &Patch::Merge(json!({"rules": rules}))).await;
    say(&bed, json!({"leno.dev/removal": "plaintext"})).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    leads(&replica).await;
    counted(&replica, "failed").await;
    let said = replica.line("unknown whether the mesh stays").await;
    assert!(said.contains("are not those of this version"), "{said}");
    assert!(said.contains("cannot get resource"), "{said}");
}
