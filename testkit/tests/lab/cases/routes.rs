//! Tests routes through the control plane and two proxies.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::wait;

use super::{Case, once};

/// How long a change may take to reach a proxy.
pub(super) const HEAR_LIMIT: Duration = Duration::from_secs(90);
/// How many times the route changes under load.
const CHANGES: usize = 20;

pub(super) const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: guest, namespace: far}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: v1, namespace: lab, labels: {app: web}}
spec:
  command: [\"@BIN@/leno-peer\", http, --listen, \"[::]:8080\", --name, v1]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: v2, namespace: lab}
spec:
  command: [\"@BIN@/leno-peer\", http, --listen, \"[::]:8080\", --name, v2]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: lab}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]}
";

pub(super) fn cases() -> Vec<Case> {
    vec![once!(mesh_traffic_split), once!(a_route_that_changes_loses_no_request)]
}

pub(super) fn route(name: &str, namespace: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
         metadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
         parentRefs: [{{group: \"\", kind: Service, name: web, namespace: lab}}]\n  rules:\n{rules}"
    )
}

/// The status, the server that responds to `who`, and the `leno-error` if there is one.
fn answered(lab: &Lab, who: &str, more: &[&str]) -> Result<String> {
    let format = "%{http_code} %header{x-served-by} %header{leno-error}";
    let curl = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", format];
    Ok(lab.text(who, &[&curl[..], more].concat())?.trim().to_owned())
}

pub(super) fn until_answered(lab: &Lab, who: &str, more: &[&str], expected: &str) -> Result<()> {
    let mut last = String::new();
    let heard = wait::until("the answer", HEAR_LIMIT, || {
        last = answered(lab, who, more)?;
        Ok((last == expected).then_some(()))
    });
    heard.with_context(|| format!("{who} {more:?}: {last:?} where {expected:?} is expected"))
}

/// Tests what the Gateway API's conformance tests MeshTrafficSplit, MeshHTTPRouteMatching and MeshConsumerRoute are
/// about, over HTTP/1 and HTTP/2.
fn mesh_traffic_split(capture: Capture) -> Result<()> {
    let split = route(
        "split",
        "lab",
        "  - matches: [{path: {type: Exact, value: /v1}}]\n    \
         backendRefs: [{name: v1, port: 8080}]\n  \
         - matches: [{headers: [{name: version, value: two}]}]\n    \
         backendRefs: [{name: v2, port: 8080}]\n  \
         - matches: [{path: {value: /nobody}}]\n    backendRefs: [{name: nobody, port: 80}]\n",
    );
    let consumer =
        route("theirs", "far", "  - backendRefs: [{name: v2, namespace: lab, port: 8080}]\n");
    let lab =
        Lab::start(&LabOptions::new(capture), &format!("{MESH}{split}{consumer}"), |_| Ok(()))?;
    let cases = || -> Result<()> {
        until_answered(&lab, "client", &["http://web/v1"], "200 v1")?;
        until_answered(&lab, "client", &["-H", "Version: two", "http://web/any"], "200 v2")?;
        until_answered(&lab, "client", &["http://web/any"], "404  no-route-matches")?;
        let invalid =
            "500  backend-invalid; reason=BackendNotFound; by=\"HTTPRoute lab/split rule 2\"";
        until_answered(&lab, "client", &["http://web/nobody"], invalid)?;
        // The routes apply only to the Service. Its backends are called without them.
        until_answered(&lab, "client", &["http://v1:8080/any"], "200 v1")?;
        until_answered(&lab, "guest", &["http://web.lab/v1"], "200 v2")?;
        lab.edit(&format!("{MESH}{split}"))?;
        until_answered(&lab, "guest", &["http://web.lab/v1"], "200 v1")?;
        until_answered(&lab, "guest", &["http://web.lab/any"], "404  no-route-matches")?;
        lab.edit(MESH)?;
        until_answered(&lab, "guest", &["http://web.lab/any"], "200 v1")
    };
    lab.explain(cases())
}

/// While a route changes under load, no request may fail, and the last change must apply.
fn a_route_that_changes_loses_no_request(capture: Capture) -> Result<()> {
    let to = |place: usize| {
        let backend = ["v1", "v2"][place % 2];
        let rules = format!("  - backendRefs: [{{name: {backend}, port: 8080}}]\n");
        format!("{MESH}{}", route("moving", "lab", &rules))
    };
    let lab = Lab::start(&LabOptions::new(capture), &to(0), |_| Ok(()))?;
    let cases = || -> Result<()> {
        until_answered(&lab, "client", &["http://web/"], "200 v1")?;
        let load =
            ["--url", "http://web/", "--rate", "500", "--connections", "8", "--duration", "6s"];
        let load = lab.load("client", &load)?;
        for change in 1..=CHANGES {
            lab.edit(&to(change))?;
            let expected = ["200 v1", "200 v2"][change % 2];
            until_answered(&lab, "client", &["http://web/"], expected)?;
        }
        let report = load.finish()?;
        ensure!(report.errors == 0 && report.requests == 3000, "{report:?}");
        Ok(())
    };
    lab.explain(cases())
}
