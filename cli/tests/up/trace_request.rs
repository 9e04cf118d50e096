//! Tests `leno trace-request` on a real mesh: a request with two hops, and no request at all.

use crate::mesh::{Mesh, err, out, root};

/// A server that passes the trace context on to `db`.
const WEB: &str = "import http.server as h, urllib.request as u
class H(h.BaseHTTPRequestHandler):
    def do_GET(self):
        context = {k: v for k, v in self.headers.items() if k.lower() in ('traceparent', 'tracestate')}
        u.urlopen(u.Request('http://db:8080/', headers=context)).read()
        self.send_response(200)
        self.send_header('content-length', '0')
        self.end_headers()
    def log_message(self, *a): pass
h.ThreadingHTTPServer(('', 8080), H).serve_forever()
";

/// `client` calls `web` over a route, and `web` calls `db`. `web` also makes calls that no request of `client`
/// causes.
const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/mtls: strict}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: db, namespace: shop, labels: {app: db}}
spec: {command: [python3, -m, http.server, '8080'], ports: [{name: http, port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [python3, -u, -c, @WEB@], ports: [{name: http, port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec:
  command:
  - bash
  - -c
  - |
    while sleep 0.1; do
      curl -s -m 5 -o /dev/null -H 'Authorization: Bearer hush' http://web:8080/work?token=hush
      curl -s -m 5 -o /dev/null http://web:8080/other
    done
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  rules: [{name: all, backendRefs: [{name: web, port: 8080}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: db, namespace: shop}
spec:
  selector: {matchLabels: {app: db}}
  rules: [{from: [{serviceAccounts: [default]}]}]
";

#[test]
fn one_request_is_followed_over_its_hops_with_what_was_decided_on_it() {
    let yaml = MESH.replace("@WEB@", &format!("{WEB:?}"));
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    // A request that arrives before its server listens has only one hop.
    mesh.wait_for("an answer", || {
        mesh.exec("client", &["curl", "-sf", "-o", "/dev/null", "http://web:8080/work"])
            .status
            .success()
    });
    let trace = |more: &[&str]| {
        let mut trace = mesh.leno(&["trace-request", "--name", mesh.name(), "client"]);
        trace.args(["--path", "/work", "--for", "60s"]).args(more).output().unwrap()
    };
    let traced = trace(&["-o", "json"]);
    assert_eq!(traced.status.code(), Some(0), "{traced:?}");
    let text = out(&traced);
    assert!(!text.contains("hush"), "{text}");
    let hops: serde_json::Value = serde_json::from_str(&text).unwrap();
    let hops = hops["hops"].as_array().unwrap();
    let ends = |hop: &serde_json::Value| {
        ["client", "server"].map(|name| hop[name].as_str().unwrap().to_owned())
    };
    let [first, second] = hops.as_slice() else { panic!("{text}") };
    assert_eq!(
        (ends(first), &first["depth"]),
        (["shop/client-0", "shop/web-0"].map(str::to_owned), &0.into())
    );
    assert_eq!(
        (ends(second), &second["depth"]),
        (["shop/web-0", "shop/db-0"].map(str::to_owned), &1.into())
    );

    let identity = "spiffe://cluster.local/ns/shop/sa/default";
    let decided = |hop: &serde_json::Value| -> Vec<String> {
        let all = hop["decisions"].as_array().unwrap().iter();
        let text = |one: &serde_json::Value, name: &str| one[name].as_str().unwrap().to_owned();
        all.map(|one| format!("{}: {}", text(one, "by"), text(one, "what"))).collect()
    };
    assert_eq!(
        decided(first),
        [
            "client proxy: follows HTTPRoute shop/web rule all".to_owned(),
            format!("client proxy: goes to shop/web-0, {identity}"),
            format!("server proxy: permits {identity}: no policy selects the workload"),
        ]
    );
    assert_eq!(
        decided(second),
        [
            format!("client proxy: goes to shop/db-0, {identity}"),
            format!("server proxy: permits {identity} by AuthorizationPolicy shop/db"),
        ]
    );
    for hop in hops {
        for part in
            ["total_us", "client_proxy_us", "network_us", "server_proxy_us", "application_us"]
        {
            assert!(hop["latency"][part].is_u64(), "{part}: {hop}");
        }
        assert_eq!(
            (&hop["client_identity"], &hop["mtls"]),
            (&identity.into(), &true.into()),
            "{hop}"
        );
    }
    let headers = first["headers"].as_array().unwrap();
    assert!(headers.contains(&serde_json::json!(["Authorization", "(masked)"])), "{headers:?}");

    // The text for people says the same; each run follows one request.
    let text = out(&trace(&["--to", "web"]));
    assert_eq!(text.matches("shop/client-0 -> shop/web-0").count(), 1, "{text}");
    assert!(text.contains("\n      server proxy at "), "the second hop is below the first: {text}");
    let log = mesh.run(&["logs", "--proxy", "client"]);
    assert!(out(&log).contains("a tap of live requests was opened"), "{log:?}");
}

/// A server whose answers have a longer body than is shown.
const TILL: &str = "import http.server as h
class H(h.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers['content-length']))
        body = b'receipt ' * 1000
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
h.ThreadingHTTPServer(('', 8080), H).serve_forever()
";

const SALE: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: till, namespace: shop}
spec: {command: [python3, -u, -c, @TILL@], ports: [{name: http, port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec:
  command: [sh, -c, 'while sleep 0.1; do curl -s -m 5 -o /dev/null -d item=1 http://till:8080/buy; done']
";

#[test]
fn bodies_are_shown_where_the_mesh_permits_it_and_nowhere_else() {
    let yaml = SALE.replace("@TILL@", &format!("{TILL:?}"));
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    let trace = |mesh: &Mesh, more: &[&str]| {
        let trace = ["trace-request", "client", "--for", "60s"];
        mesh.run(&[&trace[..], more].concat())
    };
    let refused = trace(&mesh, &["--bodies"]);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(err(&refused).contains("permit it with leno up --tap-bodies"), "{refused:?}");

    drop(mesh);
    let mesh = Mesh::start_by(&yaml, "exec \"$0\" \"$@\" --tap-bodies");
    mesh.wait_for_line(" ready after ");
    mesh.wait_for("an answer", || {
        let sale = ["curl", "-sf", "-o", "/dev/null", "-d", "item=1", "http://till:8080/buy"];
        mesh.exec("client", &sale).status.success()
    });
    let without = out(&trace(&mesh, &["-o", "json"]));
    assert!(without.contains("\"hops\"") && !without.contains("item=1"), "{without}");
    let traced = trace(&mesh, &["--bodies", "-o", "json"]);
    let hops: serde_json::Value = serde_json::from_slice(&traced.stdout).unwrap();
    let hop = &hops["hops"][0];
    let whole = serde_json::json!({"text": "item=1", "bytes": 6, "is_cut": false});
    assert_eq!(hop["request_body"], whole, "{hop}");
    let answer = &hop["response_body"];
    let text = answer["text"].as_str().unwrap();
    assert!(text.starts_with("receipt receipt ") && text.len() == 4096, "{hop}");
    assert_eq!((&answer["bytes"], &answer["is_cut"]), (&8000.into(), &true.into()), "{hop}");
    // Each proxy has logged that bodies were requested.
    for instance in ["client", "till"] {
        let log = out(&mesh.run(&["logs", "--proxy", instance]));
        assert!(log.contains("bodies=true"), "{instance}: {log}");
    }
}

#[test]
fn a_request_that_does_not_come_is_said_and_leaves_no_tap() {
    let yaml = MESH.replace("@WEB@", &format!("{WEB:?}"));
    let Some(mesh) = root(|| Mesh::start(&yaml)) else { return };
    let run = |arguments: &[&str]| mesh.run(&[&["trace-request"], arguments].concat());
    let none = run(&["client", "--path", "/never", "--for", "1s"]);
    assert_eq!((none.status.code(), out(&none).as_str()), (Some(1), ""), "{none:?}");
    let said = err(&none);
    assert!(
        said.contains(
            "waiting for a request of client with a path that begins with /never, at most 1s"
        ),
        "{said}"
    );
    assert!(said.contains("no request matched within 1s"), "{said}");
    let unknown = run(&["nothing"]);
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    // A server that does not exist is refused at once. The default wait would be a minute.
    for command in ["trace-request", "tap"] {
        let begin = std::time::Instant::now();
        let unknown = mesh.run(&[command, "client", "--to", "wbe"]);
        assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
        let expected = "there is no workload and no service wbe: did you mean web?";
        assert!(err(&unknown).contains(expected), "{unknown:?}");
        assert!(begin.elapsed() < std::time::Duration::from_secs(30), "{:?}", begin.elapsed());
    }
    mesh.wait_for("taps that are closed", || {
        let metrics = ["curl", "-s", "http://127.0.0.1:15020/metrics"];
        mesh.text("client", &metrics).contains("\nleno_taps_open 0\n")
    });
}
