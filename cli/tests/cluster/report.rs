//! Tests `leno bug-report`, `leno inject`, `leno stat` and `leno diagnostics` on a cluster that is only an API
//! server.

use std::fs;
use std::process::Command;

use leno_testkit_api::binary;
use leno_testkit_api::objects::{http_route, pod};
use serde_json::{Value, json};

use crate::shop::{Shop, by, leno, leno_at, out, said};

/// A word that every planted secret contains.
const PLANTED: &str = "hunter2";

/// A pod with a secret in every field where users put one.
fn careless() -> Value {
    let mut pod = by(pod("till-0", "10.244.0.20"), "StatefulSet", "till");
    let jwt = format!("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiI{PLANTED}In0.{PLANTED}");
    pod["metadata"]["annotations"] = json!({
        "vault.example/pin": format!("{PLANTED}-annotation"),
        "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"x\":\"{PLANTED}-applied\"}}"),
        "leno.dev/proxy-log": format!("info,url=https://me:{PLANTED}-url@example.com"),
    });
    let container = &mut pod["spec"]["containers"][0];
    container["command"] = json!(["run", format!("--password={PLANTED}-command")]);
    container["args"] = json!([format!("{PLANTED}-argument"), jwt]);
    container["env"] = json!([
        {"name": "MODE", "value": format!("{PLANTED}-environment")},
        {"name": "DB", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}},
    ]);
    container["livenessProbe"] = json!({"httpGet": {"path": format!("/?token={PLANTED}-query"), "port": 80,
        "httpHeaders": [{"name": "Authorization", "value": format!("Bearer {PLANTED}-header")}]}});
    pod["spec"]["initContainers"][0]["env"] = json!([{"name": "LENO_PROBES", "value": format!("{{\"Authorization\":\"{PLANTED}-probes\"}}")}]);
    pod
}

#[tokio::test]
async fn a_report_has_what_helps_and_none_of_the_secrets_that_were_planted() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    shop.run(careless()).await;
    let key = format!("-----BEGIN PRIVATE KEY-----\n{PLANTED}\n-----END PRIVATE KEY-----\n");
    for namespace in ["shop", "leno-system"] {
        shop.bed
            .apply(json!({"apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": "db", "namespace": namespace},
                "stringData": {"password": format!("{PLANTED}-secret"), "tls.key": key}}))
            .await;
    }
    let mut route = http_route("keys", "cart");
    route["spec"]["rules"][0]["matches"] =
        json!([{"headers": [{"name": "x-api-key", "value": format!("{PLANTED}-match")}]}]);
    route["spec"]["rules"][0]["filters"] = json!([{"type": "RequestHeaderModifier",
        "requestHeaderModifier": {"set": [{"name": "Authorization", "value": format!("Basic {PLANTED}-set")}]}}]);
    shop.bed.apply(route).await;
    shop.bed
        .apply(json!({"apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "e", "namespace": "shop"}, "reason": "Failed", "type": "Warning",
            "involvedObject": {"kind": "Pod", "name": "till-0", "namespace": "shop"},
            "message": format!("pull of https://me:{PLANTED}-event@registry.example failed, token={PLANTED}-t")}))
        .await;

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.tar.gz");
    let words = ["bug-report", "--file", file.to_str().unwrap()];
    let made = leno_at(&shop.admin, &words);
    assert_eq!(
        made.status.code(),
        Some(1),
        "nothing runs, so that logs are missing: {}",
        said(&made)
    );
    assert!(said(&made).contains("missing: "), "{}", said(&made));
    assert!(said(&made).contains("missing: observer: "), "{}", said(&made));
    let again = leno_at(&shop.admin, &words);
    assert_eq!(again.status.code(), Some(2), "a file that is there is not written over");

    let unpacked = Command::new("tar").arg("-xzf").arg(&file).current_dir(&directory).status();
    assert!(unpacked.unwrap().success());
    let root = directory.path().join("report");
    let read =
        |name: &str| fs::read_to_string(root.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    for name in ["system/Deployment.json", "system/MutatingWebhookConfiguration.json", "check.json"]
    {
        // Webhooks are not applied, because the API server could not reach them.
        assert_eq!(root.join(name).exists(), !name.contains("Webhook"), "{name}");
    }
    let summary: Value = serde_json::from_str(&read("report.json")).unwrap();
    assert_eq!(summary["namespaces"], json!(["shop"]));
    assert_eq!(summary["meshed_pods"], 4);
    let pods = read("objects/pods.json");
    for kept in ["till-0", "\"MODE\"", "secretKeyRef", "/?token="] {
        assert!(pods.contains(kept), "{kept} is not in\n{pods}");
    }
    assert!(read("objects/shop/HTTPRoute.json").contains("x-api-key"));
    assert!(read("events/shop.txt").contains("Pod/till-0"));

    let mut everything = Vec::new();
    read_all(&root, &mut everything);
    assert!(everything.len() > 8, "{} files", everything.len());
    for (name, text) in everything {
        assert!(!text.contains(PLANTED), "{name} has a secret:\n{text}");
        assert!(!text.contains("PRIVATE KEY"), "{name}");
    }
}

fn read_all(directory: &std::path::Path, into: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, into);
        } else {
            into.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
        }
    }
}

#[tokio::test]
async fn proxies_that_cannot_be_reached_are_named_and_pods_without_one_are_told_of() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    let stat = leno_at(&shop.admin, &["stat", "-n", "shop", "--window", "100ms"]);
    let text = out(&stat);
    assert!(stat.status.success(), "{}", said(&stat));
    assert!(text.contains("shop        web                2/2"), "{text}");
    assert!(!text.contains("plain"), "it is not in the mesh: {text}");
    for pod in ["web-7d9c-aaaaa", "web-7d9c-bbbbb", "cart-0"] {
        let silent = format!("no answer from the proxy of shop/{pod}: ");
        assert!(said(&stat).contains(&silent), "{}", said(&stat));
    }

    shop.run(by(pod("web-0", "10.244.0.11"), "StatefulSet", "web")).await;
    let text = out(&leno_at(&shop.admin, &["stat", "-n", "shop", "--window", "100ms"]));
    for workload in ["deploy/web         2/2", "sts/web            1/1"] {
        assert!(text.contains(&format!("shop        {workload}")), "{text}");
    }

    for words in [&["stat", "-n", "shopp"][..], &["bug-report", "-n", "shopp", "-n", "shop"]] {
        let mistyped = leno_at(&shop.admin, words);
        assert_eq!(mistyped.status.code(), Some(2), "{}", said(&mistyped));
        let wanted = "leno: there is no namespace \"shopp\": did you mean shop?\n";
        assert_eq!(said(&mistyped), wanted);
    }

    let pods = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]);
    let weak = shop.allowed("weak", pods).await;
    let refused = leno_at(&weak, &["stat", "--window", "100ms"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("pods/portforward"), "{}", said(&refused));

    let ask = |words: &[&str]| {
        let file = shop.admin.to_str().unwrap();
        leno(&[&["diagnostics", "proxy", "--kubeconfig", file, "-n", "shop"][..], words].concat())
    };
    let plain = ask(&["plain"]);
    assert_eq!(plain.status.code(), Some(2));
    assert!(said(&plain).contains("pod shop/plain has no proxy: label"), "{}", said(&plain));
    assert!(said(&ask(&["web-7d9c-aaaab"])).contains("did you mean web-7d9c-aaaaa?"));
    let silent = ask(&["deploy/web"]);
    assert_eq!(silent.status.code(), Some(1), "{}", said(&silent));
    let text = out(&silent);
    assert!(text.starts_with("pod          shop/web-7d9c-aaaaa of deploy/web on "), "{text}");
}

#[tokio::test]
async fn a_pod_in_node_mode_is_one_with_a_proxy() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    let plain = |words: &[&str]| leno_at(&shop.admin, words);
    let silent = "no answer from the proxy of shop/plain: ";
    let stat = plain(&["stat", "-n", "shop", "--window", "100ms"]);
    assert!(!said(&stat).contains(silent), "{}", said(&stat));

    shop.bed
        .apply(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop",
            "labels": {"leno.dev/inject": "enabled"}, "annotations": {"leno.dev/mode": "node"}}}))
        .await;
    let stat = plain(&["stat", "-n", "shop", "--window", "100ms"]);
    assert!(said(&stat).contains(silent), "{}", said(&stat));
    let file = shop.admin.to_str().unwrap();
    let proxy = leno(&["diagnostics", "proxy", "--kubeconfig", file, "-n", "shop", "plain"]);
    assert_eq!(proxy.status.code(), Some(1), "{}", said(&proxy));
    let lines = out(&proxy);
    assert!(lines.contains("mode         node\n") && !lines.contains("image"), "{lines}");
    let explained = plain(&["explain", "-n", "shop", "pod/plain", "--", "http://cart/"]);
    assert!(out(&explained).contains("client       shop/plain\n"), "{}", said(&explained));
    // For a user without the right to read namespaces, only the settings of the pods themselves count.
    let rules = json!([{"apiGroups": [""], "resources": ["pods", "pods/portforward"],
        "verbs": ["get", "list", "create"]}]);
    let weak =
        leno_at(&shop.allowed("weak", rules).await, &["stat", "-n", "shop", "--window", "100ms"]);
    assert!(weak.status.success() && !said(&weak).contains(silent), "{}", said(&weak));
}

#[tokio::test]
async fn why_the_capture_of_a_pod_is_not_known_is_said_with_a_remedy() {
    let Some(kube) = binary() else { return };
    let shop = Shop::open(&kube, &[]).await;
    for (name, more) in
        [("placed", json!({"nodeName": "n1"})), ("of-the-host", json!({"hostNetwork": true}))]
    {
        let mut pod = pod(name, "10.244.0.12");
        pod["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        shop.run(pod).await;
    }
    let ask = |words: &[&str]| {
        let file = shop.admin.to_str().unwrap();
        let answer = leno(&[&["diagnostics", "capture", "--kubeconfig", file][..], words].concat());
        (answer.status.code(), out(&answer), said(&answer))
    };
    for (pod, wanted) in [
        ("plain", "pod shop/plain has no proxy: label"),
        ("deploy/web", "pod shop/web-7d9c-aaaaa is not scheduled to a node yet"),
        (
            "of-the-host",
            "pod shop/of-the-host uses its node's network (hostNetwork), which is never captured",
        ),
        ("place", "did you mean placed?"),
    ] {
        let (code, _, text) = ask(&["-n", "shop", pod]);
        assert!(code == Some(2) && text.contains(wanted), "{pod}: {text}");
    }
    let none = "no node agent runs on node n1, so pods with a proxy do not start there: kubectl -n leno-system describe";
    let (code, text, _) = ask(&["-n", "shop", "placed"]);
    assert!(code == Some(1) && text.contains(&format!("not known    {none}")), "{text}");
    let (code, _, text) = ask(&["--node", "n1"]);
    assert!(code == Some(2) && text.contains(none), "{text}");
    assert_eq!(ask(&["--node", "n1", "placed"]).0, Some(64));
    for command in
        [&["flows"][..], &["flows", "--requests"], &["ebpf", "status"], &["ebpf", "maps"]]
    {
        let of_node = ["--node", "n1", "--kubeconfig", shop.admin.to_str().unwrap()];
        let answer = leno(&[command, &of_node].concat());
        let text = said(&answer);
        assert!(answer.status.code() == Some(2) && text.contains(none), "{command:?}: {text}");
    }

    let mut agent = pod("leno-agent-x", "10.0.0.1");
    agent["metadata"] = json!({"name": "leno-agent-x", "namespace": "leno-system",
        "labels": {"app.kubernetes.io/name": "leno-agent"}});
    agent["spec"]["nodeName"] = json!("n1");
    agent["spec"]["serviceAccountName"] = json!("agent");
    shop.run(agent).await;
    let (code, text, _) = ask(&["-n", "shop", "placed", "-o", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (code, &report["capture"], &report["pod"]["node"]),
        (Some(1), &Value::Null, &json!("n1"))
    );
    // The agent does not run, so the port-forward fails at its node.
    let asked = "query /captures?pod=shop/placed of pod leno-system/leno-agent-x: ";
    assert!(report["unknown"][0].as_str().unwrap().starts_with(asked), "{report}");
}

#[tokio::test]
async fn a_proxy_is_injected_as_the_clusters_own_controller_would() {
    let Some(kube) = binary() else { return };
    let told = ["image.registry=registry.test", "image.tag=7", "trustDomain=shop.example"];
    let shop = Shop::open(&kube, &told).await;
    let file = shop.bed.directory.path().join("pod.yaml");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: web, image: web}]}\n";
    fs::write(&file, pod).unwrap();
    let file = file.to_str().unwrap();
    let injected = out(&leno_at(&shop.admin, &["inject", file]));
    for wanted in ["registry.test/leno-proxy:7", "shop.example", "imagePullPolicy: IfNotPresent"] {
        assert!(injected.contains(wanted), "{wanted} is not in\n{injected}");
    }
    let annotated = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "office", "annotations": {"leno.dev/capture": "nftables"}}});
    shop.bed.apply(annotated).await;
    let elsewhere = shop.bed.directory.path().join("office.yaml");
    fs::write(&elsewhere, pod.replace("{name: web}", "{name: web, namespace: office}")).unwrap();
    let elsewhere = elsewhere.to_str().unwrap();
    let captured = out(&leno_at(&shop.admin, &["inject", elsewhere]));
    assert!(captured.contains("leno.dev/capture: nftables"), "{captured}");
    assert!(!injected.contains("leno.dev/capture"), "its namespace does not say: {injected}");
    let there = out(&leno_at(&shop.admin, &["inject", "-n", "office", file]));
    assert!(there.contains("leno.dev/capture: nftables"), "{there}");
    let given = out(&leno_at(&shop.admin, &["inject", "--capture", "ebpf", elsewhere]));
    assert!(given.contains("leno.dev/capture: ebpf"), "{given}");
    let other = out(&leno_at(&shop.admin, &["inject", "--proxy-image", "mine:1", file]));
    assert!(other.contains("mine:1") && other.contains("shop.example"), "{other}");
    let nowhere = leno_at(&shop.admin, &["inject", "--system-namespace", "shop", file]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(said(&nowhere).contains("Leno is not installed in namespace shop"));
}
