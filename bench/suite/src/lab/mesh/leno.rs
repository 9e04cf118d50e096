//! Leno itself, with each kind of capture; and no mesh at all.

use leno_capture::Choice;
use leno_measure::load::Protocol;
use serde_json::{Value, json};

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Configuration, Hop};
use crate::mesh_names::NONE;
use crate::process::free_address;
use crate::tools::Missing;

/// No proxy.
#[derive(Debug)]
pub(super) struct None;

impl Mesh for None {
    fn name(&self) -> &str {
        NONE
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        Ok(MeshPrograms::default())
    }
}

/// Leno as `leno up` runs it: strict mTLS, a proxy beside each workload, and Leno's own control
/// plane.
#[derive(Debug)]
pub(super) struct Leno {
    name: String,
    capture: Choice,
}

impl Leno {
    /// Parses `leno`, or `leno-` and a kind of capture.
    pub(super) fn named(name: &str) -> Option<Self> {
        let capture = match name.strip_prefix("leno")? {
            "" => Choice::Auto,
            capture => capture.strip_prefix('-')?.parse().ok()?,
        };
        Some(Self { name: name.to_owned(), capture })
    }
}

impl Mesh for Leno {
    fn name(&self) -> &str {
        &self.name
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let find = |program: &str| {
            let missing = || Missing::new(program, "make build");
            leno_local::program::find(program).ok_or_else(missing)
        };
        find("leno-controller")?;
        Ok(MeshPrograms::of(find("leno-proxy")?, "--version"))
    }

    fn own(&self) -> Option<Choice> {
        Some(self.capture)
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let (at, service) = (hop.listen?, hop.services.first()?);
        let protocol = match hop.protocol {
            Protocol::Http1 => "http",
            Protocol::Tcp => "tcp",
            _ => "kubernetes.io/h2c",
        };
        let (admin, port) = (free_address().ok()?.to_string(), service.port());
        let ports = |more: Value| {
            let mut port = json!({"name": "x", "port": port, "appProtocol": protocol});
            port.as_object_mut()?.extend(more.as_object()?.clone());
            Some(json!([port]))
        };
        let metadata = |name: &str, labels: Value| json!({"name": name, "namespace": "bench", "labels": labels});
        let documents = [
            json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Proxy", "metadata": metadata("bench", json!({})),
                "spec": {"workers": 1, "admin": admin, "mtls": "disabled",
                    "outbound": {"listen": at.to_string(), "service": "bench/backend:80"}}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("backend", json!({})),
                "spec": {"clusterIP": "10.96.0.10", "ports": ports(json!({"port": 80, "targetPort": port}))?}}),
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": metadata("backend-1", json!({"kubernetes.io/service-name": "backend"})),
                "addressType": "IPv4", "ports": ports(json!({}))?,
                "endpoints": [{"addresses": [service.ip()], "conditions": {"ready": true}}]}),
        ];
        let text = documents.map(|document| document.to_string()).join("\n---\n");
        let arguments = ["--static", "{}"].map(str::to_owned).to_vec();
        Some(Configuration { file: "proxy.yaml", text, arguments, ..Configuration::default() })
    }
}
