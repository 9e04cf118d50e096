//! Tests `leno-controller observe` with the rights that the chart grants. The main subject is which namespaces it
//! shows to which reader.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use leno_dashboard::api::{Edge, Topology};
use leno_testkit_api::objects::{pod, service};
use leno_testkit_api::{LIMIT, TestApiServer, binary, until};
use serde_json::{Value, json};

use crate::installed;

mod browser;
mod calls;

/// The observer; killed when the test ends.
struct Observer {
    child: Child,
    /// The addresses of its interface and of its metrics.
    addresses: [String; 2],
}

impl Observer {
    fn start(kubeconfig: &Path, history: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_leno-controller"))
            .args(["--log", "info", "observe", "--serve", "127.0.0.1:0", "--pages", "127.0.0.1:0"])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--history")
            .arg(history)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let log = BufReader::new(child.stderr.take().unwrap());
        // The thread ends with the observer.
        std::thread::spawn(move || {
            for line in log.lines().map_while(Result::ok) {
                eprintln!("observer: {line}");
                // Sending fails only after the test has ended.
                let _ = sender.send(line);
            }
        });
        let addresses = ["serving the history", "serving /metrics"].map(|wanted| {
            loop {
                let line = lines.recv_timeout(LIMIT).unwrap();
                if let Some((_, address)) = line.split_once(wanted).and(line.split_once("address="))
                {
                    break address.trim().to_owned();
                }
            }
        });
        Self { child, addresses }
    }

    /// The status and the body of a page of the interface, requested with this token.
    async fn ask(&self, path: &str, token: Option<&str>) -> (u16, String) {
        let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let bearer = bearer.unwrap_or_default();
        until("an answer of the API server", async || {
            let (status, body) = get(&self.addresses[0], path, &bearer);
            (status != 503).then_some((status, body))
        })
        .await
    }

    /// What the reader with this token sees of the last minute.
    async fn topology(&self, token: &str) -> Topology {
        let (status, body) = self.ask("/api/v1/topology?window=60000", Some(token)).await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The changes that the reader with this token sees.
    async fn changes(&self, token: &str) -> String {
        self.ask("/api/v1/changes?from=0", Some(token)).await.1
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // The process has already ended if the test stopped it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn get(address: &str, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), body.to_owned())
}

/// The admin server of a proxy, on loopback at the port that all proxies use. Each response reports more requests
/// than the one before, all to `server`.
async fn proxy(namespace: &'static str, client: &'static str, server: &'static str) -> IpAddr {
    pages(leno_types::ports::ADMIN, move |nth| {
        let labels = format!(
            "direction=\"outbound\",client=\"{client}\",client_namespace=\"{namespace}\",server=\"{server}\",\
             server_namespace=\"bank\",service=\"\",mtls=\"true\""
        );
        let policies = [("shop/own", 4), ("bank/own", 9)].map(|(policy, count)| {
            format!("leno_authorization_total{{decision=\"deny\",policy=\"{policy}\"}} {count}\n")
        });
        format!(
            "leno_requests_total{{{labels},status=\"503\"}} {}\nleno_discovery_connected 1\n{}",
            50 * nth,
            policies.concat()
        )
    })
    .await
}

/// The admin server of an agent. Each response reports more bytes than the one before.
async fn agent() -> IpAddr {
    pages(leno_types::ports::AGENT_ADMIN, |nth| {
        let pairs = [("shop", "web-0", "ledger-0"), ("bank", "teller-0", "ledger-0")];
        let line = |(namespace, workload, peer)| {
            format!(
                "leno_flow_bytes_total{{namespace=\"{namespace}\",workload=\"{workload}\",peer_namespace=\"bank\",\
                 peer_workload=\"{peer}\",role=\"client\",socket=\"proxy\",direction=\"sent\"}} {}\n",
                100 * nth
            )
        };
        format!("leno_flow_level{{level=\"full\"}} 1\n{}", pairs.map(line).concat())
    })
    .await
}

/// Serves pages on loopback at this port. `page` gets the number of the response.
async fn pages(port: u16, page: impl Fn(u32) -> String + Send + 'static) -> IpAddr {
    // Each server gets a random loopback address, because tests run at the same time and need the same port. A
    // server that listens on all addresses occupies the port on all of them until it ends.
    let listener = until("a free address", async || {
        let mut random = [0; 3];
        aws_lc_rs::rand::fill(&mut random).unwrap();
        let address = Ipv4Addr::new(127, 1 + random[0] % 250, random[1], 1 + random[2] % 250);
        TcpListener::bind((address, port)).ok()
    })
    .await;
    let address = listener.local_addr().unwrap().ip();
    std::thread::spawn(move || {
        let mut nth = 0;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            while head.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            nth += 1;
            let body = page(nth);
            // Fails if the observer was killed and does not read the page.
            let _ =
                write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    address
}

/// A pod with a proxy at this address.
async fn run_pod(bed: &TestApiServer, namespace: &str, name: &str, address: IpAddr) {
    let mut made = pod(name, &address.to_string());
    made["metadata"]["namespace"] = namespace.into();
    bed.apply(made.clone()).await;
    bed.set_status(made).await;
}

/// Creates a service account that may read the mesh in these namespaces, and returns its token.
async fn reader(
    bed: &TestApiServer,
    name: &str,
    namespaces: &[&str],
    audience: Option<&str>,
) -> String {
    let metadata = json!({"name": name, "namespace": "people"});
    bed.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})).await;
    for namespace in namespaces {
        let subjects = json!([{"kind": "ServiceAccount", "name": name, "namespace": "people"}]);
        bed.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "forward"}}))
            .await;
    }
    bed.token(("people", name), audience, None).await
}

fn ends(edges: &[Edge]) -> Vec<String> {
    let mut ends: Vec<String> = edges
        .iter()
        .map(|one| {
            format!(
                "{}/{} {}/{}",
                one.client_namespace, one.client, one.server_namespace, one.server
            )
        })
        .collect();
    ends.sort();
    ends
}

/// Installs the documents of the chart, and two namespaces whose pods call each other.
async fn two_namespaces(bed: &TestApiServer) {
    bed.apply_yaml(&installed(|kind| !kind.ends_with("WebhookConfiguration"))).await;
    for namespace in ["shop", "bank", "people"] {
        bed.apply(
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}),
        )
        .await;
    }
    bed.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "forward"},
        "rules": [{"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create"]}]}))
        .await;
    for namespace in ["shop", "bank"] {
        bed.apply(json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "web", "namespace": namespace}}))
            .await;
    }
    run_pod(bed, "shop", "web-0", proxy("shop", "web-0", "ledger-0").await).await;
    run_pod(bed, "bank", "teller-0", proxy("bank", "teller-0", "ledger-0").await).await;
    run_pod(bed, "bank", "ledger-0", proxy("bank", "ledger-0", "vault-0").await).await;
    let mut made = pod("leno-agent-x", &agent().await.to_string());
    made["metadata"]["namespace"] = "leno-system".into();
    made["metadata"]["labels"] = json!({"app.kubernetes.io/name": "leno-agent"});
    made["spec"]["serviceAccountName"] = "observer".into();
    made["spec"]["initContainers"] = json!([]);
    bed.apply(made.clone()).await;
    bed.set_status(made).await;
    for namespace in ["shop", "bank"] {
        bed.apply(json!({"apiVersion": "leno.dev/v1alpha1", "kind": "AuthorizationPolicy",
            "metadata": {"name": "own", "namespace": namespace},
            "spec": {"selector": {"matchLabels": {}}, "rules": [{"from": [{"serviceAccounts": ["x"]}]}]}}))
            .await;
    }
}

/// Asserts that a request without a valid token gets no data.
async fn refuses_others(bed: &TestApiServer, observer: &Observer) {
    for (token, why) in [
        (None, "requires a token"),
        (Some("x"), "does not accept the token"),
        (Some(&*bed.token(("people", "of-shop"), Some("vault"), None).await), "does not accept"),
    ] {
        let (status, body) = observer.ask("/api/v1/overview", token).await;
        assert!(status == 401 && body.contains(why), "{status} {body}");
    }
    assert_eq!(observer.ask("/", None).await.0, 200, "the page itself has nothing of the mesh");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_the_namespaces_in_which_the_api_server_lets_them_forward_ports() {
    let Some(kube) = binary() else { return };
    let bed = TestApiServer::start(&kube).await;
    two_namespaces(&bed).await;

    // The observer's account has only the rights that the chart grants.
    let own = bed.token(("leno-system", "observer"), None, None).await;
    let kubeconfig = bed.kubeconfig("observer.kubeconfig", bed.port, &own);
    let directory = tempfile::tempdir().unwrap();
    let history = directory.path().join("history");
    let observer = Observer::start(&kubeconfig, &history);

    let all =
        ["bank/ledger-0 bank/vault-0", "bank/teller-0 bank/ledger-0", "shop/web-0 bank/ledger-0"];
    let everything = bed.token(("leno-system", "observer"), Some("leno-observer"), None).await;
    until("all edges", async || {
        let edges = observer.topology(&everything).await.edges;
        (ends(&edges) == all).then_some(())
    })
    .await;
    let shop = reader(&bed, "of-shop", &["shop"], None).await;
    // An edit is reported as a change in the namespace of its object. The observer may not follow services yet at
    // the first edit, so edits are repeated.
    bed.apply(service("web", 80)).await;
    let mut edits = 0;
    until("the edit", async || {
        edits += 1;
        let annotations = json!({"example.com/edit": edits.to_string()});
        bed.merge(service("web", 80), json!({"metadata": {"annotations": annotations}})).await;
        observer.changes(&shop).await.contains("Service shop/web ").then_some(())
    })
    .await;
    assert!(observer.changes(&everything).await.contains("Service shop/web "));
    let seen = observer.topology(&shop).await;
    assert_eq!(ends(&seen.edges), ["shop/web-0 /(other namespaces)"]);
    let names: Vec<&str> = seen.workloads.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["web-0"]);
    assert!(
        seen.problems.iter().any(|one| one.title.contains("from shop/web-0")),
        "{:?}",
        seen.problems
    );
    shows_shop_alone(&observer, &shop).await;

    let both = reader(&bed, "of-both", &["shop", "bank"], Some("leno-observer")).await;
    // The API server may use new bindings with a delay, and the observer caches its answers for half a minute.
    until("both namespaces", async || {
        (ends(&observer.topology(&both).await.edges) == all).then_some(())
    })
    .await;
    let stranger = reader(&bed, "of-nothing", &[], None).await;
    assert!(!observer.changes(&stranger).await.contains("web"));
    let seen = observer.topology(&stranger).await;
    assert!(seen.edges.is_empty() && seen.workloads.is_empty(), "{seen:?}");
    shows_to_each_their_own(&observer, (&both, &stranger)).await;
    refuses_others(&bed, &observer).await;

    // After a right is withdrawn, the reader loses access within half a minute.
    bed.delete(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "of-shop", "namespace": "shop"}}))
        .await;
    until("nothing is seen", async || {
        observer.topology(&shop).await.workloads.is_empty().then_some(())
    })
    .await;

    // An observer that is started later has the history of this one.
    let (_, before) = observer.ask("/api/v1/overview", Some(&everything)).await;
    let before: Value = serde_json::from_str(&before).unwrap();
    drop(observer);
    let observer = Observer::start(&kubeconfig, &history);
    let (_, after) = observer.ask("/api/v1/overview", Some(&everything)).await;
    let after: Value = serde_json::from_str(&after).unwrap();
    assert_eq!(after["from_ms"], before["from_ms"]);
    until("it observes", async || {
        let (_, page) = get(&observer.addresses[1], "/metrics", "");
        page.contains("leno_observer_proxies{result=\"answered\"} 3\n").then_some(())
    })
    .await;
    is_documented(&get(&observer.addresses[1], "/metrics", "").1);
}

/// Checks what a reader of the namespace `shop` gets, as JSON, over gRPC and in a browser.
async fn shows_shop_alone(observer: &Observer, token: &str) {
    shows_the_present(observer, token).await;
    shows_no_bank(observer, token).await;
    let address = &observer.addresses[0];
    calls::show_shop_alone(address, token).await;
    browser::drives_the_pages(address, token, "shop", "bank,ledger,vault,teller").await;
}

/// Checks the same for a reader of both namespaces, and for a reader of neither.
async fn shows_to_each_their_own(observer: &Observer, (both, stranger): (&str, &str)) {
    let address = &observer.addresses[0];
    browser::drives_the_pages(address, both, "shop,bank", "").await;
    calls::show_others_nothing(address, stranger).await;
    browser::drives_the_pages(address, stranger, "", "shop,bank,ledger,vault,teller").await;
}

/// Checks the present state that the reader gets: the proxy, the policy and the connections of the namespace
/// `shop`.
async fn shows_the_present(observer: &Observer, token: &str) {
    let page = async |path: &str| -> Value {
        let (status, body) = observer.ask(&format!("/api/v1/{path}"), Some(token)).await;
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    };
    let proxies = page("proxies").await;
    let instances: Vec<&Value> =
        proxies["proxies"].as_array().unwrap().iter().map(|one| &one["instance"]).collect();
    assert_eq!(instances, ["web-0"]);
    assert_eq!(proxies["proxies"][0]["state"]["connected"], true);
    until("the policy", async || {
        let policies = page("policies").await;
        let own = &policies["policies"][0];
        let is_matched = own["workloads"] == json!([["shop", "web-0"]]);
        (is_matched && own["decisions"] == json!({"deny": 4})).then_some(())
    })
    .await;
    until("connections", async || {
        let flows = page("flows").await;
        let row = &flows["flows"][0];
        let ends =
            (&row["workload"], &row["peer"]) == (&"web-0".into(), &"(other namespaces)".into());
        (ends && flows["level"] == "full" && flows["flows"].as_array().unwrap().len() == 1)
            .then_some(())
    })
    .await;
}

/// Checks that no answer for this token names the namespace `bank` or an object in it.
async fn shows_no_bank(observer: &Observer, token: &str) {
    let paths = [
        "overview",
        "topology?window=60000",
        "routes",
        "changes?from=0",
        "proxies",
        "policies",
        "flows",
        "flows?namespaces=bank,shop",
    ];
    for path in paths {
        let (status, body) = observer.ask(&format!("/api/v1/{path}"), Some(token)).await;
        assert_eq!(status, 200, "{path}: {body}");
        for hidden in ["bank", "ledger", "vault", "teller"] {
            assert!(!body.contains(hidden), "{path} shows {hidden}: {body}");
        }
    }
    let (status, _) = observer.ask("/api/v1/series?workload=bank/ledger-0", Some(token)).await;
    assert_eq!(status, 404, "as of a workload that does not exist");
}

/// Checks that the guide describes every metric of the page.
fn is_documented(page: &str) {
    for family in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = family.split(' ').next().unwrap();
        let guide = crate::GUIDE.iter().any(|text| text.contains(&format!("`{name}`")));
        assert!(guide, "the guide has no {name}");
    }
}
