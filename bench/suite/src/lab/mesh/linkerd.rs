//! linkerd2-proxy beside each workload, with a stand-in for its control plane on loopback. The
//! proxy requests from it its certificate, the endpoints of its destinations, and the policy for
//! its clients.

pub(crate) mod control;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use leno_types::ports::{INBOUND, OUTBOUND};

use super::adapter::{Mesh, MeshPrograms};
use super::certificates::Authority;
use super::hop::{Configuration, Hop};
use crate::scenario::{Disturbance, Scenario};
use crate::tools::{self, Missing};

use control::{CONTROL, Control, identity};

/// How to get it.
const BRING: &str = "build linkerd/linkerd2-proxy with `RUSTFLAGS=\"--cfg tokio_unstable\" cargo build --release` \
                     or take the binary out of Linkerd's image, and name it with --linkerd2-proxy PATH";
/// The address range of the lab, for which the proxy looks up endpoints.
const NETWORKS: &str = "10.0.0.0/8";

#[derive(Debug)]
pub(super) struct Linkerd {
    pub(super) given: Option<PathBuf>,
}

impl Mesh for Linkerd {
    fn name(&self) -> &str {
        "linkerd2-proxy"
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let program = tools::named_or(("linkerd2-proxy", self.given.as_deref()), None, BRING)?;
        // The program has no version flag, and would start.
        let named = program.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(MeshPrograms { version: named.unwrap_or_default(), program: Some(program) })
    }

    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        match scenario.disturbance {
            Some(Disturbance::Push { .. } | Disturbance::Churn { .. }) => {
                Some("the stand-in for its control plane tells everything once")
            }
            _ => None,
        }
    }

    fn control(&self, hop: &Hop<'_>, authority: &Arc<Authority>) -> Option<Control> {
        Some(Control::new(hop, authority.clone()))
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let at = hop.directory.display();
        let control = format!("127.0.0.1:{CONTROL}");
        let own = hop.workloads.iter().find(|(name, _)| name == hop.workload);
        let roots = fs::read_to_string(hop.directory.join("roots.pem")).unwrap_or_default();
        let environment = [
            ("LOG", "error".to_owned()),
            ("CORES", "1".to_owned()),
            ("OUTBOUND_LISTEN_ADDRS", format!("127.0.0.1:{OUTBOUND}")),
            ("INBOUND_LISTEN_ADDR", format!("0.0.0.0:{INBOUND}")),
            ("ADMIN_LISTEN_ADDR", "127.0.0.1:4191".to_owned()),
            ("CONTROL_LISTEN_ADDR", "127.0.0.1:4190".to_owned()),
            ("DESTINATION_SVC_ADDR", control.clone()),
            ("DESTINATION_PROFILE_NETWORKS", NETWORKS.to_owned()),
            ("POLICY_SVC_ADDR", control.clone()),
            ("POLICY_WORKLOAD", hop.workload.to_owned()),
            ("POLICY_CLUSTER_NETWORKS", NETWORKS.to_owned()),
            ("INBOUND_DEFAULT_POLICY", "all-authenticated".to_owned()),
            ("INBOUND_IPS", own.map_or_else(String::new, |(_, address)| address.to_string())),
            ("IDENTITY_SVC_ADDR", control),
            ("IDENTITY_LOCAL_NAME", identity(hop.workload)),
            ("IDENTITY_DIR", at.to_string()),
            ("IDENTITY_TOKEN_FILE", format!("{at}/token")),
            ("IDENTITY_TRUST_ANCHORS", roots),
        ];
        let environment =
            environment.map(|(name, value)| (format!("LINKERD2_PROXY_{name}"), value)).to_vec();
        // The proxy is configured by its environment alone; the stand-in does not check the token.
        let (file, text) = ("token", "bench\n".to_owned());
        Some(Configuration { file, text, environment, ..Configuration::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::mesh::hop::tests::hop;

    #[test]
    fn a_proxy_is_told_everything_by_its_environment() {
        let workloads = [("s0".to_owned(), [10, 89, 0, 3].into())];
        let hop = Hop { workload: "s0", workloads: &workloads, ..hop() };
        let configuration = Linkerd { given: None }.configure(&hop).unwrap();
        let told = |name: &str| {
            let name = format!("LINKERD2_PROXY_{name}");
            let found = configuration.environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.as_str())
        };
        // The proxy does not start if one of these is missing.
        for (name, value) in [
            ("DESTINATION_SVC_ADDR", "127.0.0.1:8086"),
            ("POLICY_SVC_ADDR", "127.0.0.1:8086"),
            ("POLICY_WORKLOAD", "s0"),
            ("IDENTITY_SVC_ADDR", "127.0.0.1:8086"),
            ("IDENTITY_LOCAL_NAME", "s0.bench.serviceaccount.identity.linkerd.cluster.local"),
            ("IDENTITY_DIR", "/d"),
            ("IDENTITY_TOKEN_FILE", "/d/token"),
            ("INBOUND_IPS", "10.89.0.3"),
            ("OUTBOUND_LISTEN_ADDRS", "127.0.0.1:15001"),
            ("INBOUND_LISTEN_ADDR", "0.0.0.0:15006"),
        ] {
            assert_eq!(told(name), Some(value), "{name}");
        }
        assert!(told("IDENTITY_TRUST_ANCHORS").is_some());
        assert_eq!((configuration.file, configuration.text.is_empty()), ("token", false));
    }

    #[test]
    fn a_missing_proxy_names_the_option_for_it() {
        let missing = Linkerd { given: None }.find().unwrap_err().to_string();
        assert!(missing.contains("--linkerd2-proxy PATH"), "{missing}");
        let push = crate::scenario::find("push").unwrap();
        assert!(Linkerd { given: None }.unable(&push).is_some());
    }
}
