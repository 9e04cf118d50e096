//! ztunnel, Istio's proxy for layer 4, beside each workload. Proxies use HBONE with mTLS between
//! them; their certificates come from ztunnel's fake authority, and their configuration from a
//! local file.
//!
//! Only a build with the feature `testing` has the fake authority; released builds do not.

use std::path::PathBuf;

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Captured, Configuration, Hop};
use crate::scenario::{Disturbance, Scenario};
use crate::tools::{self, Missing};

/// The port for HBONE.
const HBONE: u16 = 15008;
/// How to build it.
const BRING: &str = "build istio/ztunnel with `cargo build --release --no-default-features \
                     --features tls-aws-lc,testing` and name the binary with --ztunnel PATH";

const TEMPLATE: &str = include_str!("../../../data/peers/ztunnel.yaml");

#[derive(Debug)]
pub(super) struct Ztunnel {
    pub(super) given: Option<PathBuf>,
}

impl Mesh for Ztunnel {
    fn name(&self) -> &str {
        "ztunnel"
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let program = tools::named_or(("ztunnel", self.given.as_deref()), None, BRING)?;
        Ok(MeshPrograms::of(program, "version"))
    }

    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        match scenario.disturbance {
            Some(Disturbance::Push { .. }) => {
                Some("ztunnel has no routes: those are its waypoint's, which is Envoy")
            }
            Some(Disturbance::Churn { .. }) => {
                Some("ztunnel reads its local file once; only istiod tells it of other endpoints")
            }
            _ if !scenario.calls.is_empty() => {
                Some("its adapter is for one hop, without calls behind it")
            }
            _ => None,
        }
    }

    /// Connections to a service arrive at the proxy's own port.
    fn captured(&self, hop: &Hop<'_>) -> Captured {
        if hop.application.is_some() { Captured::Not(HBONE) } else { Captured::Fully }
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let file = "local.yaml";
        let at = hop.directory.join(file);
        let environment = [
            ("FAKE_CA", "true".to_owned()),
            ("XDS_ADDRESS", String::new()),
            ("LOCAL_XDS_PATH", at.display().to_string()),
            ("PROXY_MODE", "dedicated".to_owned()),
            ("PROXY_WORKLOAD_INFO", format!("bench/{0}/{0}", hop.workload)),
            ("IPV6_ENABLED", "false".to_owned()),
            ("ZTUNNEL_WORKER_THREADS", "1".to_owned()),
            ("RUST_LOG", "error".to_owned()),
        ];
        Some(Configuration {
            file,
            text: hop.render(file, TEMPLATE),
            environment: environment.map(|(name, value)| (name.to_owned(), value)).to_vec(),
            ..Configuration::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::mesh::hop::tests::hop;

    #[test]
    fn every_workload_is_known_to_every_other() {
        let workloads = [
            ("client".to_owned(), [10, 89, 0, 2].into()),
            ("s0".to_owned(), [10, 89, 0, 3].into()),
        ];
        let hop = Hop { workload: "s0", workloads: &workloads, ..hop() };
        let configuration = Ztunnel { given: None }.configure(&hop).unwrap();
        let read: serde_json::Value = serde_saphyr::from_str(&configuration.text).unwrap();
        let known = read["workloads"].as_array().unwrap();
        assert_eq!((known.len(), known[1]["workloadIps"][0].as_str()), (2, Some("10.89.0.3")));
        assert_eq!(known[0]["protocol"], "HBONE");
        assert!(known[0]["services"].is_object(), "ztunnel wants the field");
        let is_told = |name: &str, value: &str| {
            configuration.environment.contains(&(name.to_owned(), value.to_owned()))
        };
        assert!(is_told("PROXY_WORKLOAD_INFO", "bench/s0/s0") && is_told("FAKE_CA", "true"));
        assert!(is_told("XDS_ADDRESS", ""), "it looks for no istiod");
    }

    #[test]
    fn ztunnel_refuses_scenarios_that_it_cannot_carry() {
        for (scenario, able) in
            [("http-1k", true), ("push", false), ("churn", false), ("faces", false)]
        {
            let scenario = crate::scenario::find(scenario).unwrap();
            assert_eq!(
                Ztunnel { given: None }.unable(&scenario).is_none(),
                able,
                "{}",
                scenario.name
            );
        }
        let missing = Ztunnel { given: None }.find().unwrap_err().to_string();
        assert!(missing.contains("--ztunnel") && missing.contains("testing"), "{missing}");
    }
}
