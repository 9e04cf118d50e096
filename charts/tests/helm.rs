//! The chart rendered by Helm equals the chart rendered by `leno install`.
//!
//! Needs `helm`, or LENO_HELM with its path.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::process::Command;

use leno_charts::{NAMESPACE, Values, render};
use serde_json::Value;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/leno");

/// The settings of the tested installations: none, all, and special cases of the template language.
const SETTINGS: [&[&str]; 14] = [
    &[],
    &["ha=true"],
    &["ha=true", "controller.issuerSecret=mesh-issuer"],
    &[
        "controller.federate=a.example=https://bundle.a.example/",
        "controller.federationConfigMap=bundles",
        "controller.authoritiesConfigMap=authorities",
        "controller.bundleEndpoint.enabled=true",
        "controller.bundleEndpoint.certificateSecret=bundle-endpoint",
        "controller.bundleEndpoint.serviceType=LoadBalancer",
    ],
    &["controller.replicas=2", "image.registry=example.org/mesh", "image.tag=x", "mtls=strict"],
    &["ha=true", "controller.log=a=b", "egress=deny"],
    &["proxy.tapBodies=true"],
    &["tlsProfile=fips", "proxy.scrapeFrom=192.0.2.0/24, 2001:db8::/32"],
    &["observer.enabled=false"],
    &["observer.storage=1Gi", "observer.storageClass=fast"],
    &[
        "identity.workloadApi.volume=csi",
        "identity.clusterTrustBundle=true",
        "controller.issuerSecret=mesh-issuer",
    ],
    &["identity.workloadApi.volume=hostPath", "identity.workloadApi.hostPath=/run/spire"],
    &["identity.podCertificates=true"],
    &[
        "image.registry=example.org/mesh",
        "image.digests.controller=sha256:0123",
        "image.digests.proxy=sha256:4567",
        "controller.nodeSelector.pool=system",
        "agent.nodeSelector.disk=ssd",
    ],
];

#[test]
fn helm_and_leno_render_the_same() {
    let helm = std::env::var("LENO_HELM").unwrap_or_else(|_| "helm".to_owned());
    if Command::new(&helm).arg("version").output().is_err() {
        let required = std::env::var("LENO_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|one| one == "helm"), "helm is required and not there");
        println!("skipped: needs helm (or LENO_HELM with its path)");
        return;
    }
    for settings in SETTINGS {
        let mut command = Command::new(&helm);
        command.args([
            "template",
            "leno",
            CHART,
            "--namespace",
            NAMESPACE,
            "--kube-version",
            "1.34.0",
        ]);
        settings.iter().for_each(|setting| {
            // Helm takes several settings with commas between them.
            command.args(["--set", &setting.replace(',', r"\,")]);
        });
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{settings:?}: {error}");
        let theirs = documents(&String::from_utf8(output.stdout).unwrap());
        let (hooks, theirs): (Vec<Value>, Vec<Value>) = theirs
            .into_iter()
            .partition(|one| !one["metadata"]["annotations"]["helm.sh/hook"].is_null());
        let hook = leno_charts::helm_hook(NAMESPACE, "leno").unwrap();
        assert_eq!(hooks, documents(&hook));
        let settings: Vec<String> = settings.iter().map(|&one| one.to_owned()).collect();
        let ours = render(&Values::load(&[], &settings).unwrap(), NAMESPACE).unwrap();
        let mut ours = documents(&ours);
        // A chart does not contain the namespace that it is installed in.
        ours.retain(|one| one["kind"] != "Namespace");
        assert!(ours.len() > 10);
        let name = |one: &Value| format!("{} {}", one["kind"], one["metadata"]["name"]);
        let (names, their_names): (Vec<_>, Vec<_>) =
            (ours.iter().map(name).collect(), theirs.iter().map(name).collect());
        assert_eq!(names, their_names);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs);
        }
    }
}

#[test]
fn a_value_that_there_is_not_is_refused() {
    for (setting, reason) in [
        ("controler.log=x", "unknown field `controler`"),
        ("controller.lag=x", "unknown field `lag`"),
        ("mtls=maybe", "unknown variant `maybe`"),
        ("ha", "write NAME=VALUE"),
        ("ha=7", "invalid type"),
    ] {
        let error = Values::load(&[], &[setting.to_owned()]).unwrap_err().to_string();
        assert!(error.starts_with(setting) && error.contains(reason), "{error}");
    }
    let file = ("values.yaml".to_owned(), "image: {tag: 7}".to_owned());
    let error = Values::load(&[file], &[]).unwrap_err().to_string();
    assert!(error.starts_with("values.yaml: ") && error.contains("expected a string"), "{error}");
}

#[test]
fn files_and_settings_change_what_they_name_alone() {
    let file = ("v".to_owned(), "controller: {log: warn}\nmtls: strict\n".to_owned());
    let settings = ["mtls=disabled".to_owned(), "image.tag=1".to_owned()];
    let mut values = Values::load(&[file], &settings).unwrap();
    let defaults = Values::defaults();
    assert_eq!(values.controller.log, "warn");
    assert_eq!(values.mtls, leno_charts::Mtls::Disabled);
    assert_eq!(values.controller.cert_lifetime, defaults.controller.cert_lifetime);
    assert_eq!(
        std::mem::take(&mut values.image.tag),
        "1",
        "a text, also where it looks like a number"
    );
    assert_eq!(values.image, defaults.image);
}

#[test]
fn an_image_is_named_as_the_templates_do() {
    let digest: &[&str] =
        &["image.registry=r.test", "image.digests.proxy=sha256:ab", "image.tag=7"];
    let fips: &[&str] = &["image.registry=r.test", "tlsProfile=fips"];
    let own_fips: &[&str] = &["image.tag=7", "tlsProfile=fips"];
    let plain: [&[&str]; 3] =
        [&[], &["image.registry=r.test/leno"], &["image.registry=", "image.tag=7"]];
    for settings in plain.into_iter().chain([digest, fips, own_fips]) {
        let settings: Vec<String> = settings.iter().map(|one| (*one).to_owned()).collect();
        let values = Values::load(&[], &settings).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        let name = values.image_named("leno-proxy", version);
        let text = leno_charts::render(&values, leno_charts::NAMESPACE).unwrap();
        assert!(text.contains(&format!("value: \"{name}\"")), "{name} is not in\n{text}");
        // All images of one profile have the same tag.
        for part in ["leno-controller", "leno-agent"] {
            let name = values.image_named(part, version);
            assert!(text.contains(&format!("image: {name}\n")), "{name} is not in\n{text}");
        }
    }
    let all = ["tlsProfile=fips".to_owned()];
    let fips = Values::load(&[], &all).unwrap().image_named("leno-proxy", "1.2.3");
    assert_eq!(fips, "leno-proxy:1.2.3-fips");
}

#[test]
fn each_part_runs_where_it_is_told_and_is_pulled_with_what_it_is_given() {
    let file = "
image:
  pullSecrets: [{name: regcred}]
  digests: {agent: 'sha256:ab'}
controller:
  nodeSelector: {pool: system}
  tolerations: [{key: system, operator: Exists}]
  affinity: {nodeAffinity: {}}
agent:
  nodeSelector: {pool: apps, kubernetes.io/os: null}
  tolerations: []
";
    let values = Values::load(&[("v".to_owned(), file.to_owned())], &[]).unwrap();
    let all = documents(&render(&values, NAMESPACE).unwrap());
    let pod = |kind: &str| {
        let found = all.iter().find(|one| one["kind"] == kind).unwrap();
        found["spec"]["template"]["spec"].clone()
    };
    let (controller, agent) = (pod("Deployment"), pod("DaemonSet"));
    for pod in [&controller, &agent] {
        assert_eq!(pod["imagePullSecrets"], serde_json::json!([{"name": "regcred"}]));
    }
    let env = controller["containers"][0]["env"].as_array().unwrap();
    let secrets = env.iter().find(|one| one["name"] == "LENO_PROXY_PULL_SECRETS").unwrap();
    assert_eq!(secrets["value"], r#"[{"name":"regcred"}]"#, "pods with a proxy get it too");
    let linux = serde_json::json!({"kubernetes.io/os": "linux", "pool": "system"});
    assert_eq!(controller["nodeSelector"], linux);
    assert_eq!(controller["tolerations"][0]["key"], "system");
    assert_eq!(controller["affinity"], serde_json::json!({"nodeAffinity": {}}));
    assert_eq!(agent["nodeSelector"], serde_json::json!({"pool": "apps"}));
    assert_eq!(agent["tolerations"], serde_json::json!([]));
    let image = |pod: &Value| pod["containers"][0]["image"].as_str().unwrap().to_owned();
    assert_eq!(image(&agent), "leno-agent@sha256:ab");
    assert!(image(&controller).starts_with("leno-controller:"));
    let wrong = Values::load(&[("v".to_owned(), "image: {pullSecrets: [a]}".to_owned())], &[]);
    assert!(wrong.is_err(), "a Secret is named by its field `name`");
}

/// The control plane and the proxies reach the same Workload API.
#[test]
fn a_workload_api_is_mounted_into_the_control_plane_which_mounts_it_into_pods() {
    for (kind, setting, source) in [
        (
            "csi",
            "csi:csi.spiffe.io/spire-agent.sock",
            serde_json::json!({"driver": "csi.spiffe.io", "readOnly": true}),
        ),
        (
            "hostPath",
            "hostPath:/run/spire/agent-sockets/spire-agent.sock",
            serde_json::json!({"path": "/run/spire/agent-sockets", "type": "Directory"}),
        ),
    ] {
        let values = [format!("identity.workloadApi.volume={kind}")];
        let values = Values::load(&[], &values).unwrap();
        assert_eq!(values.identity.workload_api.setting().as_deref(), Some(setting));
        let all = documents(&render(&values, NAMESPACE).unwrap());
        let pod = &all.iter().find(|one| one["kind"] == "Deployment").unwrap()["spec"]["template"]
            ["spec"];
        let container = &pod["containers"][0];
        let env = |name: &str| {
            let all = container["env"].as_array().unwrap().iter();
            all.clone().find(|one| one["name"] == name).map(|one| one["value"].clone())
        };
        assert_eq!(env("LENO_PROXY_WORKLOAD_API").unwrap(), setting);
        let (mount, volume) = (&container["volumeMounts"][0], &pod["volumes"][0]);
        assert_eq!((&mount["name"], &volume[kind]), (&volume["name"], &source));
        let socket = format!("unix://{}/spire-agent.sock", mount["mountPath"].as_str().unwrap());
        assert_eq!(env("SPIFFE_ENDPOINT_SOCKET").unwrap(), socket);
    }
    assert_eq!(Values::defaults().identity.workload_api.setting(), None);
}

#[test]
fn the_network_policy_opens_what_is_served_and_the_quota_permits_the_priorities_that_are_used() {
    let all = documents(&render(&Values::defaults(), NAMESPACE).unwrap());
    let of = |kind: &str| all.iter().find(|one| one["kind"] == kind).unwrap();
    let pod = |kind: &str| &of(kind)["spec"]["template"]["spec"];
    let numbers = |ports: &Value, field: &str| -> BTreeSet<u64> {
        ports.as_array().unwrap().iter().map(|port| port[field].as_u64().unwrap()).collect()
    };
    let policy = &of("NetworkPolicy")["spec"];
    let [rule] = &policy["ingress"].as_array().unwrap()[..] else { panic!("{policy}") };
    let served = numbers(&pod("Deployment")["containers"][0]["ports"], "containerPort");
    assert_eq!(numbers(&rule["ports"], "port"), served);
    let labels = &of("Deployment")["spec"]["template"]["metadata"]["labels"];
    for (name, value) in policy["podSelector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(labels[name], *value, "the policy selects the control plane's pods");
    }
    let scope = &of("ResourceQuota")["spec"]["scopeSelector"]["matchExpressions"][0];
    let permitted = scope["values"].as_array().unwrap();
    for kind in ["Deployment", "DaemonSet"] {
        assert!(permitted.contains(&pod(kind)["priorityClassName"]), "{kind}");
    }
}

/// CVE-2021-34824: Istio's control plane could read the Secrets of all namespaces, and gave them to gateways that named them.
#[test]
fn cve_2021_34824_the_controller_reads_no_secret_but_its_own() {
    let all = documents(&render(&Values::defaults(), NAMESPACE).unwrap());
    let mut own = 0;
    for role in all.iter().filter(|one| one["kind"] == "ClusterRole" || one["kind"] == "Role") {
        for rule in role["rules"].as_array().unwrap() {
            let has = |field: &str, name: &str| {
                rule[field].as_array().is_some_and(|all| all.iter().any(|one| one == name))
            };
            assert!(!has("resources", "*") && !has("verbs", "*"), "{rule}");
            if !has("resources", "secrets") {
                continue;
            }
            assert_eq!(role["kind"], "Role", "Secrets of all namespaces: {rule}");
            let reads = ["get", "list", "watch"].iter().any(|verb| has("verbs", verb));
            let names = &rule["resourceNames"];
            let known =
                [serde_json::json!(["leno-ca"]), serde_json::json!(["leno-bundles", "leno-keys"])];
            assert!(!reads || known.contains(names), "{rule}");
            own += usize::from(reads);
        }
    }
    assert_eq!(own, 2);
}

#[test]
fn helm_is_told_what_to_run_instead_and_install_prints_no_hook() {
    let hook = &documents(&leno_charts::helm_hook("mesh", "one").unwrap())[0];
    assert_eq!(hook["metadata"]["annotations"]["helm.sh/hook"], "pre-delete");
    let message = hook["data"].as_object().unwrap().keys().next().unwrap();
    assert!(message.contains("leno uninstall --namespace mesh;"), "{message}");
    assert!(message.contains("helm uninstall --no-hooks one"), "{message}");
    assert!(message.len() < 253, "the API server would refuse it for its length");
    let printed = render(&Values::defaults(), NAMESPACE).unwrap();
    assert!(!printed.contains("helm.sh/hook:"));
}

/// The documents of a YAML text, sorted by kind and name, because Helm prints them in its own
/// order.
fn documents(text: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let mut all: Vec<Value> = all.into_iter().filter(|one| !one.is_null()).collect();
    all.sort_by_key(|one| format!("{} {}", one["kind"], one["metadata"]["name"]));
    // The installed values are JSON within a text, with their keys in different orders.
    for one in &mut all {
        if let Some(Value::String(text)) = one.pointer("/data/values.json").cloned() {
            one["data"]["values.json"] = serde_json::from_str(&text).unwrap();
        }
    }
    all
}
