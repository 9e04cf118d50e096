//! Tests the replacement of a root and the revocation of certificates by several replicas that share a Secret.

use std::time::{Duration, Instant};

use leno_identity::Authority;
use leno_keys::{BundleEndpoint, EndpointServer};
use leno_spiffe::Bundle;
use leno_testkit_api::{LIMIT, TestApiServer, binary, until};
use leno_types::TrustDomain;
use serde_json::{Value, json};

use crate::kinds::own_pod;
use crate::proxy::{self, Proxy};
use crate::replica::Replica;
use crate::{cluster, run_pod};

/// The pause between two queries of a replica.
const POLL: Duration = Duration::from_millis(100);
/// Makes phases of a rotation short, because no kubelets have to update roots here.
pub(crate) const FLAGS: [&str; 2] = ["--phase-hold", "1s"];

pub(crate) async fn ask(bed: &TestApiServer, id: &str, verb: Value) {
    let request = json!({"id": id, "verb": verb}).to_string();
    bed.apply(json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "leno-identity", "namespace": "leno-system"},
        "data": {"request.json": request}}))
        .await;
}

pub(crate) async fn identity(replica: &Replica) -> Value {
    let page = replica.page("/identity").await;
    let (_, body) = page.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {page}"))
}

/// Waits until the report of a replica fits. The wait is longer than others, because a phase also waits for
/// replicas that have just started.
pub(crate) async fn is(replica: &Replica, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let begin = Instant::now();
    loop {
        let report = identity(replica).await;
        if fits(&report) {
            return report;
        }
        assert!(begin.elapsed() < 4 * LIMIT, "{what}: {report}");
        tokio::time::sleep(POLL).await;
    }
}

/// Three replicas, the first of which leads, with one proxy each.
async fn mesh(bed: &TestApiServer, kubeconfig: &std::path::Path) -> (Vec<Replica>, Vec<Proxy>) {
    let (mut replicas, mut proxies) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let name = format!("controller-{number}");
        bed.apply(own_pod(&name)).await;
        bed.set_status(own_pod(&name)).await;
        let replica = Replica::start_with(&name, kubeconfig, &FLAGS);
        replica.line("serving discovery and identity").await;
        if number == 0 {
            crate::leads(&replica).await;
        }
        let web = format!("web-{number}");
        run_pod(bed, &web, &format!("10.244.0.{}", 7 + number)).await;
        let token = bed.token(("shop", "web"), Some("leno"), Some(&web)).await;
        let proxy = Proxy::start(bed, &replica, &format!("shop/{web}"), &token).await;
        proxy.has_policy().await;
        replicas.push(replica);
        proxies.push(proxy);
    }
    (replicas, proxies)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_replace_the_root_while_one_is_killed_in_each_phase() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    let (mut replicas, proxies) = mesh(&bed, &kubeconfig).await;
    let before = identity(&replicas[0]).await;
    let old = proxy::roots(&bed).await;
    ask(&bed, "first", json!("begin")).await;
    for phase in ["add", "switch", "remove"] {
        for replica in &replicas[..2] {
            is(replica, phase, |report| report["phase"] == phase).await;
        }
        // Kills a replica that has a proxy. The proxies of the other replicas still acknowledge the bundles that
        // they receive.
        let killed = replicas.pop().unwrap();
        drop(killed);
        let waits = is(&replicas[0], "the leader to wait", |report| {
            report["phase"] != phase || report["waits"] != json!([])
        })
        .await;
        println!("{phase}: {}", waits["waits"]);
        let replica = Replica::start_with("controller-2", &kubeconfig, &FLAGS);
        replica.line("serving discovery and identity").await;
        replicas.push(replica);
    }
    let after = is(&replicas[0], "the end", |report| report["phase"] == "stable").await;
    assert_ne!((&after["issuer"], &after["bundle"]), (&before["issuer"], &before["bundle"]));
    assert_eq!(after["request"], json!({"id": "first", "refused": null}));
    let new = proxy::roots(&bed).await;
    assert_ne!(new, old);
    for replica in &replicas {
        let report = is(replica, "all to agree", |report| report["phase"] == "stable").await;
        assert_eq!((&report["issuer"], &report["bundle"]), (&after["issuer"], &after["bundle"]));
    }
    let maps = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "leno-roots", "namespace": "shop"}});
    let map = bed.get(maps).await.unwrap();
    assert_eq!(
        map.data["data"]["roots.pem"],
        json!(new),
        "starting proxies trust the new root alone"
    );
    assert!(proxies[0].is_connected() && proxies[1].is_connected());

    // Abort the rotation during its first phase.
    ask(&bed, "second", json!("begin")).await;
    is(&replicas[0], "add", |report| report["phase"] == "add").await;
    ask(&bed, "third", json!("abort")).await;
    is(&replicas[0], "the way back", |report| report["aborted"] == true).await;
    let back = is(&replicas[0], "the end", |report| report["phase"] == "stable").await;
    assert_eq!((&back["issuer"], &back["bundle"]), (&after["issuer"], &after["bundle"]));
    ask(&bed, "fourth", json!("abort")).await;
    let refused = is(&replicas[1], "no", |report| report["request"]["id"] == "fourth").await;
    assert_eq!(refused["request"]["refused"], "no rotation of the root is under way");

    // All replicas apply the revocation, whichever of them leads.
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    ask(&bed, "fifth", json!({"revoke": web})).await;
    for replica in &replicas {
        is(replica, "the revocation", |report| report["revoked"] == json!([web])).await;
    }
    // The next leader does not carry out the request a second time.
    drop(replicas.remove(0));
    crate::one_leads(&replicas).await;
    for replica in &replicas {
        assert_eq!(identity(replica).await["request"]["id"], "fifth");
    }
}

/// The roots that another trust domain fetches from a replica. The replica is verified with the roots that new
/// proxies get.
async fn published(bed: &TestApiServer, replica: &Replica) -> Option<Vec<Vec<u8>>> {
    let line = replica.line("serving the trust bundle").await;
    let address = line.split("address=").nth(1).unwrap().trim();
    let roots_der = Bundle::read(&proxy::roots(bed).await).unwrap().roots_der;
    let id = "spiffe://cluster.local/leno/control-plane";
    let server = EndpointServer::Identified { id, roots_der: &roots_der };
    let fetched = BundleEndpoint::new(&format!("https://{address}/")).unwrap().fetch(server).await;
    // During a rotation, the replica and the roots for new proxies change one after the other, so a fetch may
    // fail.
    fetched.ok().map(|bundle| bundle.roots_der)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_replica_publishes_the_roots_of_a_rotation_and_accepts_other_trust_domains() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = cluster(&kube).await;
    // The file is replaced in the way in which a mounted ConfigMap is updated.
    let file = kubeconfig.with_file_name("partner.pem");
    let partner = TrustDomain::new("partner.example").unwrap();
    std::fs::write(&file, Authority::new_root(&partner).unwrap().roots).unwrap();
    let federate = format!("partner.example={}", file.display());
    let serve = ["--bundle-endpoint", "127.0.0.1:0", "--bundle-refresh", "5s"];
    let flags = [&FLAGS[..], &serve, &["--federate", &federate]].concat();
    let mut replicas = Vec::new();
    for name in ["controller-0", "controller-1"] {
        bed.apply(own_pod(name)).await;
        bed.set_status(own_pod(name)).await;
        let replica = Replica::start_with(name, &kubeconfig, &flags);
        replica.line("serving discovery and identity").await;
        replicas.push(replica);
    }
    crate::one_leads(&replicas).await;
    let mut first = Vec::new();
    for replica in &replicas {
        let report = identity(replica).await;
        assert_eq!(report["federated"]["partner.example"].as_array().unwrap().len(), 1, "{report}");
        first = until("the root", async || published(&bed, replica).await).await;
        assert_eq!(first.len(), 1);
    }
    ask(&bed, "first", json!("begin")).await;
    let both = async |replica: &Replica| {
        let both = async || published(&bed, replica).await.filter(|roots| roots.len() == 2);
        until("both roots", both).await
    };
    // Queries both replicas at once, because each phase lasts only a short time.
    tokio::join!(both(&replicas[0]), both(&replicas[1]));
    for replica in &replicas {
        is(replica, "the end", |report| report["phase"] == "stable").await;
        let next = async || {
            let roots = published(&bed, replica).await?;
            (roots.len() == 1 && roots != first).then_some(())
        };
        until("the next root alone", next).await;
    }
}
