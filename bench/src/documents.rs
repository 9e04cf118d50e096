//! The templates of the documents from which the commands of this crate start a mesh or Envoy.

use anyhow::{Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use minijinja::{Environment, Value};

/// A document for a proxy that balances. The template's values are the addresses of the proxy, the algorithm, and the
/// addresses of the servers.
pub(crate) const BALANCE: &str = include_str!("../data/balance.yaml");
pub(crate) const CLIENT_ADDRESS: &str = include_str!("../data/client_address.yaml");
pub(crate) const FLOWS: &str = include_str!("../data/flows.yaml");
pub(crate) const ROUTES: &str = include_str!("../data/routes.yaml");
/// The text that replaces the one route in `ROUTES` that changes.
pub(crate) const CHANGED_ROUTE: &str = include_str!("../data/routes.change.yaml");
/// The configuration of an Envoy that sends back the bytes that it receives.
pub(crate) const ECHO_OF_ENVOY: &str = include_str!("../data/echo.envoy.yaml");

/// Renders a template.
pub(crate) fn from_template(template: &str, values: Value) -> String {
    Environment::new().render_str(template, values).expect("a test makes each")
}

/// Starts a mesh from these documents. Only root may do this.
pub(crate) fn mesh(documents: &str) -> Result<Lab> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "leno up creates network namespaces, which needs root: run this as root"
    );
    Lab::start(&LabOptions::new(Capture::Ebpf), documents, |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use minijinja::context;
    use minijinja::value::Serde;

    use super::*;

    #[test]
    fn every_template_makes_yaml() {
        let values = context! {
            admin => "127.0.0.1:1", address => "127.0.0.1:2", algorithm => "PeakEwma",
            servers => Serde([("127.0.0.1", 3), ("127.0.0.1", 4)]),
            source => "off", has_redis => true, number => 7, port => 5, folder => "/x",
        };
        for (template, count) in [
            (BALANCE, 5),
            (CLIENT_ADDRESS, 1),
            (FLOWS, 4),
            (ROUTES, 6),
            (CHANGED_ROUTE, 2),
            (ECHO_OF_ENVOY, 1),
        ] {
            let text = from_template(template, values.clone());
            assert_eq!(text.split("---\n").count(), count, "{text}");
            for document in text.split("---\n").filter(|one| !one.is_empty()) {
                serde_saphyr::from_str::<serde_json::Value>(document).expect(document);
            }
        }
        assert!(
            from_template(CHANGED_ROUTE, values)
                .contains("value: \"7\"}]}}]\n    backendRefs: [{name: v2")
        );
    }
}
