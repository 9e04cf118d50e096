//! HAProxy beside a workload: it gets the original destination from the kernel, with mTLS between
//! proxies.

use nix::sys::signal::Signal;

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Configuration, Hop};
use crate::scenario::Scenario;
use crate::tools::{self, Missing};

const TEMPLATE: &str = include_str!("../../../data/peers/haproxy.cfg");

#[derive(Debug)]
pub(super) struct Haproxy;

impl Mesh for Haproxy {
    fn name(&self) -> &str {
        "haproxy"
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let missing = || Missing::new("haproxy", "apt-get install -y haproxy");
        let program = tools::find("haproxy").ok_or_else(missing)?;
        Ok(MeshPrograms::of(program, "-v"))
    }

    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        (!scenario.calls.is_empty())
            .then_some("its adapter is for one hop, without calls behind it")
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        // With `-W`, a master process reads the file again on SIGUSR2.
        let (how, told_by) = match hop.is_revised() {
            true => ("-W", Some(Signal::SIGUSR2)),
            false => ("-db", None),
        };
        let arguments = [how, "-f", "{}"].map(str::to_owned).to_vec();
        let file = "haproxy.cfg";
        let text = hop.render(file, TEMPLATE);
        Some(Configuration { file, text, arguments, told_by, ..Configuration::default() })
    }
}
