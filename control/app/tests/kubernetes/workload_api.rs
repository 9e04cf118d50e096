//! Tests the Workload API that the proxy of a pod serves to its application, with a real proxy and SPIFFE's own
//! client.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leno_testkit::{command, tools};
use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::admission::{injected, install, pod, proxy_of};
use crate::cluster;
use crate::proxy::roots;
use crate::replica::Replica;

const SOCKET: &str = "unix:///run/leno/workload-api/api.sock";
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The proxy of a pod of the namespace `shop`. Dropping this kills it.
struct ServingProxy {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl ServingProxy {
    async fn start(bed: &TestApiServer, control: &str, name: &str, account: &str) -> Self {
        let folder = bed.directory.path().join(format!("proxy-{name}"));
        fs::create_dir(&folder).unwrap();
        let token = bed.token(("shop", account), Some("leno"), Some(name)).await;
        fs::write(folder.join("token"), token).unwrap();
        fs::write(folder.join("roots.pem"), roots(bed).await).unwrap();
        let (socket, log) = (folder.join("api.sock"), folder.join("log"));
        let path =
            PathBuf::from(env!("CARGO_BIN_EXE_leno-controller")).with_file_name("leno-proxy");
        let file = |name: &str| folder.join(name).display().to_string();
        let child = Command::new(&path)
            .args(["--name", name, "--namespace", "shop", "--service-account", account])
            .args(["--control", control, "--log", "info"])
            .args(["--roots", &file("roots.pem"), "--token", &file("token")])
            .args(["--workload-api", &socket.display().to_string()])
            .args(["--outbound", "127.0.0.1:0", "--inbound", "127.0.0.1:0"])
            .args(["--admin", "127.0.0.1:0"])
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{}: {error}: cargo build -p leno-proxy", path.display())
        });
        Self { child, socket, log }
    }

    /// Runs SPIFFE's client. Returns its output, or its error.
    fn client(&self, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let socket = format!("unix://{}", self.socket.display());
        let mut client = Command::new(program);
        client.args(arguments).env("SPIFFE_ENDPOINT_SOCKET", socket);
        let output = command::run(&mut client, ANSWER_LIMIT).unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Waits for a certificate, and returns it with its key.
    async fn svid(&self, program: &Path) -> Value {
        let what = format!("a certificate; the log is {}", self.log.display());
        let svid = until(&what, async || {
            let listens = self.socket.exists();
            listens.then(|| self.client(program, &["svid"]).ok()).flatten()
        });
        serde_json::from_str(&svid.await).unwrap()
    }
}

impl Drop for ServingProxy {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applications_of_pods_get_their_identity_over_the_workload_api_of_their_proxy() {
    let Some(kube) = binary() else { return };
    let Some(tools) = tools::install_or_skip("spiffe").unwrap() else { return };
    let program = tools.join("spiffe");
    let (bed, kubeconfig) = cluster(&kube).await;
    let replica = Replica::start("controller-0", &kubeconfig);
    install(&bed, replica.webhook().await).await;
    is_injected(&bed).await;

    let control = format!("https://{}", replica.address().await);
    let mut proxies = Vec::new();
    for (name, account, address) in
        [("web-0", "web", "10.244.0.7"), ("other-0", "other", "10.244.0.8")]
    {
        let mut object = leno_testkit_api::objects::pod(name, address);
        object["spec"]["serviceAccountName"] = json!(account);
        bed.apply(object.clone()).await;
        bed.set_status(object).await;
        proxies.push(ServingProxy::start(&bed, &control, name, account).await);
    }
    let (web, other) = (&proxies[0], &proxies[1]);
    let (of_web, of_other) = (web.svid(&program).await, other.svid(&program).await);
    let id = |account: &str| format!("spiffe://cluster.local/ns/shop/sa/{account}");
    let watched: Value =
        serde_json::from_str(&web.client(&program, &["watch", "1"]).unwrap()).unwrap();
    assert_eq!((&watched["id"], &watched["roots"]), (&json!(id("web")), &json!(1)));
    let watched: Value =
        serde_json::from_str(&other.client(&program, &["watch", "1"]).unwrap()).unwrap();
    assert_eq!(watched["id"], json!(id("other")));
    assert_ne!(of_web["key"], of_other["key"]);
    assert_eq!(web.client(&program, &["bundles"]).unwrap().trim(), "cluster.local 1");
    let refused = web.client(&program, &["jwt"]).unwrap_err();
    assert!(refused.contains("Unimplemented") && refused.contains("JWT-SVIDs"), "{refused}");
    // Each proxy has its own certificate, and its application gets another one.
    let issued = replica.metric("leno_control_certificates_issued_total").await;
    assert!(issued >= 4.0, "{issued}");
    replica.end();
}

/// Asserts that the webhook injects pods as the documentation describes.
async fn is_injected(bed: &TestApiServer) {
    let labels = json!({"leno.dev/inject": "enabled"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "shop", "labels": labels}});
    bed.apply(namespace).await;
    let mut asks = pod("shop", json!({}));
    asks["metadata"]["annotations"] = json!({"leno.dev/workload-api": "enabled"});
    let made = injected(bed, &asks).await;
    let (proxy, application) = (&made["spec"]["initContainers"][0], &made["spec"]["containers"][0]);
    let of = |list: &Value, name: &str| -> Value {
        let all = list.as_array().unwrap();
        all.iter().find(|one| one["name"] == name).cloned().unwrap_or_default()
    };
    let folder = "/run/leno/workload-api";
    let read_only = json!({"name": "leno-workload-api", "mountPath": folder, "readOnly": true});
    let written = json!({"name": "leno-workload-api", "mountPath": folder});
    assert_eq!(of(&application["volumeMounts"], "leno-workload-api"), read_only);
    assert_eq!(of(&proxy["volumeMounts"], "leno-workload-api"), written);
    assert_eq!(of(&application["env"], "SPIFFE_ENDPOINT_SOCKET")["value"], SOCKET);
    assert_eq!(of(&proxy["env"], "LENO_WORKLOAD_API")["value"], format!("{folder}/api.sock"));
    assert_eq!(
        of(&made["spec"]["volumes"], "leno-workload-api")["emptyDir"],
        json!({"medium": "Memory"})
    );
    let without = bed.tried(&pod("shop", json!({}))).await.unwrap();
    assert!(proxy_of(&without).is_some());
    assert_eq!(of(&without["spec"]["volumes"], "leno-workload-api"), Value::Null);
    asks["metadata"]["annotations"]["leno.dev/mode"] = json!("node");
    let refused = bed.tried(&asks).await.unwrap_err();
    assert!(refused.contains("set leno.dev/mode: sidecar"), "{refused}");
}
