//! Tests node mode.

use crate::mesh::{Mesh, out, root};

const MESH: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: lab, annotations: {leno.dev/mode: node, leno.dev/share: namespace}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec:
  command: [python3, -m, http.server, '8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
";

/// Three instances that later join the node proxy's process.
const GUEST: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: guest, namespace: lab}
spec: {replicas: 3, command: [sleep, infinity]}
";

/// Opens connections until five are refused. Each counts once a request on it was answered, and is then kept open.
/// Prints the number of these connections.
const HOLD: &str = "
import resource, socket
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held, refused = [], 0
while refused < 5:
    try:
        client = socket.create_connection(('web', 8080), 20)
        client.sendall(b'GET / HTTP/1.1\\r\\nHost: web\\r\\n\\r\\n')
        if not client.recv(1): raise ConnectionResetError
        held.append(client)
    except (ConnectionResetError, BrokenPipeError):
        refused += 1
print(len(held))
";

#[test]
fn the_connections_of_an_instance_do_not_depend_on_who_shares_its_process() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let metrics = mesh.text("client", &["curl", "-sf", "http://127.0.0.1:15020/metrics"]);
    let limit = metrics.lines().find_map(|line| line.strip_prefix("leno_connections_limit "));
    let limit: f64 =
        limit.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{metrics}"));
    // An application gets at most six eighths of the connections that its instance has; the rest is for other clients.
    // The limit in the metrics is rounded down to whole eighths.
    let expected = format!("{}", (limit / 8.0).floor() * 6.0);
    let held = || mesh.text("client", &["python3", "-c", HOLD]);
    assert_eq!(held(), expected);
    mesh.edit(&(MESH.to_owned() + GUEST));
    mesh.wait_for("guests", || mesh.takes_traffic("guest-2"));
    assert_eq!(held(), expected, "with more members");
    mesh.wait_for("the cause", || {
        let why = out(&mesh.run(&["why"]));
        why.contains("from lab/client to (unknown)") && why.contains(" connections-limit")
    });
}

/// A workload with a sidecar, and one with a node proxy process of its own.
const APART: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: apart, namespace: lab, annotations: {leno.dev/mode: sidecar}}
spec: {replicas: 2, command: [sleep, infinity]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: alone, namespace: lab, annotations: {leno.dev/share: workload}}
spec: {command: [sleep, infinity]}
";

#[test]
fn stat_shows_where_the_proxies_of_each_workload_run() {
    let Some(mesh) = root(|| Mesh::start(&(MESH.to_owned() + APART))) else { return };
    let report: serde_json::Value =
        serde_json::from_slice(&mesh.run(&["stat", "-o", "json"]).stdout).unwrap();
    let workloads = report["workloads"].as_array().unwrap();
    let proxies =
        |name: &str| workloads.iter().find(|one| one["name"] == name).unwrap()["proxies"].clone();
    let node = |share: &str, group: &str| serde_json::json!([{"mode": "node", "share": share, "group": group, "promoted": false, "instances": 1}]);
    assert_eq!(proxies("web"), node("namespace", "namespace.lab"));
    assert_eq!(proxies("alone"), node("workload", "workload.lab.alone-0"));
    let sidecars = serde_json::json!([{"mode": "sidecar", "share": null, "group": null, "promoted": false, "instances": 2}]);
    assert_eq!(proxies("apart"), sidecars);
    let shown = |form: &[&str], name: &str| {
        let text = out(&mesh.run(&[&["stat"], form].concat()));
        let (heading, _) = text.split_once('\n').unwrap();
        let at = heading.find("PROXY").unwrap_or_else(|| panic!("{text}"));
        let of = |line: &&str| line.split_whitespace().nth(1) == Some(name);
        text.lines().find(of).map(|line| line[at..].to_owned()).unwrap_or_else(|| panic!("{text}"))
    };
    assert_eq!(shown(&[], "web"), "node/namespace");
    assert_eq!(shown(&[], "apart"), "sidecar");
    assert_eq!(shown(&["-o", "wide"], "web"), "namespace.lab");
    assert_eq!(shown(&["-o", "wide"], "alone"), "workload.lab.alone-0");
    // If all proxies are sidecars, only wide tables show that.
    let text = out(&mesh.run(&["stat", "-n", "lab", "--since", "10s"]));
    assert!(!text.contains("PROXY"), "{text}");
}
