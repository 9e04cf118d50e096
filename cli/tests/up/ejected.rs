//! Tests what a client and the commands are told about an endpoint that cannot be reached.

use crate::mesh::{Mesh, root};

/// `wrong` declares a port that it does not listen on.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: wrong, namespace: s}
spec: {command: [sleep, infinity], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: s}
spec: {command: [sleep, infinity]}
";

#[test]
fn an_endpoint_that_is_not_reached_is_named_with_the_reason() {
    let Some(mesh) = root(|| Mesh::start(MESH)) else { return };
    let ask = || mesh.text("client", &["curl", "-si", "-m", "10", "http://wrong:8080/"]);
    let header = |answer: &str| {
        let line = answer.lines().find(|line| line.starts_with("leno-error: "));
        line.unwrap_or_default().trim().to_owned()
    };
    let first = ask();
    let last = "last=\"application-unreachable\"; endpoint=\"s/wrong-0\"";
    assert_eq!(header(&first), format!("leno-error: endpoints-tried; {last}"), "{first}");

    let of = |arguments: &[&str]| {
        let output = mesh.leno(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let name = mesh.name();
    let endpoint = "s/wrong-0 of wrong (unreachable)";
    // Each check happens while the endpoint is still ejected.
    let said = |what: &str, text: &dyn Fn() -> String, part: &str| {
        mesh.wait_for(what, || {
            ask();
            text().contains(part)
        });
    };
    said("check", &|| mesh.check(), &format!(", ejects {endpoint}"));
    said(
        "stat",
        &|| of(&["stat", "--name", name, "--window", "100ms"]),
        &format!("\ns/client-0 ejects {endpoint}\n"),
    );
    said("diagnostics", &|| of(&["diagnostics", "proxy", "--name", name, "client-0"]), endpoint);
    let client = of(&["diagnostics", "proxy", "--name", name, "client-0"]);
    let policy = "\npolicy       mtls permissive, egress allow; no port declared\n";
    assert!(client.contains(policy), "{client}");
    said(
        "explain",
        &|| of(&["explain", "--name", name, "client", "--", "http://wrong:8080/"]),
        ", ejected: unreachable)",
    );
    let entry = serde_json::json!({"client_namespace": "s", "client": "client-0", "server_namespace": "s",
        "server": "wrong-0", "service": "wrong", "reason": "unreachable"});
    mesh.wait_for("stat -o json", || {
        ask();
        let json = of(&["stat", "--name", name, "--window", "100ms", "-o", "json"]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["ejected"].as_array().is_some_and(|all| all.contains(&entry))
    });
    mesh.wait_for("the metric", || {
        ask();
        let metrics = mesh.text("client", &["curl", "-sf", "http://127.0.0.1:15020/metrics"]);
        metrics.lines().any(|line| {
            line.starts_with("leno_endpoint_ejected{")
                && line.contains("server=\"wrong-0\"")
                && line.contains("reason=\"unreachable\"")
                && line.ends_with(" 1")
        })
    });
    assert!(mesh.check().contains("does not listen on port 8080"), "{}", mesh.check());
}
