//! Tests `leno stat`, the access log and the other logs, on a mesh in which many requests are refused.

use std::process::Command;
use std::time::{Duration, Instant};

use leno_local::status::MeshStatus;
use leno_testkit::stopped::StoppedThreads;
use serde_json::json;

use crate::mesh::{Mesh, out, root};

/// `stranger` has no proxy, so `web` refuses it. `client` may not call addresses outside the mesh, and calls `db`
/// over opaque TCP.
const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/mtls: strict, leno.dev/egress: deny}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [python3, -m, http.server, '8080'], ports: [{name: http, port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: db, namespace: shop}
spec: {command: [python3, -m, http.server, '5432'], ports: [{name: db, port: 5432, appProtocol: tcp}]}
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
      curl -s -m 5 -o /dev/null http://web:8080/ http://db:5432/
      (exec 3<>/dev/tcp/192.0.2.1/25; read -r -t 5 <&3; head -c 1 <&3) 2>/dev/null
    done
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: stranger, namespace: shop, labels: {leno.dev/inject: disabled}}
spec: {command: [sh, -c, 'while sleep 0.1; do curl -s -m 5 -o /dev/null http://web:8080/; done']}
";

/// The line about an edge.
fn row<'a>(text: &'a str, client: &str, server: &str) -> Option<&'a str> {
    let of = |line: &&str| line.split_whitespace().take(2).eq([client, server]);
    text.lines().find(of)
}

#[test]
fn what_is_refused_is_a_row_with_its_reason_and_connections_have_rates() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let stat = || mesh.leno(&["stat", "--name", mesh.name(), "--window", "3s"]).output().unwrap();
    mesh.wait_for("all rows", || {
        let text = out(&stat());
        let has = |client: &str, server: &str, part: &str| {
            row(&text, client, server).is_some_and(|line| line.contains(part))
        };
        has("(unmeshed)", "web", " plaintext-refused")
            && has("client", "(outside)", " egress-denied")
            && has("client", "web", "100.00%")
            && has("client", "db", "TCP: 0 open, ")
    });
    let text = out(&stat());
    let tcp = row(&text, "client", "db").unwrap_or_else(|| panic!("{text}"));
    assert!(tcp.contains("/s, ") && tcp.trim_end().ends_with(" KiB/s  yes"), "{text}");
    assert!(!tcp.contains(", 0.0/s, "), "{text}");
    let json = mesh.leno(&["stat", "--name", mesh.name(), "--window", "3s", "-o", "json"]);
    let report: serde_json::Value =
        serde_json::from_slice(&{ json }.output().unwrap().stdout).unwrap();
    let edges = report["edges"].as_array().unwrap();
    let refused = edges.iter().find(|edge| edge["client"] == "(unmeshed)").unwrap();
    assert!(refused["causes"]["plaintext-refused"].as_u64().unwrap() > 0, "{refused}");
}

#[test]
fn a_terminal_is_redrawn_and_a_pipe_is_not() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let watch = format!(
        "timeout -s INT 6 {} stat -w --window 200ms --name {}",
        env!("CARGO_BIN_EXE_leno"),
        mesh.name()
    );
    let terminal = Command::new("script").args(["-qec", &watch, "/dev/null"]).output().unwrap();
    let pictures = out(&terminal).matches("\x1b[H\x1b[J").count();
    assert!(pictures >= 2, "{terminal:?}");
    let piped = out(&Command::new("sh").args(["-c", &watch]).output().unwrap());
    assert!(piped.matches("CLIENT ").count() >= 2 && !piped.contains('\x1b'), "{piped}");
}

#[test]
fn top_shows_sorted_edges_on_a_screen_of_its_own_and_once_for_scripts() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let once = || {
        let sorted = ["--once", "--window", "3s", "--sort", "success", "-o", "json"];
        let mut top = mesh.leno(&["top", "--name", mesh.name(), "--filter", "shop/client"]);
        let output = top.args(sorted).output().unwrap();
        let edges: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        edges
    };
    mesh.wait_for("requests", || once().iter().any(|edge| edge["success_rate"] == 1.0));
    let edges = once();
    assert!(edges.iter().all(|edge| edge["client"] == "client"), "{edges:?}");
    assert_eq!(edges[0]["server"], "web", "what has no success rate comes last: {edges:?}");

    let top = format!(
        "timeout --foreground -s TERM 8 {} top --window 500ms --name {}",
        env!("CARGO_BIN_EXE_leno"),
        mesh.name()
    );
    let terminal = out(&Command::new("script").args(["-qec", &top, "/dev/null"]).output().unwrap());
    let (begin, end) = ("\x1b[?1049h", "\x1b[?1049l");
    assert!(terminal.contains(begin) && terminal.trim_end().ends_with(end), "{terminal:?}");
    assert!(terminal.contains(" edges by name, "), "{terminal:?}");
    let piped = mesh.leno(&["top", "--name", mesh.name()]).output().unwrap();
    assert_eq!(piped.status.code(), Some(2), "{piped:?}");
}

/// `client` calls three paths of `web`: one that the rule `pages` matches, one that is redirected, and one that no
/// rule matches. `reader` calls only the first one.
pub(crate) const ROUTED: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, annotations: {leno.dev/mtls: strict}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [python3, -m, http.server, '8080'], ports: [{name: http, port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec:
  command:
  - bash
  - -c
  - 'while sleep 0.1; do curl -s -m 5 -o /dev/null http://web:8080/ http://web:8080/old http://web:8080/nothing; done'
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: reader, namespace: shop}
spec: {command: [bash, -c, 'while sleep 0.1; do curl -s -m 5 -o /dev/null http://web:8080/; done']}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: web}]
  rules:
  - name: pages
    matches: [{path: {type: Exact, value: /}}]
    backendRefs: [{name: web, port: 8080}]
  - matches: [{path: {value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /}}}]
";

#[test]
fn edges_have_identities_and_routes_their_rules_now_and_in_the_history() {
    let Some(mesh) = root(|| Mesh::start(ROUTED)) else { return };
    let json = |command: &str, time: [&str; 2]| -> serde_json::Value {
        let mut leno = mesh.leno(&[command, "--name", mesh.name(), "-o", "json"]);
        serde_json::from_slice(&leno.args(time).output().unwrap().stdout).unwrap_or_default()
    };
    let rows = |command: &str, time| json(command, time)[command].as_array().cloned();
    let (now, past) = (["--window", "3s"], ["--since", "10m"]);
    let wanted = [["", ""], ["HTTPRoute shop/web", "1"], ["HTTPRoute shop/web", "pages"]];
    for time in [now, past] {
        mesh.wait_for("requests by all rules", || {
            let routes = rows("routes", time).unwrap_or_default();
            let names = routes.iter().map(|one| ["route", "rule"].map(|name| one[name].clone()));
            let is_shown = |one: &serde_json::Value| {
                one["service"] == "web"
                    && one["namespace"] == "shop"
                    && one["requests_per_s"].as_f64() > Some(0.0)
                    && one["latency_ms"]["p99"].as_f64() > Some(0.0)
            };
            names.eq(wanted) && routes.iter().all(is_shown)
        });
        let identity = |name: &str| format!("spiffe://cluster.local/ns/shop/sa/{name}");
        mesh.wait_for("both identities", || {
            rows("edges", time).unwrap_or_default().iter().any(|edge| {
                edge["client"] == "reader"
                    && edge["server"] == "web"
                    && edge["client_identity"] == identity("default")
                    && edge["server_identity"] == identity("default")
                    && edge["mtls"] == true
                    && edge["success_rate"].as_f64() > Some(0.0)
            })
        });
    }

    let text = |arguments: &[&str]| {
        let mut leno = mesh.leno(arguments);
        out(&leno.args(["--name", mesh.name(), "--since", "10m"]).output().unwrap())
    };
    let routes =
        text(&["routes", "--sort", "rate", "--filter", "HTTPRoute shop/web", "-o", "wide"]);
    assert!(routes.contains("shop/web  HTTPRoute shop/web  pages"), "{routes}");
    assert!(routes.contains("RETRIES/S") && !routes.contains("(no rule matches)"), "{routes}");
    let edges = text(&["edges"]);
    assert!(edges.contains("  yes   shop/default  shop/default\n"), "{edges}");
    let wide = text(&["stat", "-o", "wide"]);
    assert!(wide.contains("  spiffe://cluster.local/ns/shop/sa/default  "), "{wide}");
    let elsewhere = mesh.leno(&["routes", "--name", mesh.name(), "-n", "bank"]).output().unwrap();
    assert_eq!(elsewhere.status.code(), Some(2), "{elsewhere:?}");
}

/// A duration between one wait for a proxy's answer, 0.8 s, and two such waits.
const WAITED_ONCE: Duration = Duration::from_millis(1200);

#[test]
fn a_proxy_that_is_frozen_holds_up_no_report() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let group = {
        let status = MeshStatus::read(mesh.layout()).unwrap();
        status.find(None, "db-0").unwrap().surroundings.cgroup.with_file_name("proxy")
    };
    let pid = std::fs::read_to_string(group.join("cgroup.procs")).unwrap();
    let proxy: u32 = pid.trim().parse().unwrap();
    let stat = || {
        let begun = Instant::now();
        let mut stat = mesh.leno(&["stat", "--name", mesh.name(), "--window", "100ms"]);
        (stat.output().unwrap(), begun.elapsed())
    };
    let (_, healthy) = stat();
    let stopped = StoppedThreads::of_process(proxy).unwrap();
    // The frozen proxy is waited for once, not in both rounds, which would take 1.6 s in total. Other load on the
    // machine makes some reports slower, so several are tried.
    let mut tries = (0..30).map(|_| stat());
    let is_once = |(_, took): &(_, Duration)| took.saturating_sub(healthy) < WAITED_ONCE;
    let stat = tries.find(is_once).map(|(output, _)| output);
    let check = mesh.check();
    stopped.resume().unwrap();
    let stat = stat.expect("a report that waits once for the proxy");
    assert!(stat.status.success(), "{stat:?}");
    assert!(row(&out(&stat), "shop", "web").is_some(), "{stat:?}");
    let errors = String::from_utf8_lossy(&stat.stderr).into_owned();
    assert!(errors.starts_with("leno: no answer from the proxy of shop/db-0: "), "{errors}");
    assert!(
        check.contains("BAD  shop/db-0 proxy") && check.contains("ok   shop/web-0 proxy"),
        "{check}"
    );
    assert!(check.contains(&format!(", process {proxy} does not answer, ")), "{check}");
}

#[test]
fn the_access_log_in_a_file_is_json_and_lines_have_times_where_they_are_asked_for() {
    let mesh = root(|| {
        let mesh = Mesh::draft(MESH);
        let file = mesh.directory().join("access.json");
        let up = mesh.detached(&["--wait", "-t", "--access-log-file", file.to_str().unwrap()]);
        assert!(up.status.success(), "{up:?}");
        mesh
    });
    let Some(mesh) = mesh else { return };
    let lines = || {
        let text =
            std::fs::read_to_string(mesh.directory().join("access.json")).unwrap_or_default();
        // The last line may be written only in part.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let lines = text[..whole].lines().map(serde_json::from_str);
        lines.collect::<Result<Vec<serde_json::Value>, _>>().unwrap()
    };
    mesh.wait_for("requests and connections", || {
        let lines = lines();
        // The server's proxy writes its line before the client's proxy does. For early requests, there may be no
        // server yet.
        let request = lines.iter().find(|line| {
            line["direction"] == "outbound" && line["method"] == "GET" && line["status"] == 200
        });
        let has_connection =
            lines.iter().any(|line| line["method"] == "TCP" && line["server"] == "shop/db-0");
        let Some(request) = request.filter(|_| has_connection) else { return false };
        assert_eq!(
            (&request["client"], &request["server"]),
            (&json!("shop/client-0"), &json!("shop/web-0"))
        );
        true
    });
    // The server's line names the client's instance, whether the client has an identity or not.
    mesh.wait_for("the instances of clients in inbound lines", || {
        let lines = lines();
        let has = |client: &str, method: &str, server: &str, mtls: bool| {
            lines.iter().any(|line| {
                line["direction"] == "inbound"
                    && line["client"] == client
                    && line["method"] == method
                    && line["server"] == server
                    && line["mtls"] == mtls
            })
        };
        has("shop/client-0", "GET", "shop/web-0", true)
            && has("shop/client-0", "TCP", "shop/db-0", true)
    });
    let logs = mesh.leno(&["logs", "-t", "--name", mesh.name(), "leno"]).output().unwrap();
    let logs = out(&logs);
    let first = logs.lines().next().unwrap();
    // The form is 2026-01-01T00:00:00.000Z.
    let time = first.split_whitespace().next().unwrap();
    assert!(
        time.ends_with('Z') && time.as_bytes()[10] == b'T' && time.starts_with("20"),
        "{first}"
    );
    assert!(mesh.leno(&["down", "--name", mesh.name()]).output().unwrap().status.success());
}
