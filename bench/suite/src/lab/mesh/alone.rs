//! Leno's proxy without a control plane, of this build or of an earlier one.
//!
//! Both get the same documents in a file, so that two builds can be measured beside each other even if they would not
//! understand each other's control plane.

use std::path::PathBuf;

use leno_measure::load::Protocol;
use leno_types::ports::{INBOUND, OUTBOUND};
use serde_json::{Value, json};

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Configuration, Hop};
use crate::application::PORT;
use crate::process::free_address;
use crate::scenario::Scenario;
use crate::tools::{self, Missing};

/// A build of Leno's proxy.
#[derive(Debug)]
pub(super) struct Alone {
    name: &'static str,
    /// The build: that of this program, or the one that the user named.
    build: Build,
}

#[derive(Debug)]
enum Build {
    This,
    Named(Option<PathBuf>),
}

impl Alone {
    /// The proxy of this build.
    pub(super) fn of_this_build() -> Self {
        Self { name: "leno-proxy", build: Build::This }
    }

    /// The build that the user named.
    pub(super) fn before(given: Option<PathBuf>) -> Self {
        Self { name: "before", build: Build::Named(given) }
    }
}

impl Mesh for Alone {
    fn name(&self) -> &str {
        self.name
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let (given, found, bring) = match &self.build {
            Build::This => (None, leno_local::program::find("leno-proxy"), "make build"),
            Build::Named(given) => {
                (given.as_deref(), None, "name an earlier build of leno-proxy with --before PATH")
            }
        };
        let program = tools::named_or((self.name, given), found, bring)?;
        Ok(MeshPrograms::of(program, "--version"))
    }

    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        scenario.disturbance.is_some().then_some("its configuration does not change while it runs")
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        in_plaintext(hop).or_else(|| Some(beside_workload(hop)))
    }
}

/// The only proxy between a client and a server; `None` if it is beside a workload.
pub(super) fn in_plaintext(hop: &Hop<'_>) -> Option<Configuration> {
    let (at, service) = (hop.listen?, hop.services.first()?);
    let port = service.port();
    let ports = |more: Value| {
        let mut port = json!({"name": "x", "port": port, "appProtocol": app_protocol(hop)});
        port.as_object_mut()?.extend(more.as_object()?.clone());
        Some(json!([port]))
    };
    let proxy = json!({"workers": 1, "admin": free_address().ok()?.to_string(), "mtls": "disabled",
        "outbound": {"listen": at.to_string(), "service": "bench/backend:80"}});
    Some(configuration(&[
        json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Proxy", "metadata": metadata("bench"), "spec": proxy}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata("backend"),
            "spec": {"clusterIP": "10.96.0.10", "ports": ports(json!({"port": 80, "targetPort": port}))?}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "backend-1", "namespace": "bench", "labels": {"kubernetes.io/service-name": "backend"}},
            "addressType": "IPv4", "ports": ports(json!({}))?,
            "endpoints": [{"addresses": [service.ip()], "conditions": {"ready": true}}]}),
    ]))
}

/// The proxy beside a workload, which knows all of them, and speaks mTLS.
fn beside_workload(hop: &Hop<'_>) -> Configuration {
    let mut spec = json!({"workers": 1, "admin": "127.0.0.1:15020", "mtls": "strict",
        "outbound": {"listen": format!("127.0.0.1:{OUTBOUND}")},
        "identity": {"certificate": "chain.pem", "key": "key.pem", "roots": "roots.pem"}});
    if let Some(application) = hop.application {
        spec["inbound"] =
            json!({"listen": format!("0.0.0.0:{INBOUND}"), "application": application.to_string()});
    }
    let name = format!("{}-0", hop.workload);
    let mut documents = vec![
        json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Proxy", "metadata": metadata(&name), "spec": spec}),
    ];
    documents.extend(hop.workloads.iter().map(|(name, address)| {
        json!({"apiVersion": "leno.dev/v1alpha1", "kind": "Workload", "metadata": metadata(name),
            "spec": {"serviceAccount": name, "command": ["true"],
                "ports": [{"name": "x", "port": PORT, "appProtocol": app_protocol(hop)}]},
            "status": {"instances":
                [{"name": format!("{name}-0"), "addresses": [address], "meshed": true, "ready": true}]}})
    }));
    configuration(&documents)
}

fn metadata(name: &str) -> Value {
    json!({"name": name, "namespace": "bench"})
}

fn app_protocol(hop: &Hop<'_>) -> &'static str {
    match hop.protocol {
        Protocol::Http1 => "http",
        Protocol::Tcp => "tcp",
        _ => "kubernetes.io/h2c",
    }
}

fn configuration(documents: &[Value]) -> Configuration {
    let text: Vec<String> = documents.iter().map(ToString::to_string).collect();
    let arguments = ["--static", "{}"].map(str::to_owned).to_vec();
    Configuration {
        file: "proxy.yaml",
        text: text.join("\n---\n"),
        arguments,
        ..Configuration::default()
    }
}
