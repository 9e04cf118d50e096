//! Runs wrk.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_suite::generator::wrk;
use leno_testkit::binaries;
use leno_testkit::load::Report;

use super::{Count, Origin};

/// The kind of request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WrkRequests<'a> {
    /// GET, on connections that are kept open.
    Keep,
    /// GET, on a new connection for each request.
    Close,
    /// The requests that a Lua script makes.
    Script(&'a Path),
}

/// Saturates `url` for `duration` over `connections` connections, with one thread.
pub(crate) fn run(
    origin: &Origin,
    url: &str,
    connections: usize,
    duration: Duration,
    ask: WrkRequests<'_>,
) -> Result<Count> {
    let mut command = origin.command(binaries::require("wrk", "wrk")?);
    command.args(["-t", "1", "-c", &connections.to_string()]);
    command.args(["-d", &format!("{}s", duration.as_secs().max(1))]);
    match ask {
        WrkRequests::Keep => {}
        WrkRequests::Close => drop(command.args(["-H", "Connection: close"])),
        WrkRequests::Script(file) => drop(command.arg("-s").arg(file)),
    }
    let output = command.arg(url).output().context("cannot run wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    let report =
        wrk::parse(&text).with_context(|| format!("cannot read what wrk printed: {text}"))?;
    let Report { requests, errors, requests_per_s, .. } = report;
    Ok(Count { requests, errors, requests_per_s })
}
