//! Runs h2spec over TLS. Its bytes reach the HTTP/2 server of an inbound side unchanged, with ALPN `leno-h2`, like
//! another proxy's requests.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::command;
use leno_testkit::tunnel::Tunnel;

use crate::Nginx;
use crate::suite::{Group, Suite};

/// How long curl may take.
const CURL_LIMIT: Duration = Duration::from_secs(30);

#[test]
fn an_inbound_side_passes_every_case_inside_tls() -> Result<()> {
    let Some(suite) = Suite::install()? else { return Ok(()) };
    let nginx = Nginx::start(true)?;
    let tunnel = Tunnel::start(nginx.address())?;
    let outcome = suite.run(tunnel.address(), &Group::ALL)?;
    ensure!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    // Checks that the requests did use TLS.
    let mut curl = Command::new("curl");
    let url = format!("http://{}/metrics", tunnel.proxy().admin());
    curl.args(["-sS", "--fail", "-m", "20", &url]);
    let metrics = command::text(&mut curl, CURL_LIMIT)?;
    let handshakes = metrics
        .lines()
        .find_map(|line| line.strip_prefix("leno_tls_handshakes_total{direction=\"inbound\"} "));
    ensure!(handshakes.is_some_and(|count| count.trim() != "0"), "{metrics}");
    Ok(())
}
