//! Tests the alerts and dashboards for Prometheus and Grafana. promtool checks them, and a real Prometheus that
//! scrapes a real mesh answers their queries.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use leno_local::status::MeshStatus;
use leno_testkit::tools;
use serde_json::Value;

use crate::mesh::{Mesh, root, said, with_server};

mod compat;
mod native;
mod server;

use server::Prometheus;

/// `client` sends requests that succeed, fail, are retried, abandoned and denied, and opens opaque connections.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: shop}
spec:
  command:
  - sh
  - -c
  - while :; do
      curl -s -o /dev/null http://web:8080/ http://web:8080/fail http://locked:8080/ http://bytes:8080/;
      curl -s -m 0.2 -o /dev/null http://web:8080/slow;
      sleep 0.1;
    done
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec: {command: [python3, -c, @SERVER@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: bytes, namespace: shop}
spec: {command: [python3, -m, http.server, '8080'], ports: [{port: 8080, appProtocol: tcp}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: locked, namespace: shop, labels: {app: locked}}
spec: {command: [python3, -m, http.server, '8080'], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: web, namespace: shop}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  retries: {on: [5xx]}
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: locked, namespace: shop}
spec:
  selector: {matchLabels: {app: locked}}
  rules: [{from: [{serviceAccounts: [others]}]}]
";

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboard").join(name)
}

/// The path of a Debian program; `None` if it is missing and tests that need it are to be skipped.
fn program(name: &str) -> Option<PathBuf> {
    tools::find_or_skip(name, "prometheus").unwrap()
}

#[test]
fn promtool_takes_the_rules_and_they_do_what_their_tests_say() {
    let Some(promtool) = program("promtool") else { return };
    for arguments in [
        ["check", "rules", "--lint-fatal", "rules.yaml"].as_slice(),
        &["test", "rules", "rules_test.yaml"],
    ] {
        let mut command = Command::new(&promtool);
        let output = command.args(arguments).current_dir(folder("prometheus")).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains("SUCCESS"), "{}", said(&output));
    }
}

/// The dashboards, each with the name of its file.
fn dashboards() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder("grafana")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        all.push((name, serde_json::from_str(&text).unwrap()));
    }
    assert!(!all.is_empty());
    all
}

fn list<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value[key].as_array().map(Vec::as_slice).unwrap_or_default()
}

#[test]
fn dashboards_are_whole_and_explain_themselves() {
    let mut names = BTreeSet::new();
    for (file, board) in dashboards() {
        let text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
        assert!(
            text(&board["uid"]) && text(&board["title"]) && text(&board["description"]),
            "{file}"
        );
        assert!(names.insert(board["uid"].as_str().unwrap().to_owned()), "{file}: uid");
        // Grafana assigns an `id` to a dashboard when it is imported, so the file must not set one.
        assert!(board.get("id").is_none_or(Value::is_null), "{file}: id");
        let variables: Vec<&str> = list(&board["templating"], "list")
            .iter()
            .map(|variable| variable["name"].as_str().unwrap())
            .collect();
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for panel in list(&board, "panels") {
            let what = format!("{file}: {}", panel["title"]);
            assert!(text(&panel["title"]) && text(&panel["description"]), "{what}");
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{what}: id");
            assert!(text(&panel["fieldConfig"]["defaults"]["unit"]), "{what}: unit");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{what}");
            let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
            assert!(at("x") + at("w") <= 24, "{what} is wider than the page");
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(taken.insert((x, y)), "{what} is above another panel");
                }
            }
            assert!(!list(panel, "targets").is_empty(), "{what}");
            for target in list(panel, "targets") {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{what}");
                let query = target["expr"].as_str().unwrap();
                for word in query.split('$').skip(1) {
                    let end = word.find(|c: char| !c.is_alphanumeric() && c != '_');
                    let name = &word[..end.unwrap_or(word.len())];
                    let known = name == "__rate_interval" || variables.contains(&name);
                    assert!(known, "{what}: ${name}");
                }
            }
        }
    }
}

/// The configuration of a Prometheus server that runs in the network namespace of the mesh's bridge.
fn configuration(mesh: &Mesh) -> String {
    let status = MeshStatus::read(mesh.layout()).unwrap();
    let mut proxies = Vec::new();
    for instance in status.instances.iter().filter(|one| one.meshed) {
        let v4 = instance.addresses.iter().find(|address| address.is_ipv4()).unwrap();
        proxies.push(format!("'{v4}:15020'"));
    }
    let job = |name: &str, targets: &str| {
        format!("- {{job_name: {name}, static_configs: [{{targets: [{targets}]}}]}}\n")
    };
    let rules = folder("prometheus/rules.yaml");
    format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
         rule_files: ['{}']\nscrape_configs:\n{}{}{}",
        rules.canonicalize().unwrap().display(),
        job("proxies", &proxies.join(", ")),
        job("controller", "'127.0.0.1:15020'"),
        job("flows", "'10.89.0.1:15025'"),
    )
}

/// Checks that `--prometheus` shows the same figures as the proxies themselves.
fn reads_the_same_as_from_the_proxies(mesh: &Mesh, server: &Prometheus) {
    let read = |arguments: &[&str]| -> Value {
        let output = server.leno(mesh, arguments);
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let edge = |edges: &Value, server: &str| -> Value {
        let all = edges.as_array().unwrap();
        let found = all.iter().find(|one| one["client"] == "client" && one["server"] == server);
        found.unwrap_or_else(|| panic!("no edge to {server} in {edges}")).clone()
    };
    let stat = read(&["stat", "--since", "1m", "-o", "json"]);
    let workloads = stat["workloads"].as_array().unwrap();
    assert_eq!(workloads.len(), 4, "{stat}");
    // Of two answered requests one fails, and its retries fail as well.
    let web = edge(&stat["edges"], "web");
    let success = web["success_rate"].as_f64().unwrap();
    assert!((0.3..0.7).contains(&success), "{web}");
    assert!(
        web["given_up"].as_f64().unwrap() > 0.0 && web["retries_per_s"].as_f64().unwrap() > 0.0,
        "{web}"
    );
    assert!(web["mtls"] == true && web["latency_ms"]["p50"].is_number(), "{web}");
    for end in ["client_identity", "server_identity"] {
        assert!(web[end].as_str().is_some_and(|one| one.contains("/ns/shop/sa/")), "{web}");
    }
    let locked = edge(&stat["edges"], "locked");
    assert!(locked["denied"].as_f64().unwrap() > 0.9, "{locked}");
    let bytes = edge(&stat["edges"], "bytes");
    assert!(bytes["tcp_bytes_per_s"].as_f64().unwrap() > 0.0, "{bytes}");
    let edges = read(&["edges", "-n", "shop", "--filter", "locked", "-o", "json"]);
    assert_eq!(edges["edges"].as_array().unwrap().len(), 1, "{edges}");
    let top = read(&["top", "--once", "--sort", "success", "-o", "json"]);
    edge(&top, "web");
    let refused = Prometheus::leno_at("http://127.0.0.1:9", mesh, server, &["stat"]);
    assert!(
        said(&refused).contains("the Prometheus at 127.0.0.1:9 does not answer"),
        "{}",
        said(&refused)
    );
}

/// The query that a Grafana page sends when its variables are set to all.
fn asked(query: &str) -> String {
    query.replace("$__rate_interval", "10s").replace("$namespace", ".*")
}

#[test]
fn every_query_of_the_dashboards_and_rules_has_series_of_a_real_mesh() {
    let (Some(prometheus), Some(promtool)) = (program("prometheus"), program("promtool")) else {
        return;
    };
    let Some(mesh) = root(|| Mesh::start(&with_server(MESH))) else { return };
    let server = Prometheus::start((&prometheus, promtool), &mesh, &configuration(&mesh), &[]);

    let mut queries: Vec<(String, String)> = Vec::new();
    for (file, board) in dashboards() {
        for panel in list(&board, "panels") {
            for target in list(panel, "targets") {
                let what = format!("{file}: {}", panel["title"]);
                queries.push((what, asked(target["expr"].as_str().unwrap())));
            }
        }
    }
    // The alerts compare series that these rules record.
    let rules = std::fs::read_to_string(folder("prometheus/rules.yaml")).unwrap();
    let recorded = rules.lines().filter_map(|line| line.trim().strip_prefix("- record: "));
    queries.extend(recorded.map(|name| ("rules.yaml".to_owned(), name.to_owned())));
    assert!(queries.len() > 40, "{}", queries.len());

    server.until_all_have_series(queries);
    // The figures match the mesh: of the requests that `web` answers, retries included, half fail.
    let output = server.answer("leno:success:ratio5m{service=\"web\"} < 0.9");
    assert!(said(&output).contains("web"), "{}", said(&output));
    reads_the_same_as_from_the_proxies(&mesh, &server);
    server.is_asked_again(&mesh);
    let output =
        server.answer("ALERTS{alertname=~\"LenoFlow.*|LenoControl.*|LenoRoot.*|LenoPanics\"}");
    assert_eq!(said(&output).trim(), "[]", "nothing else is wrong");
}
