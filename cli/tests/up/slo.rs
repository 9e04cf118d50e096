//! Tests service level objectives on a real mesh: a budget that is met, a budget that is spent too fast, and the
//! gate of a rollout.

use serde_json::Value;

use crate::mesh::{Mesh, root, said, with_server};

/// `web` calls `cart` at most 20 times a second; `idle` gets no calls; `late` answers slowly.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: shop}
spec:
  command: [sh, -c, 'while :; do curl -s -m 5 -o /dev/null http://cart:8080/@PATH@; sleep 0.05; done']
  dependsOn: {cart: {condition: ready}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: shop}
spec: {command: [python3, -c, @SERVER@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: idle, namespace: shop}
spec: {command: [python3, -m, http.server, '8080'], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: ServiceLevelObjective
metadata: {name: cart, namespace: shop}
spec:
  targetRef: {group: '', kind: Service, name: cart}
  window: 10m
  successPercent: 80
  latency: {below: 1s, percent: 80}
---
apiVersion: leno.dev/v1alpha1
kind: ServiceLevelObjective
metadata: {name: idle, namespace: shop}
spec: {targetRef: {group: leno.dev, kind: Workload, name: idle}, successPercent: 99}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: teller, namespace: bank}
spec:
  command: [sh, -c, 'while :; do curl -s -m 5 -o /dev/null http://late:8080/slow; done']
  dependsOn: {late: {condition: ready}}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: late, namespace: bank}
spec: {command: [python3, -c, @SERVER@], ports: [{port: 8080, appProtocol: http}]}
---
apiVersion: leno.dev/v1alpha1
kind: ServiceLevelObjective
metadata: {name: late, namespace: bank}
spec:
  targetRef: {group: leno.dev, kind: Workload, name: late}
  successPercent: 50
  latency: {below: 250ms, percent: 90}
";

/// An objective whose target has no workloads.
const WITHOUT_SERVERS: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: gone, namespace: bank}
spec: {selector: {app: gone}, ports: [{port: 80}]}
---
apiVersion: leno.dev/v1alpha1
kind: ServiceLevelObjective
metadata: {name: gone, namespace: bank}
spec: {targetRef: {group: '', kind: Service, name: gone}, successPercent: 99}
";

fn documents(path: &str) -> String {
    with_server(&MESH.replace("@PATH@", path))
}

fn slo(mesh: &Mesh, arguments: &[&str]) -> (Option<i32>, String) {
    let output = mesh.run(&[&["slo"][..], arguments].concat());
    (output.status.code(), said(&output))
}

fn reports(mesh: &Mesh) -> Vec<Value> {
    // The history may not answer yet.
    serde_json::from_str(&slo(mesh, &["-o", "json"]).1).unwrap_or_default()
}

fn standing(mesh: &Mesh, name: &str, objective: &str) -> Value {
    let all = reports(mesh);
    let one = all.iter().find(|one| one["name"] == name && one["objective"] == objective);
    one.map_or(Value::Null, |one| one["standing"].clone())
}

#[test]
fn a_budget_that_is_spent_too_fast_closes_the_gate() {
    let Some(mesh) = root(|| Mesh::start(&documents("ok"))) else { return };
    mesh.wait_for("the objective to be met", || standing(&mesh, "cart", "success") == "met");
    let met = reports(&mesh);
    let of_cart = |one: &&Value| one["name"] == "cart" && one["objective"] == "latency";
    let cart = met.iter().find(of_cart).unwrap();
    assert_eq!((&cart["target"], &cart["window_s"]), (&"Service/cart".into(), &600.into()));
    assert_eq!((&cart["budget_left"], &cart["bad"]), (&1.0.into(), &0.into()), "{cart}");
    assert!(cart["requests"].as_u64().unwrap() > 0, "{cart}");
    let (code, text) = slo(&mesh, &["-n", "shop"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("shop/cart success 80 % ") && text.contains("no requests"), "{text}");
    assert_eq!(
        slo(&mesh, &["gate", "cart", "--until", "6s"]),
        (Some(0), "passed: 2 objectives were met\n".to_owned())
    );
    // Without calls, nothing shows that a workload works.
    let (code, text) = slo(&mesh, &["gate", "idle", "--until", "5s"]);
    assert_eq!((code, &*text), (Some(1), "failed: shop/idle success 99 %: no requests\n"));
    assert_eq!(slo(&mesh, &["gate", "idle", "--until", "5s", "--allow-idle"]).0, Some(0));
    let (code, text) = slo(&mesh, &["gate", "none", "--until", "5s"]);
    assert_eq!(code, Some(2), "{text}");

    // Every request fails, so the gate closes long before its time is over.
    mesh.edit(&documents("fail"));
    let (code, text) = slo(&mesh, &["gate", "cart", "--until", "10m"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("failed: shop/cart success 80 %: b"), "{text}");
    assert_eq!(slo(&mesh, &["-n", "shop"]).0, Some(1));
    assert_eq!(standing(&mesh, "cart", "latency"), "met");

    // Answers that are correct but late spend the budget of the latency objective.
    assert_eq!(standing(&mesh, "late", "success"), "met");
    assert_eq!(standing(&mesh, "late", "latency"), "exhausted");
    let (code, text) = slo(&mesh, &["gate", "-n", "bank", "--until", "10m"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("failed: bank/late latency 90 % below 250 ms: budget used up: "));
    let all = reports(&mesh);
    let late = all.iter().find(|one| one["below_ms"] == 250).unwrap();
    assert_eq!((&late["in_time_ms"], &late["bad"]), (&200.0.into(), &late["requests"]), "{late}");

    // An objective without workloads fails only the commands that concern it.
    mesh.edit(&format!("{}{WITHOUT_SERVERS}", documents("ok")));
    mesh.wait_for("the other objective", || slo(&mesh, &[]).0 == Some(2));
    let (_, text) = slo(&mesh, &[]);
    assert!(
        text.contains("the Service gone of the ServiceLevelObjective bank/gone has no workload")
    );
    assert_ne!(slo(&mesh, &["-n", "shop"]).0, Some(2));
    let (code, text) = slo(&mesh, &["gate", "idle", "--until", "5s", "--allow-idle"]);
    assert_eq!(code, Some(0), "{text}");
}
