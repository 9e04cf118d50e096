//! Tests references to objects that do not exist, and references that need a grant.

use anyhow::Result;

use crate::fixture::{RoutesFixture, http_route};

const THIRD: &str = "---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: third}
spec: {clusterIP: 10.96.0.20, ports: [{port: 80}]}
";

/// HTTPRouteNoBackendRefs, HTTPRouteInvalidNonExistentBackendRef,
/// HTTPRouteInvalidBackendRefUnknownKind, HTTPRouteInvalidCrossNamespaceBackendRef: status 500, and
/// the response states the reason.
#[test]
fn http_route_invalid_backend_refs() -> Result<()> {
    let rules = "
  - matches: [{path: {value: /none}}]
  - matches: [{path: {value: /zero}}]
    backendRefs: [{name: echo-v1, port: 80, weight: 0}]
  - matches: [{path: {value: /unknown}}]
    backendRefs: [{name: nobody, port: 80}]
  - matches: [{path: {value: /port}}]
    backendRefs: [{name: echo-v1, port: 81}]
  - matches: [{path: {value: /kind}}]
    backendRefs: [{group: example.org, kind: Bucket, name: b}]
  - matches: [{path: {value: /far}}]
    name: far
    backendRefs: [{name: far, namespace: third, port: 80}]
";
    let bed = RoutesFixture::start(&(http_route("route", rules) + THIRD))?;
    for (path, expected) in [
        ("/none", "no-backend; by=\"HTTPRoute t/route rule 0\""),
        ("/zero", "no-backend; by=\"HTTPRoute t/route rule 1\""),
        ("/unknown", "backend-invalid; reason=BackendNotFound; by=\"HTTPRoute t/route rule 2\""),
        ("/port", "backend-invalid; reason=BackendNotFound; by=\"HTTPRoute t/route rule 3\""),
        ("/kind", "backend-invalid; reason=InvalidKind; by=\"HTTPRoute t/route rule 4\""),
        ("/far", "backend-invalid; reason=RefNotPermitted; by=\"HTTPRoute t/route rule far\""),
    ] {
        let response = bed.send(&format!("GET {path}"))?;
        assert_eq!(
            (response.status, response.header("leno-error")),
            (500, Some(expected)),
            "{path}"
        );
    }
    let response = bed.send("GET /else")?;
    assert_eq!((response.status, response.header("leno-error")), (404, Some("no-route-matches")));
    let metrics = bed.metrics()?;
    for cause in ["no-backend", "backend-invalid", "no-route-matches"] {
        assert!(metrics.contains(cause), "{cause} is not counted:\n{metrics}");
    }
    Ok(())
}

/// HTTPRouteReferenceGrant and HTTPRouteInvalidReferenceGrant: a reference to another namespace needs a grant there
/// that names the kind and the namespace of the route, and the service or no service.
#[test]
fn http_route_reference_grant() -> Result<()> {
    let rules = "  - backendRefs: [{name: far, namespace: third, port: 80}]\n";
    for (kind, namespace, name, status) in [
        ("HTTPRoute", "t", "far", 503),
        ("HTTPRoute", "t", "", 503),
        ("GRPCRoute", "t", "far", 500),
        ("HTTPRoute", "other", "far", 500),
        ("HTTPRoute", "t", "near", 500),
    ] {
        let name = if name.is_empty() { String::new() } else { format!(", name: {name}") };
        let grant = format!(
            "---\napiVersion: gateway.networking.k8s.io/v1beta1\nkind: ReferenceGrant\n\
             metadata: {{name: grant, namespace: third}}\nspec:\n  \
             from: [{{group: gateway.networking.k8s.io, kind: {kind}, namespace: {namespace}}}]\n  \
             to: [{{group: \"\", kind: Service{name}}}]\n"
        );
        let bed = RoutesFixture::start(&(http_route("route", rules) + THIRD + &grant))?;
        // The service has no endpoint, so 503 means that the reference is valid.
        let response = bed.send("GET /")?;
        assert_eq!(response.status, status, "{kind} {namespace} {name}");
    }
    Ok(())
}

/// MeshPorts: a route for another port, or for another service, has no effect.
#[test]
fn mesh_ports() -> Result<()> {
    let rules = "  - backendRefs: [{name: echo-v1, port: 80}]\n";
    for (from, to) in [("port: 80", "port: 8080"), ("name: echo,", "name: echo-v2,")] {
        let bed = RoutesFixture::start(&http_route("route", rules).replace(from, to))?;
        assert_eq!(bed.outcome("GET /")?, "echo", "{to}");
    }
    Ok(())
}
