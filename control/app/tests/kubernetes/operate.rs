//! Runs `leno` against a cluster, and tests the documents that it prints for the cluster and its reports about it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use leno_charts::{NAMESPACE, Values};
use leno_testkit_api::{TestApiServer, binary};
use serde_json::{Value, json};

/// The command line, built beside the controller (`cargo build -p leno`).
pub(crate) fn leno(kubeconfig: &Path, words: &[&str]) -> Output {
    let path = PathBuf::from(env!("CARGO_BIN_EXE_leno-controller")).with_file_name("leno");
    let mut command = Command::new(&path);
    command.args(words).arg("--kubeconfig").arg(kubeconfig);
    command
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}: cargo build -p leno", path.display()))
}

pub(crate) fn findings(output: &Output) -> Vec<(String, String)> {
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.iter().map(|one| (text(&one["subject"]), text(&one["level"]))).collect()
}

pub(crate) fn pair(subject: &str, level: &str) -> (String, String) {
    (subject.to_owned(), level.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_knows_what_is_installed_and_how_it_is() {
    let Some(kube) = binary() else { return };
    let bed = TestApiServer::start(&kube).await;
    let admin = bed.administrator();

    let before = leno(&admin, &["check", "--pre", "-o", "json"]);
    assert!(before.status.success());
    let wanted = [
        ("Kubernetes", "good"),
        ("rights", "good"),
        ("Gateway API", "warning"),
        ("installation", "good"),
    ];
    assert_eq!(findings(&before), wanted.map(|(subject, level)| pair(subject, level)));

    // Cilium's configuration, first its default and then the one that Leno needs.
    let mut cilium = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "cilium-config", "namespace": "kube-system"},
        "data": {"kube-proxy-replacement": "true"}});
    bed.apply(cilium.clone()).await;
    let refused = leno(&admin, &["check", "--pre", "-o", "json"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(findings(&refused).contains(&pair("Cilium", "bad")));
    assert!(findings(&refused).contains(&pair("Cilium", "warning")));
    cilium["data"] = json!({"kube-proxy-replacement": "true", "cni-exclusive": "false",
        "bpf-lb-sock-hostns-only": "true"});
    bed.apply(cilium).await;
    let mended = leno(&admin, &["check", "--pre", "-o", "json"]);
    assert!(mended.status.success());
    assert!(!findings(&mended).iter().any(|(subject, _)| subject == "Cilium"));
    let nothing = leno(&admin, &["upgrade"]);
    assert_eq!(nothing.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&nothing.stderr)
            .contains("Leno is not installed in namespace leno-system")
    );

    let told = Values::load(&[], &["mtls=strict".to_owned(), "ha=true".to_owned()]).unwrap();
    bed.apply_yaml(&leno_charts::render(&told, NAMESPACE).unwrap()).await;
    let upgraded = leno(&admin, &["upgrade", "--set", "egress=deny"]);
    let mut wanted = told.clone();
    wanted.egress = leno_charts::Egress::Deny;
    let wanted = leno_charts::render(&wanted, NAMESPACE).unwrap();
    assert_eq!(String::from_utf8(upgraded.stdout).unwrap(), wanted, "what it was told is kept");

    // A cluster that consists only of an API server runs no pods.
    let after = leno(&admin, &["check", "-o", "json"]);
    assert_eq!(after.status.code(), Some(1));
    for wanted in [
        ("installation", "good"),
        ("control plane", "bad"),
        ("node agents", "bad"),
        ("node proxies", "bad"),
    ] {
        assert!(findings(&after).contains(&pair(wanted.0, wanted.1)), "{wanted:?}");
    }

    assert!(!findings(&after).iter().any(|(subject, _)| subject == "removal"));
    let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "leno-system", "annotations": {"leno.dev/removal": "plaintext"}}});
    bed.apply(namespace.clone()).await;
    let begun = leno(&admin, &["check", "-o", "json"]);
    assert!(findings(&begun).contains(&pair("removal", "bad")));
    namespace["metadata"]["annotations"] = json!({});
    bed.apply(namespace).await;

    let token = bed.token(("leno-system", "controller"), None, None).await;
    let weak = bed.kubeconfig("weak.kubeconfig", bed.port, &token);
    let refused = leno(&weak, &["check", "--pre", "-o", "json"]);
    // The controller's own account may neither install nor read the installation.
    assert_eq!(refused.status.code(), Some(2));
    let unasked = leno(&admin, &["uninstall"]);
    assert_eq!(unasked.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unasked.stderr).contains("add --yes"));
}

/// Helm creates the hook before it removes anything. It stops if the API server rejects the hook.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_api_server_takes_the_hook_by_which_helm_uninstall_is_refused() {
    let Some(kube) = binary() else { return };
    let bed = TestApiServer::start(&kube).await;
    let hook = leno_charts::helm_hook("default", "one").unwrap();
    let hook: Vec<Value> = serde_saphyr::from_multiple(&hook).unwrap();
    let refused = bed.tried(&hook[0]).await.unwrap_err();
    assert!(refused.contains("run: leno uninstall --namespace default;"), "{refused}");
    assert!(refused.contains("helm uninstall --no-hooks one"), "{refused}");
}

/// Finds Helm as `charts/tests/helm.rs` does. `None` if it is missing, after printing that the test is skipped.
fn helm() -> Option<PathBuf> {
    let helm = std::env::var_os("LENO_HELM").unwrap_or_else(|| "helm".into());
    if Command::new(&helm).arg("version").output().is_ok() {
        return Some(helm.into());
    }
    let required = std::env::var("LENO_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|one| one == "helm"), "helm is required and not there");
    println!("skipped: needs helm (or LENO_HELM with its path: scripts/helm.sh builds it)");
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn helm_installs_the_chart_and_its_uninstall_is_refused_until_it_is_told_to_leave_the_hook_out()
 {
    let (Some(kube), Some(helm)) = (binary(), helm()) else { return };
    let bed = TestApiServer::start(&kube).await;
    let run = |words: &[&str]| {
        let mut command = Command::new(&helm);
        command.args(words).args(["--namespace", NAMESPACE]);
        // Helm must not use the user's own repositories and plugins.
        let home = bed.directory.path().join("helm");
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, &home);
        }
        command.env("KUBECONFIG", bed.administrator()).output().unwrap()
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/leno");
    let installed = run(&["install", "leno", chart, "--create-namespace", "--set", "ha=true"]);
    assert!(installed.status.success(), "{}", said(&installed));
    let named = |kind: &str, api: &str, name: &str| {
        json!({"apiVersion": api, "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE}})
    };
    let parts = [
        named("Deployment", "apps/v1", "leno-controller"),
        named("DaemonSet", "apps/v1", "leno-agent"),
        named("ServiceAccount", "v1", "controller"),
    ];
    for part in &parts {
        assert!(bed.get(part.clone()).await.is_some(), "{part}");
    }
    let check = leno(&bed.administrator(), &["check", "-o", "json"]);
    assert!(findings(&check).contains(&pair("installation", "good")));

    let refused = run(&["uninstall", "leno"]);
    assert!(!refused.status.success());
    let why = said(&refused);
    assert!(
        why.contains("nothing was removed; run: leno uninstall --namespace leno-system"),
        "{why}"
    );
    for part in &parts {
        assert!(bed.get(part.clone()).await.is_some(), "{part}");
    }
    let removed = run(&["uninstall", "--no-hooks", "leno"]);
    assert!(removed.status.success(), "{}", said(&removed));
    for part in &parts {
        assert!(bed.get(part.clone()).await.is_none(), "{part}");
    }
    let listed = run(&["list", "--all", "--short"]);
    assert_eq!(String::from_utf8_lossy(&listed.stdout).trim(), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_installed_goes_and_nothing_else() {
    let Some(kube) = binary() else { return };
    let bed = TestApiServer::start(&kube).await;
    let admin = bed.administrator();
    let namespace =
        |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    for name in ["shop", "mesh"] {
        bed.apply(namespace(name)).await;
    }
    let roots = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "leno-roots", "namespace": "shop"}, "data": {}});
    bed.apply(roots.clone()).await;

    let elsewhere = leno(&admin, &["uninstall", "--yes", "-n", "shop"]);
    assert_eq!(elsewhere.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&elsewhere.stderr)
            .contains("Leno is not installed in namespace shop")
    );

    // Installs into a namespace that also contains other objects, which Helm permits.
    let text = leno_charts::render(&Values::defaults(), "mesh").unwrap();
    let (_, without_namespace) = text.split_once("\n---\n").unwrap();
    bed.apply_yaml(without_namespace).await;
    let gone = leno(&admin, &["uninstall", "--yes", "-n", "mesh", "--keep-definitions"]);
    let said = String::from_utf8_lossy(&gone.stderr).into_owned();
    assert!(gone.status.success(), "{said}");
    assert!(said.contains("kept     Namespace mesh"), "{said}");
    let object = |api: &str, kind: &str, name: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
    for one in [
        object("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "leno-injector"),
        object("rbac.authorization.k8s.io/v1", "ClusterRole", "leno-controller"),
        roots,
    ] {
        assert!(bed.get(one.clone()).await.is_none(), "{one}");
    }
    let definition =
        object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "trafficpolicies.leno.dev");
    assert!(bed.get(definition).await.is_some(), "they were to be kept");
    assert!(bed.get(namespace("shop")).await.is_some());
    let again = leno(&admin, &["uninstall", "--yes", "-n", "mesh"]);
    assert!(
        String::from_utf8_lossy(&again.stderr).contains("Leno is not installed in namespace mesh")
    );
}
