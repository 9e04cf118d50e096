//! The HTTP probes of a pod, for its node proxy.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

/// Longest text, in bytes. Messages to the supervisor have a bounded length.
const MAX_LENGTH: usize = 8 * 1024;

/// The probes, as JSON in the form of the proxy's `--probes`; empty without probes. HTTPS and gRPC probes are left
/// out, because they only work with permissive mTLS. TCP probes are left out, because the listener accepts their
/// connections.
pub(super) fn of(spec: Option<&PodSpec>) -> String {
    let mut all = BTreeMap::new();
    let containers = |spec: &'_ PodSpec| {
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).cloned().collect()
    };
    let containers: Vec<Container> = spec.map(containers).unwrap_or_default();
    for container in containers {
        let probes = [
            ("liveness", &container.liveness_probe),
            ("readiness", &container.readiness_probe),
            ("startup", &container.startup_probe),
        ];
        for (kind, probe) in probes {
            if let Some(probe) = probe.as_ref().and_then(|probe| http(&container, probe)) {
                all.insert(format!("{}/{kind}", container.name), probe);
            }
        }
    }
    let text = if all.is_empty() { String::new() } else { json!(all).to_string() };
    let bytes = Value::from(text.as_str()).to_string().len();
    if bytes > MAX_LENGTH {
        tracing::warn!(
            bytes,
            MAX_LENGTH,
            "the probes of a pod are too long to be served by its proxy"
        );
        return String::new();
    }
    text
}

fn http(container: &Container, probe: &Probe) -> Option<Value> {
    let get = probe.http_get.as_ref()?;
    let other_host = get.host.as_ref().is_some_and(|host| !host.is_empty());
    if other_host || get.scheme.as_deref() == Some("HTTPS") {
        return None;
    }
    let port = match &get.port {
        IntOrString::Int(port) => *port,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            ports.find(|port| port.name.as_ref() == Some(name))?.container_port
        }
    };
    let headers = get.http_headers.iter().flatten();
    let headers: Vec<Value> =
        headers.map(|one| json!({"name": one.name, "value": one.value})).collect();
    Some(json!({
        "httpGet": {"path": get.path.as_deref().unwrap_or("/"), "httpHeaders": headers},
        "port": port,
        "timeoutSeconds": probe.timeout_seconds.unwrap_or(1).max(1),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_probes_of_the_pod_itself_are_handed_over() {
        let spec = serde_json::from_str(
            r#"{"containers":[
                {"name":"web","ports":[{"name":"http","containerPort":8080}],
                 "livenessProbe":{"httpGet":{"path":"/live","port":"http"},"timeoutSeconds":3},
                 "readinessProbe":{"tcpSocket":{"port":8080}},
                 "startupProbe":{"httpGet":{"port":8443,"scheme":"HTTPS"}}},
                {"name":"other","readinessProbe":{"httpGet":{"host":"192.0.2.1","port":80}},
                 "livenessProbe":{"httpGet":{"port":"nowhere"}}}]}"#,
        )
        .unwrap();
        let probes: Value = serde_json::from_str(&of(Some(&spec))).unwrap();
        let expected = json!({"web/liveness": {
            "httpGet": {"path": "/live", "httpHeaders": []}, "port": 8080, "timeoutSeconds": 3}});
        assert_eq!(probes, expected);
        assert_eq!(of(None), "");
    }

    #[test]
    fn the_bound_of_the_probes_counts_what_is_escaped() {
        let length = |character: &str, count: usize| {
            let path = character.repeat(count);
            let probe = json!({"httpGet": {"path": path, "port": 80}});
            let spec = json!({"containers": [{"name": "web", "livenessProbe": probe}]});
            of(Some(&serde_json::from_value(spec).unwrap())).len()
        };
        assert!(length("x", MAX_LENGTH / 2) > MAX_LENGTH / 2);
        assert_eq!(length("\"", MAX_LENGTH / 3), 0);
    }
}
