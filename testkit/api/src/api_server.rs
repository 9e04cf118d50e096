//! Runs a real API server with its etcd, on loopback and without root.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leno_kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch,
    PatchParams, PostParams,
};
use leno_kube::{Client, apply, connect};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::audit::{self, LoggedRead};

/// How long any wait may take, on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(180);
/// Pause between two checks of a condition.
const LOOK: Duration = Duration::from_millis(50);
/// The token of the administrator.
const ADMIN: &str = "admin-of-the-test";
/// The nodes whose kubelets have tokens.
const NODES: [&str; 2] = ["n1", "n2"];

/// Polls until `look` returns a value.
///
/// # Panics
/// After [`LIMIT`] without one.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begin.elapsed() < LIMIT, "{what}: waited for {LIMIT:?}");
        tokio::time::sleep(LOOK).await;
    }
}

/// The binary that contains etcd and the API server. Without it, prints that the test is skipped, and returns `None`.
///
/// # Panics
/// If there is no binary although the environment variable `LENO_REQUIRE` contains `kubernetes`.
pub fn binary() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CLUSTER_KUBE") {
        return Some(path.into());
    }
    let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("kubernetes"));
    assert!(!required, "LENO_REQUIRE has kubernetes, and CLUSTER_KUBE is not set");
    println!(
        "skipped: needs CLUSTER_KUBE, etcd and the API server as one binary: scripts/cluster.sh api-test"
    );
    None
}

/// An API server and its etcd. Dropping this ends both. The methods panic if a step fails.
pub struct TestApiServer {
    kube: PathBuf,
    flags: Vec<String>,
    /// The API server's port on loopback.
    pub port: u16,
    /// A socket that is bound to that port but does not listen. The API server shares the port.
    _reserved: TcpSocket,
    etcd: Child,
    server: Option<Child>,
    /// A client with the administrator's rights.
    pub admin: Client,
    /// The files of etcd and the API server, and the kubeconfigs of the programs under test.
    pub directory: TempDir,
}

impl TestApiServer {
    /// Starts etcd and the API server.
    pub async fn start(kube: &Path) -> Self {
        Self::start_with(kube, &[]).await
    }

    /// Like [`start`](Self::start), with further flags of the API server.
    pub async fn start_with(kube: &Path, flags: &[&str]) -> Self {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        fs::write(path.join("tokens.key"), key.serialize_pem()).unwrap();
        fs::write(path.join("tokens.pub"), key.public_key_pem()).unwrap();
        fs::write(path.join("users.csv"), users()).unwrap();
        let etcd = Command::new(kube)
            .args(["etcd", "--name=one", "--log-level=warn", "--unsafe-no-fsync"])
            .arg(format!("--data-dir={}", path.join("etcd").display()))
            .arg(format!("--listen-client-urls=unix://{}", path.join("etcd.sock").display()))
            // No program uses these addresses: etcd has one member, and its only client uses the socket.
            .args(["--advertise-client-urls=http://127.0.0.1:2379"])
            .args(["--listen-peer-urls=http://127.0.0.1:0"])
            .args(["--initial-advertise-peer-urls=http://127.0.0.1:2380"])
            .args(["--initial-cluster=one=http://127.0.0.1:2380"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(path.join("etcd.log")).unwrap())
            .spawn()
            .unwrap();
        // The API server does not accept port 0. It gets a port that this socket reserves, even while no server
        // runs. If the port were merely free, a connection or a listener of another test could take it.
        let reserved = TcpSocket::new_v4().unwrap();
        reserved.set_reuseport(true).unwrap();
        reserved.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let port = reserved.local_addr().unwrap().port();
        audit::write_policy(path);
        let server = Some(api_server(kube, path, (port, &flags)));
        until("the API server's certificate", async || {
            path.join("certs/apiserver.crt").metadata().ok().filter(|file| file.len() > 0)
        })
        .await;
        let own = kubeconfig(path, "bed.kubeconfig", port, ADMIN);
        let admin = connect(Some(&own), None).await.unwrap();
        let (kube, _reserved) = (kube.to_owned(), reserved);
        let mut bed = Self { kube, flags, port, _reserved, etcd, server, admin, directory };
        bed.ready().await;
        bed
    }

    /// Kills the API server, as a crash would.
    pub fn stop(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Starts the API server again, on the same port and data.
    pub async fn restart(&mut self) {
        self.server = Some(api_server(&self.kube, self.directory.path(), (self.port, &self.flags)));
        self.ready().await;
    }

    /// The lists and watches of this program that the API server has answered so far, in order.
    pub fn reads(&self, program: &str) -> Vec<LoggedRead> {
        audit::reads(self.directory.path(), program)
    }

    /// Writes the kubeconfig of the administrator.
    pub fn administrator(&self) -> PathBuf {
        self.kubeconfig("admin.kubeconfig", self.port, ADMIN)
    }

    /// A client with the rights of the kubelet of node `n1` or `n2`.
    pub async fn kubelet(&self, node: &str) -> Client {
        let name = format!("{node}.kubeconfig");
        let own = self.kubeconfig(&name, self.port, &kubelet_token(node));
        connect(Some(&own), None).await.unwrap()
    }

    /// Writes a kubeconfig with this token; `port` is the API server's own port or one that forwards to it.
    pub fn kubeconfig(&self, name: &str, port: u16, token: &str) -> PathBuf {
        kubeconfig(self.directory.path(), name, port, token)
    }

    /// Creates an object, or changes it to the given state.
    pub async fn apply(&self, object: Value) {
        let (api, name) = self.api(&object);
        let applied = apply(&api, "test", &name, &object).await;
        applied.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    /// Creates an object. The API server does less work for this than for [`apply`](Self::apply). Returns the
    /// stored object.
    pub async fn create(&self, object: Value) -> DynamicObject {
        let (api, name) = self.api(&object);
        let made = serde_json::from_value(object).unwrap();
        let created = api.create(&PostParams::default(), &made).await;
        created.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Applies the objects of a text of YAML documents.
    pub async fn apply_yaml(&self, text: &str) {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
        for document in documents.into_iter().filter(|one| !one.is_null()) {
            self.apply(document).await;
        }
    }

    /// The object as the API server would store it, or the error if it would reject the object (dry run).
    pub async fn tried(&self, object: &Value) -> Result<Value, String> {
        let (api, _) = self.api(object);
        let try_only = PostParams { dry_run: true, ..PostParams::default() };
        let object = serde_json::from_value(object.clone()).unwrap();
        let made = api.create(&try_only, &object).await;
        made.map(|made| serde_json::to_value(made).unwrap()).map_err(|error| error.to_string())
    }

    /// Changes parts of an object.
    pub async fn change(&self, object: Value, patch: &Patch<Value>) {
        let (api, name) = self.api(&object);
        api.patch(&name, &PatchParams::default(), patch).await.unwrap();
    }

    /// Merges fields into an object. Fields whose value is null are removed.
    pub async fn merge(&self, object: Value, fields: Value) {
        self.change(object, &Patch::Merge(fields)).await;
    }

    /// Sets the status of an existing object.
    pub async fn set_status(&self, object: Value) {
        let (api, name) = self.api(&object);
        let status = json!({"status": object["status"]});
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    /// An object, if it exists.
    pub async fn get(&self, object: Value) -> Option<DynamicObject> {
        let (api, name) = self.api(&object);
        api.get_opt(&name).await.unwrap()
    }

    /// Deletes an object without a grace period, and waits until it is gone, so that it can be created again at
    /// once.
    pub async fn delete(&self, object: Value) {
        let (api, name) = self.api(&object);
        let before = api.get(&name).await.unwrap().metadata.uid;
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        api.delete(&name, &now).await.unwrap();
        until("the object is gone", async || {
            let there = api.get_opt(&name).await.unwrap();
            there.is_none_or(|there| there.metadata.uid != before).then_some(())
        })
        .await;
    }

    /// The objects of these kinds, each as `Kind name`, sorted. The kinds are given as `apiVersion Kind`.
    pub async fn names(&self, kinds: &[&str]) -> Vec<String> {
        let mut all = Vec::new();
        for one in kinds {
            let (version, kind) = one.split_once(' ').unwrap();
            let object = json!({"apiVersion": version, "kind": kind, "metadata": {}});
            let found = self.api(&object).0.list(&ListParams::default()).await.unwrap();
            let name = |one: &DynamicObject| one.metadata.name.clone().unwrap_or_default();
            all.extend(found.iter().map(|one| format!("{kind} {}", name(one))));
        }
        all.sort();
        all
    }

    /// `Some` if the API server serves the kind of an object.
    pub async fn serves(&self, object: &Value) -> Option<()> {
        let (api, _) = self.api(object);
        api.list(&ListParams::default()).await.ok().map(drop)
    }

    /// A token of a service account for an audience. If a pod is given, the token is bound to it.
    pub async fn token(
        &self,
        (namespace, account): (&str, &str),
        audience: Option<&str>,
        pod: Option<&str>,
    ) -> String {
        let bound = match pod {
            None => Value::Null,
            Some(name) => {
                let at = json!({"apiVersion": "v1", "kind": "Pod",
                    "metadata": {"name": name, "namespace": namespace}});
                let uid = self.get(at).await.unwrap().metadata.uid;
                json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid})
            }
        };
        let audiences: Vec<&str> = audience.into_iter().collect();
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": audiences, "expirationSeconds": 3600, "boundObjectRef": bound}});
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.admin.clone(), namespace);
        let made: Value = accounts
            .create_subresource("token", account, &PostParams::default(), &request)
            .await
            .unwrap();
        made["status"]["token"].as_str().unwrap().to_owned()
    }

    fn api(&self, object: &Value) -> (Api<DynamicObject>, String) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let version = text(&object["apiVersion"]);
        let (group, version) = version.split_once('/').unwrap_or(("", &version));
        let kind = GroupVersionKind::gvk(group, version, &text(&object["kind"]));
        let resource = ApiResource::from_gvk(&kind);
        let api = match text(&object["metadata"]["namespace"]).as_str() {
            "" => Api::all_with(self.admin.clone(), &resource),
            namespace => Api::namespaced_with(self.admin.clone(), namespace, &resource),
        };
        (api, text(&object["metadata"]["name"]))
    }

    async fn ready(&mut self) {
        let (directory, server) = (self.directory.path().to_owned(), &mut self.server);
        let admin = &self.admin;
        until("the API server is ready", async || {
            let ended = server.as_mut().unwrap().try_wait().unwrap();
            let log = || fs::read_to_string(directory.join("server.log")).unwrap_or_default();
            assert!(ended.is_none(), "the API server has ended: {}", log());
            let request = http::Request::get("/readyz").body(Vec::new()).unwrap();
            admin.request_text(request).await.ok()
        })
        .await;
    }
}

impl Drop for TestApiServer {
    fn drop(&mut self) {
        for child in self.server.iter_mut().chain([&mut self.etcd]) {
            // A process that has already ended needs no treatment, and other errors could not be handled here.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The users of the API server besides service accounts, each with a token.
fn users() -> String {
    let kubelet =
        |node| format!("{},system:node:{node},{node},\"system:nodes\"\n", kubelet_token(node));
    let kubelets: String = NODES.into_iter().map(kubelet).collect();
    format!("{ADMIN},admin,1,\"system:masters\"\n{kubelets}")
}

fn kubelet_token(node: &str) -> String {
    format!("kubelet-of-{node}-of-the-test")
}

fn api_server(kube: &Path, path: &Path, (port, flags): (u16, &[String])) -> Child {
    let log = File::options().create(true).append(true).open(path.join("server.log")).unwrap();
    let has_mode = flags.iter().any(|flag| flag.starts_with("--authorization-mode="));
    let mode = (!has_mode).then_some("--authorization-mode=Node,RBAC");
    let file = |flag: &str, name: &str| format!("--{flag}={}", path.join(name).display());
    Command::new(kube)
        .args(["kube-apiserver", "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
        // No Service leads to the API server, and it refuses endpoints on loopback.
        .arg("--endpoint-reconciler-type=none")
        .arg(format!("--secure-port={port}"))
        .arg("--permit-port-sharing=true")
        .arg(format!("--etcd-servers=unix://{}", path.join("etcd.sock").display()))
        .arg(file("cert-dir", "certs"))
        .arg(file("service-account-key-file", "tokens.pub"))
        .arg(file("service-account-signing-key-file", "tokens.key"))
        .arg(file("token-auth-file", "users.csv"))
        .arg(file("audit-policy-file", audit::POLICY))
        .arg(file("audit-log-path", audit::LOG))
        .args(["--service-account-issuer=https://kubernetes.default.svc"])
        .arg("--service-cluster-ip-range=10.96.0.0/16")
        .args(mode)
        .arg("--enable-admission-plugins=NodeRestriction")
        .arg("--allow-privileged=true")
        .args(["--profiling=false"])
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Writes a kubeconfig with this token.
fn kubeconfig(directory: &Path, name: &str, port: u16, token: &str) -> PathBuf {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": directory.join("certs/apiserver.crt"),
        }}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    });
    let path = directory.join(name);
    fs::write(&path, config.to_string()).unwrap();
    path
}
