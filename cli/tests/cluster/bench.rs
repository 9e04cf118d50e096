//! Tests `leno bench run` in a cluster without kubelets: the objects that it creates, its errors when it cannot
//! continue, and that it removes everything.

mod disturbing;
mod restoring;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use leno_suite::record::{self, Record};
use leno_testkit_api::{TestApiServer, TestControllers, binary, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::shop::said;

/// The prefix of the bench's namespaces.
const OURS: &str = "leno-bench-";
/// Kinds of objects that meshes create outside of their namespace.
const KINDS: [&str; 6] = [
    "v1 Namespace",
    "apiextensions.k8s.io/v1 CustomResourceDefinition",
    "rbac.authorization.k8s.io/v1 ClusterRole",
    "rbac.authorization.k8s.io/v1 ClusterRoleBinding",
    "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration",
    "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration",
];

/// The status of a pod that waits for its image forever.
fn unpulled() -> Value {
    json!({"containerStatuses": [{"name": "bench", "image": "nowhere.example/leno-bench:1", "imageID": "",
        "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}}]})
}

fn ready() -> Value {
    json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
}

fn role(name: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": [],
        "metadata": {"name": name}})
}

struct Bench {
    bed: TestApiServer,
    kubeconfig: PathBuf,
    out: PathBuf,
    /// A folder that comes first in `PATH`.
    tools: PathBuf,
}

impl Bench {
    /// A cluster with two nodes, but no kubelets.
    async fn open(kube: &Path) -> Self {
        let bed = TestApiServer::start(kube).await;
        for name in ["n1", "n2"] {
            let node = json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}}, "spec": {"taints": []},
                "status": {"capacity": {"cpu": "2", "memory": "2Gi"},
                    "conditions": [{"type": "Ready", "status": "True"}]}});
            bed.apply(node.clone()).await;
            bed.set_status(node.clone()).await;
            // Applies the node once more, without the taint that the API server adds to new nodes. Usually a
            // controller removes that taint.
            bed.apply(node).await;
        }
        // The bench identifies the cluster by the first of these namespaces. The API server creates the second one
        // only after a while.
        for name in ["kube-system", "default"] {
            let namespace =
                json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            until("the namespace is there", async || bed.get(namespace.clone()).await).await;
        }
        let kubeconfig = bed.administrator();
        let (out, tools) = (bed.directory.path().join("out"), bed.directory.path().join("tools"));
        fs::create_dir(&tools).unwrap();
        Self { bed, kubeconfig, out, tools }
    }

    async fn leno(&self, words: &[&str]) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
        command.env_remove("KUBECONFIG").env("HOME", "/nonexistent");
        command.env("PATH", format!("{}:{path}", self.tools.display()));
        command.arg("bench").args(words);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }

    /// Runs the scenario `faces` for one second, in one round.
    async fn run(&self, more: &[&str]) -> Output {
        self.run_of("faces", more).await
    }

    /// Runs a scenario for one second, in one round.
    async fn run_of(&self, scenario: &str, more: &[&str]) -> Output {
        let (file, out) = (self.kubeconfig.to_str().unwrap(), self.out.to_str().unwrap());
        let words = ["run", scenario, "--kubeconfig", file, "--rounds", "1", "--duration", "1s"];
        let image: &[&str] = match more.contains(&"--image") {
            true => &[],
            false => &["--image", "nowhere.example/leno-bench:1"],
        };
        self.leno(&[&words[..], image, &["--out", out], more].concat()).await
    }

    fn records(&self) -> Vec<Record> {
        record::read(&self.out).unwrap()
    }

    fn why(&self, mesh: &str) -> String {
        let records = self.records();
        let found = records.iter().find(|record| record.mesh == mesh);
        found.unwrap_or_else(|| panic!("no record of {mesh}")).left_out.clone().unwrap_or_default()
    }

    /// Installs a script in place of a tool. The script logs the arguments with which it was called.
    fn tool(&self, name: &str, script: &str) {
        let path = self.tools.join(name);
        let log = self.tools.join("calls");
        let text = format!("#!/bin/sh\necho {name} \"$@\" >>{}\n{script}\n", log.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The calls of tools, without the arguments that select the cluster.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.tools.join("calls")).unwrap_or_default();
        let of = |line: &str| line.split(" --kubeconfig").next().unwrap_or_default().to_owned();
        text.lines().map(of).collect()
    }

    /// Creates an object each time a tool has been called with these arguments, for the given number of calls.
    /// After each it creates a file that the script waits for, so that the tool itself seems to have created the
    /// object.
    async fn makes_when(&self, (call, times): (&str, usize), done: &Path, object: Value) {
        for nth in 1..=times {
            let called = || self.calls().iter().filter(|one| one.starts_with(call)).count();
            until(call, async || (called() >= nth).then_some(())).await;
            self.bed.apply(object.clone()).await;
            fs::write(done, "").unwrap();
        }
    }

    /// The kubeconfig of a new service account in the namespace `default`.
    async fn account(&self, name: &str) -> PathBuf {
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": "default"}});
        self.bed.apply(account).await;
        let token = self.bed.token(("default", name), None, None).await;
        self.bed.kubeconfig(&format!("{name}.kubeconfig"), self.bed.port, &token)
    }

    async fn everything(&self) -> Vec<String> {
        let all = self.bed.names(&KINDS).await;
        // Left out are the namespaces that the API server creates by itself at some time.
        all.into_iter().filter(|name| !name.starts_with("Namespace kube-")).collect()
    }
}

#[tokio::test]
async fn what_a_bench_makes_is_said_why_it_fails_and_taken_back() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    let hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let run = bench.run(&["--mesh", "none"]).await;
    assert!(run.status.success(), "{}", said(&run));
    let why = bench.why("none");
    assert!(
        ["client", "color", "face", "smiley", "watch-"]
            .iter()
            .any(|one| why.contains(&format!("pod {one}"))),
        "{why}"
    );
    assert!(why.contains("ErrImagePull: no such host") && why.contains("--image"), "{why}");
    let records = bench.records();
    assert_eq!(records.len(), 5, "every step says so, and none has waited");
    let cluster = records[0].cluster.clone().unwrap();
    assert_eq!((&*cluster.context, cluster.nodes.len()), ("test", 2));
    assert!(cluster.server_version.starts_with('v'), "{cluster:?}");
    assert_eq!((&*cluster.placement["client"], &*cluster.placement["face"]), ("n1", "n2"));
    assert_eq!(records[0].machine.cpus, 4);
    assert!(said(&run).contains("times 0.2 (--scale)"), "{}", said(&run));
    assert_eq!(bench.everything().await, before);
    assert!(!bench.out.join("cluster.json").exists());

    let (namespace, pods) = hands.seen().unwrap();
    let labels = namespace.metadata.labels.unwrap();
    assert_eq!(labels["app.kubernetes.io/managed-by"], "leno-bench");
    assert!(!labels.contains_key("leno.dev/inject"), "{labels:?}");
    let at = &namespace.metadata.annotations.unwrap()["leno.dev/bench-records"];
    assert!(at.contains(bench.out.to_str().unwrap()), "{at}");
    let mut names: Vec<String> = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
    names.sort();
    assert_eq!(names, ["client", "color", "face", "smiley", "watch-0", "watch-1"]);
}

#[tokio::test]
async fn a_real_application_is_made_of_its_file_and_refused_before_anything_is_made() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    let printed = bench.leno(&["list", "--application", "faces"]).await;
    let printed = String::from_utf8(printed.stdout).unwrap();
    let file = bench.bed.directory.path().join("images.yaml");
    let given = ["--mesh", "none", "--application", file.to_str().unwrap()];
    for (text, words) in [
        (printed.replace("smiley:\n", "smile:\n"), "services.smile: faces has no such service"),
        (printed.replace("image: ghcr", "imege: ghcr"), "imege"),
        (printed.replace("scenario: faces", "scenario: teastore"), "the file is for \"teastore\""),
    ] {
        fs::write(&file, text).unwrap();
        let refused = bench.run(&given).await;
        assert_eq!(refused.status.code(), Some(2));
        assert!(said(&refused).contains(words), "{}", said(&refused));
    }
    let folder = ["--application", bench.tools.to_str().unwrap()];
    let refused = bench.run(&folder).await;
    assert!(said(&refused).contains("is a directory, which is for the lab"), "{}", said(&refused));
    assert_eq!((bench.everything().await, bench.out.exists()), (before.clone(), false));

    fs::write(&file, printed.replace("ghcr.io/buoyantio", "nowhere.example")).unwrap();
    let hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let run = bench.run(&given).await;
    assert!(run.status.success(), "{}", said(&run));
    let cluster = bench.records()[0].cluster.clone().unwrap();
    let images = cluster.application.unwrap();
    assert_eq!(images.services["color"].image, "nowhere.example/faces-color:2.0.0");
    let (_, pods) = hands.seen().unwrap();
    let image = |name: &str| {
        let pod = pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name)).unwrap();
        pod.spec.as_ref().unwrap().containers[0].image.clone().unwrap()
    };
    assert_eq!(image("client"), "nowhere.example/leno-bench:1");
    assert_eq!(image("face"), "nowhere.example/faces-face:2.0.0");
    assert_eq!(bench.everything().await, before);
}

#[tokio::test]
async fn a_run_that_is_interrupted_takes_back_what_it_has_made() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    // The pod counts as running, but it cannot be reached, because there is no kubelet.
    let _hands = TestControllers::begin(&bench.bed, OURS, ready());
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
    command.env_remove("KUBECONFIG").env("HOME", "/nonexistent");
    command.args(["bench", "run", "http-1k", "--mesh", "none", "--kubeconfig"]);
    command.arg(&bench.kubeconfig).arg("--out").arg(&bench.out).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let ledger = bench.out.join("cluster.json");
    until("the namespace is there", async || {
        let names = bench.everything().await;
        names.iter().any(|name| name.contains(OURS)).then_some(())
    })
    .await;
    assert!(ledger.exists(), "written before anything is made");
    let beside = bench.run(&["--mesh", "none", "--resume"]).await;
    assert!(said(&beside).contains("is under way: let it end"), "{}", said(&beside));
    let cleaned = bench.leno(&["clean", bench.out.to_str().unwrap()]).await;
    assert!(said(&cleaned).contains("is under way: let it end"), "{}", said(&cleaned));
    assert!(ledger.exists(), "what is used is not taken back");
    let file = bench.kubeconfig.to_str().unwrap();
    let elsewhere = bench.bed.directory.path().join("elsewhere");
    let other = ["run", "http-1k", "--kubeconfig", file, "--out", elsewhere.to_str().unwrap()];
    let refused = bench.leno(&other).await;
    let text = said(&refused);
    assert!(
        text.contains("namespace leno-bench belongs to a run") && text.contains("let it end"),
        "{text}"
    );
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
    let ended =
        tokio::task::spawn_blocking(move || child.wait_with_output().unwrap()).await.unwrap();
    assert_eq!(ended.status.code(), Some(2));
    assert!(said(&ended).contains("interrupted: the records are kept"), "{}", said(&ended));
    assert_eq!(bench.everything().await, before);
    assert!(!ledger.exists());
}

#[tokio::test]
async fn a_mesh_that_is_there_is_neither_installed_over_nor_removed() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    // The names of Leno's own images cannot be derived from an image without a tag.
    let image = ["--image", "nowhere.example/leno@sha256:00"];
    let missing =
        bench.run(&[&["--mesh", "none,linkerd", "--no-install"], &image[..]].concat()).await;
    assert_eq!(missing.status.code(), Some(2));
    let text = said(&missing);
    assert!(
        text.contains("linkerd is not installed or not ready (there is no Deployment"),
        "{text}"
    );
    // A control plane counts as present only when all its parts are ready.
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "linkerd"}});
    bench.bed.apply(namespace).await;
    for (part, ready) in [("destination", 1), ("identity", 0)] {
        let labels = json!({"linkerd.io/control-plane-component": part});
        let pod = json!({"metadata": {"labels": labels},
            "spec": {"containers": [{"name": part, "image": "nowhere.example/linkerd:1"}]}});
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": format!("linkerd-{part}"), "namespace": "linkerd", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "template": pod},
            "status": {"replicas": 1, "readyReplicas": ready}});
        let mut applied = deployment.clone();
        applied.as_object_mut().unwrap().remove("status");
        bench.bed.apply(applied).await;
        bench.bed.set_status(deployment).await;
    }
    let half = bench.run(&["--mesh", "none,linkerd", "--no-install"]).await;
    let text = said(&half);
    assert!(text.contains("not ready (linkerd/linkerd-identity not ready)"), "{text}");
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n3"}});
    bench.bed.apply(node).await;
    let refused = bench.run(&["--mesh", "none,leno"]).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(said(&refused).contains("node n3 is not Ready"), "{}", said(&refused));
    bench.bed.apply(role("leno-agent")).await;
    let refused = bench.run(&["--mesh", "none,leno"]).await;
    assert_eq!(refused.status.code(), Some(2));
    let text = said(&refused);
    assert!(text.contains("leno is already installed") && text.contains("--no-install"), "{text}");
    assert!(text.contains("ClusterRole leno-agent"), "{text}");
    assert!(bench.bed.get(role("leno-agent")).await.is_some(), "it was not ours");
}

#[tokio::test]
async fn others_are_installed_by_their_own_tools_and_taken_back_after_a_failure() {
    let Some(kube) = binary() else { return };
    let bench = Bench::open(&kube).await;
    let before = bench.everything().await;
    let _hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let none = bench.run(&["--mesh", "none,linkerd"]).await;
    assert!(none.status.success(), "{}", said(&none));
    assert!(bench.why("linkerd").contains("linkerd is missing: curl"), "{}", bench.why("linkerd"));
    fs::remove_dir_all(&bench.out).unwrap();

    // The first tool creates something, fails, and removes what it knows of. The second prints documents to apply;
    // then a CustomResourceDefinition turns out to be missing.
    let made = bench.tools.join("made");
    let script = format!(
        "[ $1 = uninstall ] || {{ until [ -e {0} ]; do sleep 0.1; done; rm {0}; echo no room >&2; exit 1; }}",
        made.display()
    );
    bench.tool("istioctl", &script);
    let crds = "Linkerd CRDs must be installed first. Run linkerd install with the --crds flag.";
    let printed = "apiVersion: rbac.authorization.k8s.io/v1\\nkind: ClusterRole\\nmetadata: {name: linkerd-x}";
    let script = format!(
        "case \"$1$2\" in install--crds|uninstall*) printf '{printed}\\n';; *) echo '{crds}' >&2; exit 1;; esac"
    );
    bench.tool("linkerd", &script);
    let (run, ()) = tokio::join!(
        bench.run(&["--mesh", "none,istio,istio-ambient,linkerd"]),
        bench.makes_when(("istioctl install", 2), &made, role("istiod-x"))
    );
    assert!(run.status.success(), "{}", said(&run));
    assert_eq!(
        bench.calls(),
        [
            "istioctl install -y --set profile=minimal",
            "istioctl uninstall --purge -y",
            "istioctl install -y --set profile=ambient",
            "istioctl uninstall --purge -y",
            "linkerd install --crds --set installGatewayAPI=true",
            "linkerd install",
            "linkerd uninstall",
        ]
    );
    assert!(
        bench.why("istio").contains("istio cannot be installed")
            && bench.why("istio").contains("no room")
    );
    assert!(
        bench.why("linkerd").contains("CRDs must be installed first"),
        "{}",
        bench.why("linkerd")
    );
    assert_eq!(bench.everything().await, before);
    assert!(!bench.out.join("cluster.json").exists());

    // A tool that has created nothing finds nothing to uninstall, and reports that as an error.
    fs::remove_dir_all(&bench.out).unwrap();
    let nothing = "[ $1 = install ] && echo no Gateway API >&2 || echo No resources found to uninstall >&2; exit 1";
    bench.tool("linkerd", nothing);
    let run = bench.run(&["--mesh", "none,linkerd"]).await;
    assert!(run.status.success(), "{}", said(&run));
    assert!(bench.why("linkerd").contains("no Gateway API"), "{}", bench.why("linkerd"));
    assert_eq!(bench.everything().await, before);
    assert!(!bench.out.join("cluster.json").exists());
}

#[tokio::test]
async fn a_user_without_rights_is_told_which_are_missing() {
    let Some(kube) = binary() else { return };
    let mut bench = Bench::open(&kube).await;
    bench.kubeconfig = bench.account("dev").await;
    let refused = bench.run(&["--mesh", "none"]).await;
    assert_eq!(refused.status.code(), Some(2));
    let text = said(&refused);
    for word in ["list nodes", "create pods/attach", "docs/guide/bench.md"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    // The rights in the guide are sufficient.
    let guide = include_str!("../../../docs/guide/bench.md");
    let (_, role) = guide.split_once("```yaml\n").unwrap();
    bench.bed.apply_yaml(role.split_once("```").unwrap().0).await;
    let dev = json!({"kind": "ServiceAccount", "name": "dev", "namespace": "default"});
    bench.bed.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "dev"}, "subjects": [dev],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "leno-bench"}})).await;
    let _hands = TestControllers::begin(&bench.bed, OURS, unpulled());
    let run = bench.run(&["--mesh", "none"]).await;
    assert!(run.status.success(), "{}", said(&run));
    assert!(bench.why("none").contains("ErrImagePull"), "{}", bench.why("none"));

    // These rights are sufficient for measuring, but not for installing.
    let before = bench.everything().await;
    bench.tool("linkerd", "exit 1");
    for (mesh, right) in [("leno", "create clusterroles.rbac"), ("linkerd", "create secrets")] {
        fs::remove_dir_all(&bench.out).unwrap();
        let refused = bench.run(&["--mesh", &format!("none,{mesh}")]).await;
        assert_eq!(refused.status.code(), Some(2));
        let text = said(&refused);
        for word in [
            &format!("is not permitted to install and remove {mesh}"),
            right,
            "--no-install",
            "nothing was created",
        ] {
            assert!(text.contains(word), "{word} is not in {text}");
        }
        assert_eq!(bench.everything().await, before);
    }
    assert_eq!(bench.calls(), [""; 0]);

    let other = bench.run(&["--context", "prod"]).await;
    assert!(said(&other).contains("no context \"prod\": use one of test"), "{}", said(&other));
    let lab = bench.run(&["--generator", "fortio"]).await;
    assert!(said(&lab).contains("--generator is only for the lab"), "{}", said(&lab));
    let nowhere =
        bench.leno(&["run", "faces", "--image", "leno-bench:1", "--out", "nowhere"]).await;
    assert!(
        said(&nowhere).contains("--image is only for a cluster: select one"),
        "{}",
        said(&nowhere)
    );
}
