//! A small shop in a cluster, and functions that run the command line against it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use leno_charts::{NAMESPACE, Values};
use leno_testkit_api::objects::{http_route_definition, pod, service, slice};
use leno_testkit_api::{TestApiServer, until};
use serde_json::{Value, json};

/// Runs `leno` with these arguments. Nothing but the arguments selects the cluster.
pub(crate) fn leno(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").args(words).output().unwrap()
}

/// Like [`leno`], but root does not see the meshes that other tests have started on this machine.
pub(crate) fn leno_alone(words: &[&str]) -> Output {
    if !nix::unistd::geteuid().is_root() {
        return leno(words);
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /run && exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_leno")).args(words);
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent").output().unwrap()
}

/// Runs `leno` against the cluster of a kubeconfig. The flag for the kubeconfig comes first, because some commands
/// end with free words.
pub(crate) fn leno_at(kubeconfig: &Path, words: &[&str]) -> Output {
    let (command, rest) = words.split_first().unwrap();
    let file = kubeconfig.to_str().unwrap();
    leno(&[&[*command, "--kubeconfig", file], rest].concat())
}

pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", out(output), said(output)))
}

/// The objects of an installation without its webhooks, which no server would answer.
fn installation(settings: &[&str]) -> String {
    let settings: Vec<String> = settings.iter().map(|one| (*one).to_owned()).collect();
    let values = Values::load(&[], &settings).unwrap();
    let all = leno_charts::render(&values, NAMESPACE).unwrap();
    let webhook = |document: &&str| !document.contains("WebhookConfiguration");
    all.split("---\n").filter(webhook).collect::<Vec<_>>().join("---\n")
}

/// The shop: two pods of the Deployment `web`, one of the StatefulSet `cart`, a pod without a
/// proxy, and services for the first two.
pub(crate) struct Shop {
    pub(crate) bed: TestApiServer,
    pub(crate) admin: PathBuf,
}

impl Shop {
    pub(crate) async fn open(kube: &Path, told: &[&str]) -> Self {
        let bed = TestApiServer::start(kube).await;
        bed.apply_yaml(&installation(told)).await;
        bed.apply(http_route_definition()).await;
        for namespace in ["shop", "office"] {
            bed.apply(
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
            )
            .await;
            bed.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"name": "web", "namespace": namespace}}))
                .await;
        }
        let admin = bed.administrator();
        let shop = Self { bed, admin };
        shop.run(by(pod("web-7d9c-aaaaa", "10.244.0.7"), "ReplicaSet", "web-7d9c")).await;
        shop.run(by(pod("web-7d9c-bbbbb", "10.244.0.8"), "ReplicaSet", "web-7d9c")).await;
        shop.run(by(pod("cart-0", "10.244.0.9"), "StatefulSet", "cart")).await;
        let mut plain = pod("plain", "10.244.0.10");
        plain["spec"].as_object_mut().unwrap().remove("initContainers");
        shop.run(plain).await;
        shop.bed.apply(service("web", 80)).await;
        shop.bed.apply(service("cart", 80)).await;
        let both = ["web-7d9c-aaaaa 10.244.0.7", "web-7d9c-bbbbb 10.244.0.8"];
        shop.bed.apply(slice("web", &both)).await;
        shop.bed.apply(slice("cart", &["cart-0 10.244.0.9"])).await;
        let route = leno_testkit_api::objects::http_route("any", "cart");
        until("routes are served", async || shop.bed.serves(&route).await).await;
        shop
    }

    /// Creates a pod, with a status such as its node would report.
    pub(crate) async fn run(&self, pod: Value) {
        self.bed.apply(pod.clone()).await;
        self.bed.set_status(pod).await;
    }

    /// A kubeconfig for a service account with these rights in the whole cluster.
    pub(crate) async fn allowed(&self, name: &str, rules: Value) -> PathBuf {
        let account = json!({"name": name, "namespace": "office"});
        self.bed
            .apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}))
            .await;
        const GROUP: &str = "rbac.authorization.k8s.io";
        self.bed
            .apply(json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRole",
                "metadata": {"name": name}, "rules": rules}))
            .await;
        self.bed
            .apply(json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "office"}]}))
            .await;
        self.token_of(name).await
    }

    /// A kubeconfig for a service account in the namespace `office`.
    pub(crate) async fn token_of(&self, name: &str) -> PathBuf {
        let token = self.bed.token(("office", name), None, None).await;
        self.bed.kubeconfig(&format!("{name}.kubeconfig"), self.bed.port, &token)
    }
}

/// The pod, with this owner.
pub(crate) fn by(mut pod: Value, kind: &str, name: &str) -> Value {
    let metadata = &mut pod["metadata"];
    metadata["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": kind, "name": name,
        "uid": "0b0ad0e2-0000-4000-8000-000000000000", "controller": true}]);
    if let Some((_, hash)) = name.rsplit_once('-') {
        metadata["labels"]["pod-template-hash"] = json!(hash);
    }
    pod
}
