//! nginx beside a workload, with mTLS between proxies. It cannot get the original destination, so
//! its configuration lists the services.

use std::path::Path;

use leno_measure::load::Protocol;
use nix::sys::signal::Signal;

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Configuration, Hop, STREAM};
use crate::scenario::Scenario;
use crate::tools::{self, Missing};

const TEMPLATE: &str = include_str!("../../../data/peers/nginx.conf");

#[derive(Debug)]
pub(super) struct Nginx;

impl Mesh for Nginx {
    fn name(&self) -> &str {
        "nginx"
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let missing = || Missing::new("nginx", "apt-get install -y nginx-light");
        let program = tools::find("nginx").ok_or_else(missing)?;
        Ok(MeshPrograms::of(program, "-v"))
    }

    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        match scenario.protocol {
            _ if !scenario.calls.is_empty() => {
                Some("its adapter is for one hop, without calls behind it")
            }
            Protocol::Tcp if !Path::new(STREAM).exists() => {
                Some("nginx has no relay for TCP: apt-get install -y libnginx-mod-stream")
            }
            _ => None,
        }
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let at = hop.directory.display();
        let arguments = ["-c", "{}", "-e", "stderr", "-p"].map(str::to_owned);
        let arguments = arguments.into_iter().chain([at.to_string()]).collect();
        let file = "nginx.conf";
        let told_by = hop.is_revised().then_some(Signal::SIGHUP);
        let text = hop.render(file, TEMPLATE);
        Some(Configuration { file, text, arguments, told_by, ..Configuration::default() })
    }
}
