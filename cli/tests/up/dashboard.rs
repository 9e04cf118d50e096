//! Tests the dashboard and the history behind it, with a real mesh and a real browser.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use leno_dashboard::api::{ProblemSubject, Signals, Topology};
use leno_dashboard::inventory::{Flows, Policies, Proxies};
use leno_local::status::MeshStatus;
use leno_observe::stat::ProxyReport;
use leno_testkit::browser::Browser;
use leno_testkit::{command, tools};

use crate::mesh::{Mesh, out, root, with_server};

/// `front` calls `web` and `cart` through their services. After an edit, `cart` answers the path that `front`
/// requests with failures.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: front, namespace: shop}
spec:
  command: [sh, -c, 'while :; do curl -s -m 20 -o /dev/null http://web:8080/ http://cart:8080/@PATH@; sleep 0.05; done']
  dependsOn: {web: {condition: ready}, cart: {condition: ready}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [python3, -c, @SERVER@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: shop}
spec: {command: [python3, -c, @SERVER@], ports: [{port: 8080, appProtocol: http}]}
";

fn documents(path: &str) -> String {
    with_server(&MESH.replace("@PATH@", path))
}

/// The topology of the last half minute.
fn topology(mesh: &Mesh) -> Option<Topology> {
    mesh.observed("/api/v1/topology?window=30000")
}

fn stat(mesh: &Mesh) -> serde_json::Value {
    let mut stat = mesh.leno(&["stat", "--name", mesh.name(), "--since", "30s", "-o", "json"]);
    let output = stat.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn served(topology: &Topology, server: &str) -> u64 {
    let all = topology.edges.iter().filter(|edge| edge.server == server);
    all.map(|edge| edge.signals.requests).sum()
}

#[test]
fn the_history_has_rates_problems_and_changes_and_survives_its_observer() {
    let Some(mesh) = root(|| Mesh::start(&documents("ok"))) else { return };
    let well = |now: Topology| served(&now, "cart") > 0 && now.problems.is_empty();
    mesh.wait_for("traffic and no problem", || topology(&mesh).is_some_and(well));
    assert_eq!(topology(&mesh).unwrap().workloads.len(), 3);

    let past = stat(&mesh);
    let edges = past["edges"].as_array().unwrap();
    let cart = edges.iter().find(|edge| edge["server"] == "cart").unwrap();
    assert_eq!((&cart["success_rate"], &cart["mtls"]), (&1.0.into(), &true.into()), "{past}");
    // The client waits 50 ms after each request, so the figure must be a rate and not a total.
    let rate = cart["requests_per_s"].as_f64().unwrap();
    assert!(rate > 0.0 && rate <= 20.0, "{past}");

    let why = || {
        let output = mesh.run(&["why"]);
        (output.status.code(), out(&output))
    };
    mesh.wait_for("no problem", || why() == (Some(0), "nothing is broken\n".to_owned()));

    mesh.edit(&documents("fail"));
    let failing = |one: &leno_dashboard::api::Problem| {
        let is_cart = matches!(&one.about, ProblemSubject::Edge { server, .. } if server == "cart");
        is_cart && one.since_ms.is_some()
    };
    mesh.wait_for("the problem", || {
        topology(&mesh).is_some_and(|now| now.problems.iter().any(failing))
    });
    let (code, text) = why();
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("from shop/front to shop/cart fail, for "), "{text}");
    assert!(text.contains(" of them by the application itself\n"), "{text}");
    assert!(text.contains(" s ago: Workload shop/front changed"), "{text}");
    let changes: serde_json::Value = mesh.observed("/api/v1/changes").unwrap();
    let line = changes["changes"][0]["lines"][0].as_str().unwrap();
    assert!(line.starts_with("Workload shop/front changed"), "{changes}");

    // A failure of the observer affects nothing but the observer itself, and its history is on disk.
    let count = |span: &str| {
        let target = format!("/api/v1/topology?window={span}");
        mesh.observed::<Topology>(&target).map(|now| served(&now, "web"))
    };
    let before = count("600000").unwrap();
    let observer = || {
        let group = leno_capture::cgroup2_root().unwrap();
        let group = mesh.layout().cgroup(&group).join("observer/cgroup.procs");
        let processes = std::fs::read_to_string(group).unwrap_or_default();
        processes.lines().next().and_then(|pid| pid.parse::<i32>().ok())
    };
    let first = observer().unwrap();
    mesh.kill_process(first);
    mesh.wait_for("another observer", || observer().is_some_and(|pid| pid != first));
    mesh.wait_for("its answer", || count("600000").is_some());
    assert!(count("600000").unwrap() >= before, "the history is gone");
    assert!(mesh.check().contains("ready"), "{}", mesh.check());
}

/// `customer` calls `front`, which calls `cart`, which never answers. `customer` also calls `locked`, whose policy
/// denies it.
const CHAIN: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: customer, namespace: shop}
spec: {command: [sh, -c, 'while :; do curl -s -m 3 -o /dev/null http://front:8080/; curl -s -o /dev/null http://locked:8080/; done']}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: front, namespace: shop}
spec: {command: [python3, -c, @FRONT@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: shop}
spec: {command: [python3, -c, @CART@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: locked, namespace: shop, labels: {app: locked}}
spec: {command: [python3, -m, http.server, '8080'], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: deaf, namespace: shop}
spec: {command: [sleep, '100000'], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: locked, namespace: shop}
spec:
  selector: {matchLabels: {app: locked}}
  rules: [{from: [{serviceAccounts: [others]}]}]
";

/// A program that answers 502 if `cart` does not answer within a second.
const FRONT: &str = "import http.server as h, urllib.request as u
class H(h.BaseHTTPRequestHandler):
    def do_GET(self):
        status = 200
        try: u.urlopen('http://cart:8080/', timeout=1).read()
        except Exception: status = 502
        self.send_response(status)
        self.send_header('content-length', '0')
        self.end_headers()
    def log_message(self, *a): pass
h.ThreadingHTTPServer(('', 8080), H).serve_forever()
";

/// A server that never answers.
const CART: &str = "import http.server as h, time
class H(h.BaseHTTPRequestHandler):
    def do_GET(self): time.sleep(1000)
    def log_message(self, *a): pass
h.ThreadingHTTPServer(('', 8080), H).serve_forever()
";

#[test]
fn why_names_the_server_that_hangs_and_what_a_policy_denies() {
    let chain = CHAIN.replace("@FRONT@", &format!("{FRONT:?}"));
    let chain = chain.replace("@CART@", &format!("{CART:?}"));
    let Some(mesh) = root(|| Mesh::start(&chain)) else { return };
    let why = || out(&mesh.run(&["why"]));
    let first =
        "broken   100.0 % of the requests from shop/front to shop/cart are given up before a";
    mesh.wait_for("the begin of the chain", || {
        let text = why();
        let has = |line: &str| text.contains(line);
        text.starts_with(first)
            && has("begins here: shop/customer -> shop/front -> shop/cart\n")
            && has("follows from what fails from shop/front to shop/cart\n")
            && has("requests from shop/customer to shop/locked denied by an authorization policy")
            && has("deaf-0: does not listen on port 8080\n")
    });
    let text = why();
    assert!(
        !text.lines().any(|line| line.starts_with("broken") && line.contains("locked")),
        "{text}"
    );

    // Requests from before all proxies listened must first leave the window.
    mesh.wait_for("denied requests to one server, and given up ones to the other", || {
        let Some(now) = topology(&mesh) else { return false };
        let is_all = |server: &str, of: fn(&Signals) -> u64| {
            let mut edges = now.edges.iter().filter(|edge| edge.server == server);
            edges.next().is_some_and(|edge| {
                let signals = &edge.signals;
                of(signals) == signals.requests && signals.success_rate.is_none()
            })
        };
        is_all("locked", |signals| signals.denied) && is_all("cart", |signals| signals.given_up)
    });

    if let Some(browser) = Browser::find_or_skip().unwrap() {
        let served = Served::start(&mesh);
        command::text(&mut served.drive("unanswered", &browser), STAGE).unwrap();
    }

    let refused = |arguments: &[&str]| {
        let output = mesh.run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    };
    refused(&["why", "-n", "nosuch"]);
    refused(&["flows", "nosuch"]);
    refused(&["flows", "cart-0"]);
    refused(&["flows", "--peer", "nosuch"]);
}

struct Served(Child, String);

impl Served {
    fn start(mesh: &Mesh) -> Self {
        Self::start_with(mesh, &[])
    }

    fn start_with(mesh: &Mesh, more: &[&str]) -> Self {
        let mut dashboard = mesh.leno(&["dashboard", "--name", mesh.name()]);
        dashboard.args(["--listen", "127.0.0.1:0"]).args(more).stdout(Stdio::piped());
        let mut child = dashboard.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (_, address) = line.trim().split_once(": ").unwrap();
        Self(child, address.to_owned())
    }

    /// The command of the browser's driver for one stage.
    fn drive(&self, stage: &str, browser: &Browser) -> Command {
        let mut node = browser.run("browser.mjs");
        node.args([stage, &self.1]);
        node
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// How long the browser may take for one stage.
const STAGE: Duration = Duration::from_secs(600);

#[test]
fn the_dashboard_shows_the_rules_of_routes_and_live_requests_in_a_browser() {
    let Some(browser) = Browser::find_or_skip().unwrap() else { return };
    let Some(mesh) = root(|| Mesh::start(crate::stat::ROUTED)) else { return };
    mesh.wait_for("requests by all rules", || {
        let routes = mesh.observed::<leno_dashboard::api::Routes>("/api/v1/routes?window=60000");
        routes.is_some_and(|now| now.routes.len() >= 3)
    });
    let served = Served::start(&mesh);
    command::text(&mut served.drive("routes", &browser), STAGE).unwrap();
    let served = Served::start_with(&mesh, &["--tap"]);
    command::text(&mut served.drive("live", &browser), STAGE).unwrap();
}

/// grpcurl learns the methods by reflection, so it calls the methods that the dashboard itself describes.
#[test]
fn the_dashboard_answers_a_client_of_grpc() {
    let Some(tools) = tools::install_or_skip("grpcurl").unwrap() else { return };
    let Some(mesh) = root(|| Mesh::start(&documents("ok"))) else { return };
    mesh.wait_for("traffic", || topology(&mesh).is_some_and(|now| served(&now, "cart") > 0));
    let dashboard = Served::start_with(&mesh, &["--tap"]);
    let (address, token) = dashboard.1.split_once("/#token=").unwrap();
    let address = address.strip_prefix("http://").unwrap();
    let call = |token: &str, message: &str, method: &str| {
        let mut grpcurl = Command::new(tools.join("grpcurl"));
        grpcurl.args([
            "-plaintext",
            "-max-time",
            "60",
            "-H",
            &format!("authorization: Bearer {token}"),
        ]);
        let method = format!("leno.dashboard.v1.Dashboard/{method}");
        grpcurl.args(["-d", message, address, &method]).output().unwrap()
    };
    let get = |message: &str, method: &str| -> serde_json::Value {
        let answered = call(token, message, method);
        assert!(answered.status.success(), "{method}: {answered:?}");
        serde_json::from_slice(&answered.stdout).unwrap()
    };
    let topology = get(r#"{"window": 60000}"#, "GetTopology");
    let edges = topology["edges"].as_array().unwrap();
    let cart = edges.iter().find(|edge| edge["server"] == "cart").unwrap();
    assert_eq!((&cart["client"], &cart["mtls"]), (&"front".into(), &"MTLS_ALL".into()), "{cart}");
    assert!(cart["signals"]["successRate"].is_number(), "{cart}");
    assert_eq!(get("{}", "GetProxies")["proxies"].as_array().unwrap().len(), 3);
    // The process is ended once it has printed the first request.
    let mut grpcurl = Command::new(tools.join("grpcurl"));
    grpcurl.args(["-plaintext", "-max-time", "600"]);
    grpcurl.args(["-H", &format!("authorization: Bearer {token}")]);
    let message = r#"{"workload": "shop/front"}"#;
    grpcurl.args(["-d", message, address, "leno.dashboard.v1.Dashboard/Tap"]);
    let mut tapping = Served(grpcurl.stdout(Stdio::piped()).spawn().unwrap(), String::new());
    let lines = BufReader::new(tapping.0.stdout.take().unwrap()).lines();
    let shown = lines.map_while(Result::ok).any(|one| one.contains(r#""client": "shop/front-0""#));
    assert!(shown, "the call ended without a request");
    drop(tapping);
    let refused = call("x", "{}", "GetOverview");
    assert!(
        !refused.status.success()
            && String::from_utf8_lossy(&refused.stderr).contains("Unauthenticated"),
        "{refused:?}"
    );
    let unknown = call(token, r#"{"kind": "HTTPRoute", "name": "shop/none"}"#, "GetDocument");
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("NotFound"), "{unknown:?}");
}

#[test]
fn the_dashboard_shows_what_there_is_now_in_a_browser() {
    let Some(browser) = Browser::find_or_skip().unwrap() else { return };
    let chain = CHAIN.replace("@FRONT@", &format!("{FRONT:?}"));
    let chain = chain.replace("@CART@", &format!("{CART:?}"));
    let Some(mesh) = root(|| Mesh::start(&chain)) else { return };
    mesh.wait_for("a denied request", || {
        let policies: Option<Policies> = mesh.observed("/api/v1/policies?window=60000");
        policies.is_some_and(|now| now.policies.iter().any(|one| !one.denied.is_empty()))
    });
    let policies: Policies = mesh.observed("/api/v1/policies?window=60000").unwrap();
    let [locked] = policies.policies.as_slice() else { panic!("{policies:?}") };
    assert_eq!(locked.selection.workloads, [("shop".to_owned(), "locked".to_owned())]);
    assert_eq!(locked.denied[0].client, "customer");
    mesh.wait_for("its decisions", || {
        let policies: Option<Policies> = mesh.observed("/api/v1/policies?window=60000");
        policies.is_some_and(|now| now.policies[0].decisions.contains_key("not-allowed"))
    });
    let proxies: Proxies = mesh.observed("/api/v1/proxies").unwrap();
    let is_current = |one: &ProxyReport| {
        let state = one.state.as_ref();
        state.is_some_and(|state| {
            state.connected == Some(true) && state.certificate_ends_s.is_some()
        })
    };
    assert_eq!(proxies.proxies.iter().filter(|one| is_current(one)).count(), 5, "{proxies:?}");
    // If the kernel accounts for connections, the page shows them; otherwise it shows the reason.
    let accounts = mesh.leno(&["flows", "--name", mesh.name()]).output().unwrap();
    let stage = if accounts.status.success() { "present" } else { "present_without_flows" };
    if accounts.status.success() {
        mesh.wait_for("connections", || {
            mesh.observed::<Flows>("/api/v1/flows").is_some_and(|now| !now.flows.is_empty())
        });
    }
    let served = Served::start(&mesh);
    command::text(&mut served.drive(stage, &browser), STAGE).unwrap();
}

#[test]
fn the_page_does_bounded_work_for_a_large_mesh() {
    let Some(browser) = Browser::find_or_skip().unwrap() else { return };
    let mut node = browser.run("large.mjs");
    node.arg("check");
    println!("{}", command::text(&mut node, STAGE).unwrap());
}

#[test]
fn the_dashboard_shows_the_mesh_in_a_browser() {
    let Some(browser) = Browser::find_or_skip().unwrap() else { return };
    let Some(mut mesh) = root(|| Mesh::start(&documents("ok"))) else { return };
    // Requests from before all proxies listened must first leave the window of the page. That shows that nothing
    // was broken before the edit.
    let of_page = || mesh.observed::<Topology>("/api/v1/topology?window=60000");
    let well = |now: Topology| served(&now, "cart") > 20 && now.problems.is_empty();
    mesh.wait_for("traffic and no problem", || of_page().is_some_and(well));
    mesh.edit(&documents("fail"));
    mesh.wait_for("failures", || {
        let bad = |edge: &leno_dashboard::api::Edge| edge.signals.statuses[4] > 20;
        topology(&mesh).is_some_and(|now| now.edges.iter().any(bad))
    });
    let served = Served::start(&mesh);
    command::text(&mut served.drive("mesh", &browser), STAGE).unwrap();

    // A control plane that ends repeatedly is started again after increasing delays.
    let controller = || MeshStatus::read(mesh.layout()).ok().and_then(|status| status.controller);
    for _ in 0..13 {
        mesh.wait_for("the control plane", || controller().is_some());
        let pid = controller().unwrap();
        mesh.kill_process(pid);
        mesh.wait_for("its end", || controller() != Some(pid));
    }
    command::text(&mut served.drive("away", &browser), STAGE).unwrap();

    let mut open = served.drive("gone", &browser).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(open.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "open\n");
    mesh.kill();
    assert!(open.wait().unwrap().success());
}
