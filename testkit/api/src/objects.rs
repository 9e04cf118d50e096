//! Kubernetes objects of a small shop.

use leno_kube::api::DynamicObject;
use serde_json::{Value, json};

/// A service of the shop; the API server chooses its address.
pub fn service(name: &str, port: u16) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"ports": [{"name": "http", "port": port, "targetPort": 8080, "appProtocol": "http"}]}})
}

/// A meshed pod that runs at this address, with the service account `web`.
pub fn pod(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}},
    "spec": {
        "serviceAccountName": "web",
        "automountServiceAccountToken": false,
        "containers": [{"name": "web", "image": "web"}],
        "initContainers": [{"name": "leno-proxy", "image": "p", "restartPolicy": "Always"}],
    },
    "status": {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }})
}

/// The EndpointSlice of a service; each pod is given as `NAME ADDRESS`.
pub fn slice(service: &str, pods: &[&str]) -> Value {
    let endpoint = |pod: &&str| {
        let (name, address) = pod.split_once(' ').unwrap();
        json!({"addresses": [address], "conditions": {"ready": true},
            "targetRef": {"kind": "Pod", "namespace": "shop", "name": name}})
    };
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": format!("{service}-1"), "namespace": "shop",
            "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "appProtocol": "http"}],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>()})
}

/// A route of the service `web` with one backend.
pub fn http_route(name: &str, backend: &str) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
    "metadata": {"name": name, "namespace": "shop"},
    "spec": {
        "parentRefs": [{"group": "", "kind": "Service", "name": "web"}],
        "rules": [{"backendRefs": [{"name": backend, "port": 80}]}],
    }})
}

/// A definition of `HTTPRoute` with any spec, and a status as strict as the Gateway API's own.
pub fn http_route_definition() -> Value {
    let text = |pattern: &str| json!({"type": "string", "minLength": 1, "pattern": pattern});
    let condition = json!({"type": "object",
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
    "properties": {
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "message": {"type": "string", "maxLength": 32768},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "reason": text("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"),
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "type": text("^[A-Za-z0-9]+$"),
    }});
    let parent = json!({"type": "object", "required": ["controllerName", "parentRef"],
    "properties": {
        "controllerName": text("^[a-z0-9.-]+/[A-Za-z0-9/-]+$"),
        "conditions": {"type": "array", "maxItems": 8, "items": condition,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        "parentRef": {"type": "object", "required": ["name"],
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {"name": text("^.+$")}},
    }});
    let status = json!({"type": "object", "required": ["parents"], "properties": {
        "parents": {"type": "array", "maxItems": 32, "items": parent,
            "x-kubernetes-list-type": "atomic"}}});
    definition("HTTPRoute", "httproutes", &status)
}

/// A definition of `BackendTLSPolicy`.
pub fn backend_tls_policy_definition() -> Value {
    definition("BackendTLSPolicy", "backendtlspolicies", &any())
}

/// The definition of a kind of the Gateway API, with any spec and this status.
fn definition(kind: &str, plural: &str, status: &Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": format!("{plural}.gateway.networking.k8s.io"), "annotations": {
        "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"}},
    "spec": {
        "group": "gateway.networking.k8s.io",
        "names": {"kind": kind, "plural": plural},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object",
                "properties": {"spec": any(), "status": status}}}}],
    }})
}

fn any() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A service of the shop that is outside the mesh, with its DNS name.
pub fn outside(name: &str, host: &str) -> [Value; 2] {
    let mut slice = slice(name, &[]);
    slice["addressType"] = "FQDN".into();
    slice["endpoints"] = json!([{"addresses": [host], "conditions": {"ready": true}}]);
    [service(name, 80), slice]
}

/// A policy for TLS to a service of the shop; a `ConfigMap` contains the certificate authorities.
pub fn backend_tls_policy(service: &str, authorities: &str) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "BackendTLSPolicy",
    "metadata": {"name": service, "namespace": "shop"},
    "spec": {
        "targetRefs": [{"group": "", "kind": "Service", "name": service}],
        "validation": {"hostname": "pay.example",
            "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": authorities}]},
    }})
}

/// A `ConfigMap` in the shop's namespace with one entry.
pub fn texts(name: &str, key: &str, text: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {key: text},
        "metadata": {"name": name, "namespace": "shop"}})
}

/// A traffic policy of a service of the shop; `more` adds fields to its spec.
pub fn traffic_policy(service: &str, more: &Value) -> Value {
    let mut policy = json!({"apiVersion": "leno.dev/v1alpha1", "kind": "TrafficPolicy",
        "metadata": {"name": "policy", "namespace": "shop"},
        "spec": {"targetRefs": [{"group": "", "kind": "Service", "name": service}]}});
    for (field, value) in more.as_object().unwrap() {
        policy["spec"][field] = value.clone();
    }
    policy
}

/// A condition in a route's status, which must have exactly one parent.
pub fn condition<'r>(route: &'r DynamicObject, kind: &str) -> Option<&'r Value> {
    let parents = route.data.get("status")?.get("parents")?.as_array()?;
    let [parent] = &parents[..] else { return None };
    assert_eq!(parent["controllerName"], "leno.dev/controller");
    parent["conditions"].as_array()?.iter().find(|condition| condition["type"] == kind)
}
