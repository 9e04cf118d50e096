//! Tests `leno uninstall` when it cannot proceed, and how `leno check` reports a removal.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use leno_charts::{NAMESPACE, Values};
use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::shop::{Shop, json_of, leno_at, out, said};

const UNINSTALL: [&str; 2] = ["uninstall", "--yes"];

/// The webhooks in the output of `leno install`.
fn webhooks() -> String {
    let all = leno_charts::render(&Values::defaults(), NAMESPACE).unwrap();
    let webhook = |document: &&str| document.contains("WebhookConfiguration\n");
    all.split("---\n").filter(webhook).collect::<Vec<_>>().join("---\n")
}

/// The admission policy that an installation has if its pods get a folder of their node.
fn admission_policy() -> String {
    let values = ["identity.workloadApi.volume=hostPath".to_owned()];
    let all = leno_charts::render(&Values::load(&[], &values).unwrap(), NAMESPACE).unwrap();
    let policy = |document: &&str| document.contains("\nkind: ValidatingAdmissionPolicy");
    all.split("---\n").filter(policy).collect::<Vec<_>>().join("---\n")
}

fn injector() -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "leno-injector"}})
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
}

fn of_apps(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE}})
}

async fn annotation(bed: &TestApiServer, name: &str) -> Option<String> {
    bed.get(namespace()).await?.metadata.annotations?.remove(name)
}

async fn set_step(bed: &TestApiServer, step: Value) {
    bed.merge(namespace(), json!({"metadata": {"annotations": {"leno.dev/removal": step}}})).await;
}

/// The shop, with a control plane that counts as ready. The proxies of its pods are queried, but they cannot be
/// reached.
async fn shop(kube: &Path) -> Shop {
    let shop = Shop::open(kube, &[]).await;
    let mut controller = of_apps("Deployment", "leno-controller");
    controller["status"] = json!({"replicas": 1, "readyReplicas": 1});
    shop.bed.set_status(controller).await;
    shop
}

/// A removal that waits for proxies. It is killed at the end of the test.
struct Running(Option<Child>);

impl Running {
    async fn begin(shop: &Shop) -> Self {
        let before = annotation(&shop.bed, "removal.leno.dev/run").await;
        let child = Command::new(env!("CARGO_BIN_EXE_leno"))
            .args(UNINSTALL)
            .arg("--kubeconfig")
            .arg(&shop.admin)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let running = Self(Some(child));
        until("the removal has said a step", async || {
            let run = annotation(&shop.bed, "removal.leno.dev/run").await;
            (run.is_some() && run != before).then_some(())
        })
        .await;
        running
    }

    /// Waits for the removal to end; returns its error message.
    fn refusal(mut self) -> String {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        let text = said(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // The process has exited already, unless the test failed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_ends_where_the_mesh_is_installed_beside_it() {
    let Some(kube) = binary() else { return };
    let shop = shop(&kube).await;
    shop.bed.apply_yaml(&webhooks()).await;
    let removal = Running::begin(&shop).await;
    assert!(shop.bed.get(injector()).await.is_none(), "they go before the first step is said");
    assert_eq!(annotation(&shop.bed, "leno.dev/removal").await.as_deref(), Some("permissive"));
    shop.bed.apply_yaml(&webhooks()).await;
    let text = removal.refusal();
    assert!(text.contains("the mesh was installed again while it was being removed"), "{text}");
    assert!(text.contains("leno-injector exists again"), "{text}");
    assert!(text.contains("run leno uninstall again"), "{text}");
    for kept in [of_apps("DaemonSet", "leno-agent"), of_apps("Deployment", "leno-controller")] {
        assert!(shop.bed.get(kept.clone()).await.is_some(), "{kept}");
    }

    // The control plane has found the webhooks and cancelled the step, even if the webhooks have been deleted
    // since.
    set_step(&shop.bed, json!("plaintext")).await;
    let removal = Running::begin(&shop).await;
    assert_eq!(
        annotation(&shop.bed, "leno.dev/removal").await.as_deref(),
        Some("plaintext"),
        "it goes on where it was"
    );
    set_step(&shop.bed, Value::Null).await;
    let text = removal.refusal();
    assert!(text.contains("was set from step plaintext back to step none"), "{text}");
    assert!(shop.bed.get(of_apps("DaemonSet", "leno-agent")).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_removals_the_one_that_began_last_goes_on_and_the_other_says_so() {
    let Some(kube) = binary() else { return };
    let shop = shop(&kube).await;
    let first = Running::begin(&shop).await;
    let second = Running::begin(&shop).await;
    let text = first.refusal();
    assert!(text.contains("another leno uninstall has continued this removal"), "{text}");
    assert!(
        text.contains("run leno uninstall again") && !text.contains("installed again"),
        "{text}"
    );

    // Does what a removal does at its end.
    shop.bed.delete(of_apps("Deployment", "leno-controller")).await;
    let nothing = json!({"leno.dev/removal": null, "removal.leno.dev/run": null});
    shop.bed.merge(namespace(), json!({"metadata": {"annotations": nothing}})).await;
    let text = second.refusal();
    assert!(text.contains("another leno uninstall has finished this removal"), "{text}");
    assert!(shop.bed.get(of_apps("DaemonSet", "leno-agent")).await.is_some());
}

/// The rights that `leno uninstall` needs according to the guide.
fn rights() -> Vec<Value> {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let both = ["get", "delete"];
    vec![
        rule("", &["namespaces"], &["get", "patch", "delete"]),
        rule("", &["configmaps"], &["get", "list", "delete"]),
        rule("", &["serviceaccounts", "services", "resourcequotas"], &both),
        rule("", &["nodes"], &["list"]),
        rule("", &["pods"], &["list", "get", "create", "deletecollection"]),
        rule("", &["pods/portforward"], &["get", "create"]),
        rule("apps", &["deployments", "daemonsets", "statefulsets"], &both),
        rule("policy", &["poddisruptionbudgets"], &both),
        rule("networking.k8s.io", &["networkpolicies"], &both),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &both),
        rule(
            "rbac.authorization.k8s.io",
            &["clusterroles", "clusterrolebindings", "roles", "rolebindings"],
            &both,
        ),
        rule(
            "admissionregistration.k8s.io",
            &[
                "mutatingwebhookconfigurations",
                "validatingwebhookconfigurations",
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
            ],
            &both,
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_lacks_a_right_changes_nothing_and_one_that_has_them_ends() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    shop.bed.apply_yaml(&webhooks()).await;
    let mut fewer = rights();
    fewer.retain(|rule| rule["resources"] != json!(["pods/portforward"]));
    fewer.retain(|rule| rule["apiGroups"] != json!(["apiextensions.k8s.io"]));
    let weak = shop.allowed("weak", json!(fewer)).await;
    let refused = leno_at(&weak, &UNINSTALL);
    let text = said(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    for missing in [
        "create pods/portforward",
        "delete customresourcedefinitions.apiextensions.k8s.io trafficpolicies.leno.dev",
        "nothing was changed",
        "docs/guide/install.md",
    ] {
        assert!(text.contains(missing), "{missing:?} is not in {text}");
    }
    assert!(shop.bed.get(injector()).await.is_some());
    assert_eq!(annotation(&shop.bed, "leno.dev/removal").await, None);

    // If the definitions are kept, the right to delete them is not needed. There is no pod that must apply the
    // removal.
    let mut enough = rights();
    enough.retain(|rule| rule["apiGroups"] != json!(["apiextensions.k8s.io"]));
    let enough = shop.allowed("enough", json!(enough)).await;
    let mut own = namespace();
    own["metadata"]["labels"] = json!({"app.kubernetes.io/part-of": "others"});
    shop.bed.merge(own.clone(), own).await;
    for pod in ["web-7d9c-aaaaa", "web-7d9c-bbbbb", "cart-0", "plain"] {
        let metadata = json!({"name": pod, "namespace": "shop"});
        shop.bed.delete(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})).await;
    }
    // An upgrade has left this policy, because upgrades delete nothing.
    shop.bed.apply_yaml(&admission_policy()).await;
    let left = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"].map(
        |kind| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "leno-workload-api"}}),
    );
    for one in left.clone() {
        assert!(shop.bed.get(one).await.is_some());
    }
    let gone = leno_at(&enough, &["uninstall", "--yes", "--keep-definitions"]);
    let text = said(&gone);
    assert!(gone.status.success(), "{text}");
    assert!(text.contains("kept     Namespace leno-system"), "{text}");
    assert!(shop.bed.get(injector()).await.is_none());
    for one in left {
        assert!(shop.bed.get(one).await.is_none(), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_ends_after_the_supervisors_of_node_proxies() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    let pod = |namespace: &str, name: &str| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}});
    for name in ["web-7d9c-aaaaa", "web-7d9c-bbbbb", "cart-0", "plain"] {
        shop.bed.delete(pod("shop", name)).await;
    }
    // There is no pod that must apply the removal, and no controller that would finish deleting a namespace.
    shop.bed.delete(of_apps("Deployment", "leno-controller")).await;
    let mut own = namespace();
    own["metadata"]["labels"] = json!({"app.kubernetes.io/part-of": "others"});
    shop.bed.merge(own.clone(), own).await;
    let mut supervisor = pod(NAMESPACE, "leno-node-n1");
    supervisor["metadata"]["labels"] = json!({"app.kubernetes.io/name": "leno-node"});
    supervisor["spec"] = json!({"serviceAccountName": "node",
        "containers": [{"name": "node", "image": "leno-agent:1"}]});
    supervisor["status"] = json!({"phase": "Running"});
    shop.run(supervisor.clone()).await;

    let mut removal = Running::begin(&shop).await;
    until("everything else is gone", async || {
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "ratelimitpolicies.leno.dev"}});
        shop.bed.get(definition).await.is_none().then_some(())
    })
    .await;
    let record = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "leno-installed", "namespace": NAMESPACE}});
    assert!(shop.bed.get(record.clone()).await.is_some(), "it has not waited");
    shop.bed.delete(supervisor).await;
    let ended = removal.0.take().unwrap().wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", said(&ended));
    assert!(shop.bed.get(record).await.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_agent_cannot_begin_is_not_taken_for_clean() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    for pod in ["web-7d9c-aaaaa", "web-7d9c-bbbbb", "cart-0", "plain"] {
        let metadata = json!({"name": pod, "namespace": "shop"});
        shop.bed.delete(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})).await;
    }
    // There is no pod that must apply the removal, and no controller that would finish deleting a namespace.
    shop.bed.delete(of_apps("Deployment", "leno-controller")).await;
    let mut own = namespace();
    own["metadata"]["labels"] = json!({"app.kubernetes.io/part-of": "others"});
    shop.bed.merge(own.clone(), own).await;
    // As after an upgrade to an image that does not exist: this pod is new, and its predecessor captured pods.
    let node = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "labels": {"kubernetes.io/os": "linux"}},
        "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    shop.run(node).await;
    shop.run(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "leno-agent-n1", "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/name": "leno-agent"}},
        "spec": {"nodeName": "n1", "serviceAccountName": "agent",
            "containers": [{"name": "agent", "image": "nowhere.example/leno-agent:1"}]},
        "status": {"containerStatuses": [{"name": "agent", "image": "nowhere.example/leno-agent:1",
            "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting":
                {"reason": "ImagePullBackOff", "message": "no such image"}}}]}}))
        .await;
    let left = leno_at(&shop.admin, &UNINSTALL);
    let text = said(&left);
    assert_eq!(left.status.code(), Some(1), "{text}");
    assert!(text.contains("n1: it is not ready"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_done_about_a_removal_is_said_for_each_step_of_it() {
    let Some(kube) = binary() else { return };
    let shop = shop(&kube).await;
    let finding = || {
        let found = json_of(&leno_at(&shop.admin, &["check", "-o", "json"]));
        let of = |subject: &str| {
            found.as_array().unwrap().iter().find(|one| one["subject"] == subject).cloned()
        };
        (of("removal"), of("pods").unwrap())
    };
    let (none, pods) = finding();
    assert_eq!(none, None);
    // The proxies do not run.
    assert_eq!(pods["level"], "warning");
    assert!(pods["text"].as_str().unwrap().starts_with("3 of 3 proxies do not answer"), "{pods}");

    for (step, webhooks_are_there, wanted) in [
        ("permissive", false, "being removed, or the removal was interrupted"),
        ("half", false, "kubectl annotate namespace leno-system leno.dev/removal-"),
        ("plaintext", true, "the control plane reverts it"),
    ] {
        set_step(&shop.bed, json!(step)).await;
        if webhooks_are_there {
            shop.bed.apply_yaml(&webhooks()).await;
        }
        let (removal, _) = finding();
        let removal = removal.unwrap();
        assert_eq!(removal["level"], "bad");
        let words = ["text", "remedy"].map(|field| removal[field].as_str().unwrap());
        let text = words.join(": ");
        assert!(text.contains(wanted) && text.contains(step), "{text}");
    }
    let weak = shop.token_of("web").await;
    let refused = leno_at(&weak, &["check", "--cluster"]);
    assert_eq!(refused.status.code(), Some(2), "{}{}", out(&refused), said(&refused));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_that_lacks_a_right_names_it_and_says_the_rest() {
    let Some(kube) = binary() else { return };
    let shop = shop(&kube).await;
    set_step(&shop.bed, json!("plaintext")).await;
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["get"]});
    let rules = [rule("", &["configmaps", "namespaces"]), rule("apps", &["deployments"])];
    let weak = shop.allowed("weak", json!(rules)).await;
    let answer = leno_at(&weak, &["check", "-o", "json"]);
    assert_eq!(answer.status.code(), Some(1), "{}", said(&answer));
    let found = json_of(&answer);
    let level_and_text = |subject: &str| {
        let all = found.as_array().unwrap();
        let one = all.iter().find(|one| one["subject"] == subject);
        let one = one.unwrap_or_else(|| panic!("no {subject} in {found}"));
        (one["level"].as_str().unwrap().to_owned(), one["text"].as_str().unwrap().to_owned())
    };
    for (subject, level, missing) in [
        ("removal", "bad", "at step plaintext; it is unknown whether the mesh was installed again"),
        ("removal", "bad", "cannot get resource \"mutatingwebhookconfigurations\""),
        ("node agents", "unknown", "cannot get resource \"daemonsets\""),
        ("pods", "unknown", "cannot list resource \"pods\""),
        ("control plane", "good", "1 of 1 ready"),
    ] {
        let (is, text) = level_and_text(subject);
        assert_eq!(is, level, "{subject}: {text}");
        assert!(text.contains(missing), "{subject}: {text}");
    }

    // An unknown state does not count as healthy, even if no problem is known.
    set_step(&shop.bed, Value::Null).await;
    let answer = leno_at(&weak, &["check", "-o", "json"]);
    assert_eq!(answer.status.code(), Some(1), "{}", said(&answer));
    let found = json_of(&answer);
    let bad = found.as_array().unwrap().iter().filter(|one| one["level"] == "bad").count();
    assert_eq!(bad, 0, "{found}");
}
