//! h2spec inside of TLS: what it says reaches the HTTP/2 server of an inbound side as it is, behind
//! ALPN `leno-h2`, as another proxy's requests do.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::proxy::{Proxy, free_address};
use leno_testkit::{binaries, command};

use crate::suite::{Group, Suite};
use crate::{Listening, Nginx};

/// How long openssl may take.
const OPENSSL_LIMIT: Duration = Duration::from_secs(20);

#[test]
fn an_inbound_side_passes_every_case_inside_tls() -> Result<()> {
    let Some(suite) = Suite::install()? else { return Ok(()) };
    let nginx = Nginx::start(true)?;
    let directory = tempfile::tempdir()?;
    let (key, certificate) = (directory.path().join("key"), directory.path().join("crt"));
    let mut make = Command::new(binaries::require("openssl", "openssl")?);
    make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    make.args(["-nodes", "-days", "1", "-subj", "/CN=web", "-addext"]);
    make.arg("subjectAltName=URI:spiffe://cluster.local/ns/t/sa/web");
    make.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    command::text(&mut make, OPENSSL_LIMIT)?;
    let (key, certificate) = (key.display(), certificate.display());
    let application = nginx.address();
    let proxy = Proxy::start_with(|address, admin| {
        format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: web, namespace: t}}\n\
             spec:\n  workers: 1\n  admin: \"{admin}\"\n  mtls: permissive\n  \
             inbound: {{listen: \"{address}\", application: \"{application}\"}}\n  \
             identity: {{certificate: {certificate}, key: {key}, roots: {certificate}}}\n"
        )
    })?;
    let tunnel = tunnel(proxy.address(), directory.path())?;
    let outcome = suite.run(tunnel.address, &Group::ALL)?;
    ensure!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    // It was HTTP/2 behind TLS that it passed, of a client without an identity.
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "-m", "20"]).arg(format!("http://{}/metrics", proxy.admin()));
    let metrics = command::text(&mut curl, OPENSSL_LIMIT)?;
    let handshakes = metrics
        .lines()
        .find_map(|line| line.strip_prefix("leno_tls_handshakes_total{direction=\"inbound\"} "));
    ensure!(handshakes.is_some_and(|count| count.trim() != "0"), "{metrics}");
    Ok(())
}

/// HAProxy, which carries connections inside TLS to a proxy.
fn tunnel(proxy: SocketAddr, directory: &Path) -> Result<Listening> {
    let address = free_address()?;
    let config = directory.join("haproxy.cfg");
    fs::write(
        &config,
        format!(
            "defaults\n  mode tcp\n  timeout connect 20s\n  timeout client 60s\n  \
             timeout server 60s\nlisten tls\n  bind {address}\n  \
             server proxy {proxy} ssl verify none alpn leno-h2\n"
        ),
    )?;
    let mut command = Command::new(binaries::require("haproxy", "haproxy")?);
    Listening::start(command.arg("-db").arg("-f").arg(config), address)
}
