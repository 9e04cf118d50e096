//! HAProxy beside a workload: it gets the original destination from the kernel, with mTLS between
//! proxies.

use std::fmt::Display;

use leno_measure::load::Protocol;
use leno_types::ports::{INBOUND, OUTBOUND};
use nix::sys::signal::Signal;

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Configuration, Hop};
use crate::application::PUSHED;
use crate::scenario::Scenario;
use crate::tools::{self, Missing};

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
        let text = text(hop);
        Some(Configuration { file, text, arguments, told_by, ..Configuration::default() })
    }
}

fn text(hop: &Hop<'_>) -> String {
    let at = hop.directory.display();
    let (mode, proto, alpn) = match hop.protocol {
        Protocol::Tcp => ("mode tcp", "", "h2"),
        _ if hop.http2() => ("mode http\n  http-reuse always", " proto h2", "h2"),
        _ => ("mode http\n  http-reuse always", "", "http/1.1"),
    };
    let tls = format!("ca-file {at}/roots.pem crt {at}/both.pem verify required alpn {alpn}");
    let outward = |to: &dyn Display| format!("{to} ssl {tls} pool-max-conn 1024");
    let inward = |to: &dyn Display| format!("{to}{proto} pool-max-conn 1024");
    let (bind, servers) = match (hop.application, hop.listen, hop.churning()) {
        (None, Some(at), _) => {
            let servers = hop.services.iter().map(|service| inward(service));
            (format!("{at}{proto}"), servers.collect())
        }
        // A server without an address stands for the original destination.
        (None, None, None) => (format!("127.0.0.1:{OUTBOUND}{proto}"), vec![outward(&"0.0.0.0:0")]),
        (None, None, Some(endpoints)) => {
            let servers = endpoints.iter().map(|endpoint| outward(endpoint));
            (format!("127.0.0.1:{OUTBOUND}{proto}"), servers.collect())
        }
        (Some(application), ..) => {
            (format!("0.0.0.0:{INBOUND} ssl {tls}"), vec![inward(&application)])
        }
    };
    let pushed = hop
        .pushed()
        .map_or_else(String::new, |nth| format!("  http-request set-header {PUSHED} {nth}\n"));
    let servers: String = (0..)
        .zip(servers)
        .map(|(nth, server): (usize, String)| format!("  server s{nth} {server}\n"))
        .collect();
    format!(
        "global\n  nbthread 1\n  maxconn 8192\n  ssl-default-bind-options ssl-min-ver TLSv1.3\n\
         defaults\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  {mode}\n\
         frontend f\n  bind {bind}\n{pushed}  default_backend b\n\
         backend b\n{servers}"
    )
}
