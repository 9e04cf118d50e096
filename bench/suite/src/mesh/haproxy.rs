//! HAProxy beside a workload: it asks the kernel for the original destination, mTLS between two.

use leno_measure::load::Protocol;
use leno_types::ports::{INBOUND, OUTBOUND};

use super::{Configuration, Found, Hop, Mesh, Missing, tools};
use crate::scenario::Scenario;

/// HAProxy.
#[derive(Debug)]
pub(super) struct Haproxy;

impl Mesh for Haproxy {
    fn name(&self) -> &str {
        "haproxy"
    }

    fn find(&self) -> Result<Found, Missing> {
        let bring = "apt-get install -y haproxy".to_owned();
        let program =
            tools::find("haproxy").ok_or(Missing { what: "haproxy".to_owned(), bring })?;
        let version = tools::version(&program, "-v");
        Ok(Found { program: Some(program), version })
    }

    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        (!scenario.calls.is_empty())
            .then_some("its adapter is for one hop, without calls behind it")
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let arguments = ["-db", "-f", "{}"].map(str::to_owned).to_vec();
        Some(Configuration { file: "haproxy.cfg", text: text(hop), arguments })
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
    let (bind, server) = match hop.application {
        // A server without an address is where the client meant to go.
        None => (
            format!("127.0.0.1:{OUTBOUND}{proto}"),
            format!("0.0.0.0:0 ssl {tls} pool-max-conn 1024"),
        ),
        Some(application) => (
            format!("0.0.0.0:{INBOUND} ssl {tls}"),
            format!("{application}{proto} pool-max-conn 1024"),
        ),
    };
    format!(
        "global\n  nbthread 1\n  maxconn 8192\n  ssl-default-bind-options ssl-min-ver TLSv1.3\n\
         defaults\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  {mode}\n\
         frontend f\n  bind {bind}\n  default_backend b\n\
         backend b\n  server s {server}\n"
    )
}
