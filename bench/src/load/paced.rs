//! Open loops: requests at a fixed rate, with latencies from the moment each was due.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_testkit::binaries;
use leno_testkit::load::Latency;
use serde::{Deserialize, Serialize};

use super::{H2_CONNECTIONS, Origin};

/// When requests are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Requests a second.
    pub(crate) rate: f64,
    /// How long to generate load before the measurement.
    pub(crate) warm_up: Duration,
    /// How long to measure.
    pub(crate) duration: Duration,
}

/// The result of an open loop: the fields that `leno-load` and the bench's own HTTP/2 load both
/// report.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Paced {
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) requests_per_s: f64,
    pub(crate) latency_us: Latency,
    pub(crate) generator_limited: bool,
}

/// Runs over HTTP/1.1, on kept connections or on a new one for each request.
pub(crate) fn over_http1(
    origin: &Origin,
    url: &str,
    (connections, new_connection): (usize, bool),
    pace: Pace,
) -> Result<Paced> {
    let mut command = origin.command(binaries::ours("leno-load")?);
    command.args(["-o", "json", "--url", url, "--connections", &connections.to_string()]);
    command.args(["--rate", &pace.rate.to_string()]);
    command.args(["--warm-up", &seconds(pace.warm_up), "--duration", &seconds(pace.duration)]);
    if new_connection {
        command.arg("--new-connection");
    }
    run(&mut command)
}

/// Runs over HTTP/2 with prior knowledge. With `message`, a file, it makes gRPC calls that send
/// that message.
pub(crate) fn over_http2(
    origin: &Origin,
    url: &str,
    message: Option<&Path>,
    pace: Pace,
) -> Result<Paced> {
    let mut command = origin.command(binaries::ours("leno-bench")?);
    command.args(["load", "h2", url, "--connections", &H2_CONNECTIONS.to_string()]);
    command.args(["--rate", &pace.rate.to_string()]);
    command.args(["--warm-up", &pace.warm_up.as_secs_f64().to_string()]);
    command.args(["--seconds", &pace.duration.as_secs_f64().to_string()]);
    if let Some(message) = message {
        command.arg("--message").arg(message);
    }
    run(&mut command)
}

fn seconds(time: Duration) -> String {
    format!("{}s", time.as_secs_f64())
}

/// Runs a generator and parses its report. Failed requests are in the report; any other failure is
/// an error.
fn run(command: &mut Command) -> Result<Paced> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match serde_json::from_str(&text) {
        Ok(paced) => Ok(paced),
        Err(error) => {
            bail!("{command:?}: {error}: {text}{}", String::from_utf8_lossy(&output.stderr))
        }
    }
}
