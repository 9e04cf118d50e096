//! Tests that fetched documents survive a restart of all replicas while their source is unreachable.

use std::process::{Child, Command, Stdio};

use leno_testkit_api::{TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::policies::says;
use crate::replica::Replica;
use crate::rotation::identity;
use crate::{cluster, leads, run_pod};

/// A URL from which nothing is ever fetched: the control plane does not connect to addresses of its own machine.
const URL: &str = "https://127.0.0.1:1/keys";
/// The SHA-256 of [`URL`], under which its document is stored.
const DOCUMENT: &str = "bd46d63fa0dc23aae735df215884b84f5c8faa9066bcd7e28f4f45dc2c36d0fd";
const SET: &str = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc"}]}"#;

fn kept(name: &str, data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": name, "namespace": "leno-system"}, "stringData": data})
}

/// The names of the documents in a Secret.
async fn documents(bed: &TestApiServer, name: &str) -> Vec<String> {
    let secret = bed.get(kept(name, &json!({}))).await;
    let data = secret.as_ref().and_then(|secret| secret.data.get("data")?.as_object());
    data.into_iter().flatten().map(|(name, _)| name.clone()).collect()
}

/// Waits until the leading replica reports that this many of the documents that belong into a Secret are stored in it.
async fn is_stored(replica: &Replica, name: &str, count: u64) {
    let stored = format!("leno_control_kept_documents{{secret=\"{name}\",state=\"stored\"}}");
    until("the documents to be stored", async || {
        (replica.metric(&stored).await as u64 == count).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_tokens_survive_a_restart_of_the_control_plane_without_their_issuer() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    bed.merge(
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "leno-system"}}),
        json!({"metadata": {"annotations": {"leno.dev/keys-from": "https://127.0.0.1:1"}}}),
    )
    .await;
    let policy = json!({"apiVersion": "leno.dev/v1alpha1", "kind": "AuthorizationPolicy",
        "metadata": {"name": "users", "namespace": "shop"},
        "spec": {"selector": {}, "rules": [{}],
            "tokens": [{"issuer": "https://id.example.com", "audiences": ["a"], "jwksUrl": URL}]}});
    until("the kind is served", async || bed.serves(&policy).await).await;
    bed.apply(policy.clone()).await;
    run_pod(&bed, "web-0", "10.244.0.7").await;
    let first = Replica::start("controller-0", &kubeconfig);
    leads(&first).await;
    let lacks =
        [("Accepted", ""), ("ResolvedRefs", "KeysNotFound"), ("Programmed", "KeysNotFound")];
    says(&bed, &policy, &lacks).await;

    // The Secret is as an earlier leader that fetched the set has left it. Another client has added a field.
    let data = json!({DOCUMENT: SET, "0".repeat(64): SET, "other": "x"});
    bed.apply(kept("leno-keys", &data)).await;
    first.end();
    let second = Replica::start("controller-1", &kubeconfig);
    leads(&second).await;
    let good = [("Accepted", ""), ("ResolvedRefs", ""), ("Programmed", "")];
    says(&bed, &policy, &good).await;
    is_stored(&second, "leno-keys", 3).await;
    let has = async || documents(&bed, "leno-keys").await.iter().any(|name| name == DOCUMENT);
    assert!(has().await);

    // A document that no policy names any more is kept for ten minutes, so the next replica still finds it.
    bed.delete(policy.clone()).await;
    second.end();
    let third = Replica::start("controller-2", &kubeconfig);
    leads(&third).await;
    is_stored(&third, "leno-keys", 3).await;
    assert!(has().await);
    bed.apply(policy.clone()).await;
    says(&bed, &policy, &good).await;
    third.end();
}

/// A control plane of another trust domain, which serves its bundle.
struct Partner {
    child: Child,
    place: tempfile::TempDir,
}

impl Partner {
    fn start() -> Self {
        let place = tempfile::tempdir().unwrap();
        let documents = place.path().join("documents");
        std::fs::create_dir(&documents).unwrap();
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                       spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n";
        std::fs::write(documents.join("mesh.yaml"), service).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_leno-controller"))
            .args(["--trust-domain", "partner.example", "--listen", "127.0.0.1:0", "--log", "info"])
            .args(["--bundle-endpoint", "127.0.0.1:0", "--bundle-refresh", "1s"])
            .arg("--files")
            .arg(documents)
            .arg("--ca-dir")
            .arg(place.path().join("ca"))
            .arg("--roots-file")
            .arg(place.path().join("roots.pem"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(place.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { child, place }
    }

    /// The address on which the partner serves its bundle.
    async fn address(&self) -> String {
        until("the partner's bundle endpoint", async || {
            let log = std::fs::read_to_string(self.place.path().join("log")).unwrap();
            let line = log.lines().find(|line| line.contains("serving the trust bundle"))?;
            self.place.path().join("roots.pem").exists().then_some(())?;
            Some(line.split("address=").nth(1).unwrap().trim().to_owned())
        })
        .await
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        // The process has already ended if the test succeeded.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetched_trust_bundles_survive_a_restart_of_the_control_plane_without_their_endpoint() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let partner = Partner::start();
    let address = partner.address().await;
    let given = kubeconfig.with_file_name("given.pem");
    std::fs::copy(partner.place.path().join("roots.pem"), &given).unwrap();
    let federate = format!(
        "partner.example=https://{address}/;spiffe-id=spiffe://partner.example/leno/control-plane;bundle={}",
        given.display()
    );
    let first = Replica::start_with("controller-0", &kubeconfig, &["--federate", &federate]);
    leads(&first).await;
    let names = until("the bundle to be kept", async || {
        Some(documents(&bed, "leno-bundles").await).filter(|names| !names.is_empty())
    });
    assert_eq!(names.await, ["partner.example.json"]);
    let roots =
        async |replica: &Replica| identity(replica).await["federated"]["partner.example"].clone();
    let fetched = roots(&first).await;
    assert_eq!(fetched.as_array().unwrap().len(), 1);
    first.end();
    drop(partner);

    // The file with the partner's roots is removed, so that only the Secret still has them.
    std::fs::remove_file(&given).unwrap();
    let second = Replica::start_with("controller-1", &kubeconfig, &["--federate", &federate]);
    leads(&second).await;
    assert_eq!(roots(&second).await, fetched);
    is_stored(&second, "leno-bundles", 1).await;
    // A replica does not change stored documents that it has not fetched itself.
    let writes = "leno_control_kept_writes_total{result=\"written\"}";
    assert_eq!(second.metric(writes).await as u64, 0);
    assert_eq!(documents(&bed, "leno-bundles").await, ["partner.example.json"]);
    second.end();
}
