//! Tests cases of the Gateway API's mesh suite that the other groups do not cover.

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};

use super::routes::{MESH, route, until_answered};
use super::{Case, once};

/// A service with two ports, both served by `v1`.
const TWO_PORTS: &str = "---
apiVersion: v1
kind: Service
metadata: {name: two, namespace: lab}
spec:
  selector: {app: web}
  ports:
    - {name: one, port: 80, targetPort: 8080, appProtocol: http}
    - {name: other, port: 8080, targetPort: 8080, appProtocol: http}
";

pub(super) fn cases() -> Vec<Case> {
    vec![once!(mesh_frontend), once!(mesh_ports), once!(mesh_http_route_named_rule)]
}

fn marked(value: &str) -> String {
    format!(
        "  - filters: [{{type: ResponseHeaderModifier, responseHeaderModifier: {{set: \
         [{{name: X-Header-Set, value: {value}}}]}}}}]\n    \
         backendRefs: [{{name: v1, port: 8080}}]\n"
    )
}

/// The status, the server that responds, and the header that a route sets.
fn answer(lab: &Lab, who: &str, request: &[&str]) -> Result<String> {
    let format = "%{http_code} %header{x-served-by} %header{x-header-set}";
    let curl = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", format];
    Ok(lab.text(who, &[&curl[..], request].concat())?.trim().to_owned())
}

fn check(lab: &Lab, table: &[(&str, &[&str], &str)]) -> Result<()> {
    for (who, request, expected) in table {
        let said = answer(lab, who, request)?;
        ensure!(said == *expected, "{who} {request:?}: {said:?} where {expected:?} is expected");
    }
    Ok(())
}

/// MeshBasic, MeshFrontend and MeshFrontendHostname: a producer's route applies to every client. The called
/// address selects the route, not the Host field.
fn mesh_frontend(capture: Capture) -> Result<()> {
    let routes = route("front", "lab", &marked("set"));
    let lab = Lab::start(&LabOptions::new(capture), &format!("{MESH}{routes}"), |_| Ok(()))?;
    let cases = || -> Result<()> {
        until_answered(&lab, "client", &["http://web/"], "200 v1")?;
        until_answered(&lab, "guest", &["http://web.lab/"], "200 v1")?;
        check(
            &lab,
            &[
                ("client", &["http://web/"], "200 v1 set"),
                ("guest", &["http://web.lab/"], "200 v1 set"),
                ("client", &["-H", "Host: v2", "http://web/"], "200 v1 set"),
                ("client", &["-H", "Host: web", "http://v2:8080/"], "200 v2"),
                ("client", &["http://v1:8080/"], "200 v1"),
            ],
        )
    };
    lab.explain(cases())
}

/// MeshPorts: a route for one port does not affect other ports, and a route without a port applies to all.
fn mesh_ports(capture: Capture) -> Result<()> {
    let routes = |parent: &str| {
        let of_two = route("ports", "lab", &marked("set"));
        of_two.replace("name: web, namespace: lab", &format!("name: two{parent}"))
    };
    let documents = |parent: &str| format!("{MESH}{TWO_PORTS}{}", routes(parent));
    let lab = Lab::start(&LabOptions::new(capture), &documents(", port: 80"), |_| Ok(()))?;
    let cases = || -> Result<()> {
        let settled = |port: &str, expected: &str| {
            leno_testkit::wait::until("the change", super::routes::HEAR_LIMIT, || {
                let said = answer(&lab, "client", &[&format!("http://two:{port}/")])?;
                Ok((said == expected).then_some(()))
            })
        };
        settled("80", "200 v1 set")?;
        settled("8080", "200 v1")?;
        lab.edit(&documents(", sectionName: other"))?;
        settled("8080", "200 v1 set")?;
        settled("80", "200 v1")?;
        lab.edit(&documents(""))?;
        settled("80", "200 v1 set")?;
        settled("8080", "200 v1 set")
    };
    lab.explain(cases())
}

/// MeshHTTPRouteNamedRule: names do not change the effect of rules, and error messages contain them.
fn mesh_http_route_named_rule(capture: Capture) -> Result<()> {
    let rules = "  - name: first
    matches: [{path: {value: /v1}}]
    backendRefs: [{name: v1, port: 8080}]
  - name: second
    matches: [{path: {value: /v2}}]
    backendRefs: [{name: v2, port: 8080}]
  - name: third
    matches: [{path: {value: /v3}}]
    backendRefs: [{name: v3, port: 8080}]
";
    let routes = route("named", "lab", rules);
    let lab = Lab::start(&LabOptions::new(capture), &format!("{MESH}{routes}"), |_| Ok(()))?;
    let cases = || -> Result<()> {
        until_answered(&lab, "client", &["http://web/v1"], "200 v1")?;
        until_answered(&lab, "client", &["http://web/v2"], "200 v2")?;
        let invalid = "500  backend-invalid; reason=BackendNotFound; \
                       by=\"HTTPRoute lab/named rule third\"";
        until_answered(&lab, "client", &["http://web/v3"], invalid)
    };
    lab.explain(cases())
}
