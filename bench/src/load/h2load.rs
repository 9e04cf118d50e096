//! Runs h2load and parses its output.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_testkit::binaries;

use super::{Count, Origin};

/// Saturates `url` over HTTP/2 with prior knowledge for `duration`, with one thread. With
/// `message`, a file, it makes gRPC calls that send that message.
pub(crate) fn run(
    origin: &Origin,
    url: &str,
    (connections, streams): (usize, usize),
    duration: Duration,
    message: Option<&Path>,
) -> Result<Count> {
    let mut command = origin.command(binaries::require("h2load", "nghttp2-client")?);
    command.args(["-t", "1", "-c", &connections.to_string(), "-m", &streams.to_string()]);
    command.args(["-D", &duration.as_secs().max(1).to_string()]);
    if let Some(message) = message {
        command.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]);
        command.arg(message);
    }
    let output = command.arg(url).output().context("cannot run h2load")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("h2load failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    parse(&text).with_context(|| format!("cannot read what h2load printed: {text}"))
}

fn parse(text: &str) -> Option<Count> {
    let mut count = Count::default();
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("finished in ") {
            // 4.00s, 51234.33 req/s, 55.3MB/s
            let rate = rest.split(", ").find_map(|part| part.strip_suffix(" req/s"))?;
            count.requests_per_s = rate.parse().ok()?;
        } else if let Some(rest) = line.strip_prefix("requests: ") {
            // 10 total, 10 started, 10 done, 8 succeeded, 2 failed, 0 errored, 0 timeout
            for part in rest.split(", ") {
                let (number, what) = part.split_once(' ')?;
                let number: u64 = number.parse().ok()?;
                match what {
                    "succeeded" => count.requests = number,
                    "failed" | "errored" | "timeout" => count.errors += number,
                    _ => {}
                }
            }
        }
    }
    (count.requests_per_s > 0.0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counts_and_errors() {
        let text = "finished in 3.00s, 51234.33 req/s, 55.30MB/s\n\
            requests: 153703 total, 153743 started, 153703 done, 153700 succeeded, 1 failed, \
            2 errored, 0 timeout\nstatus codes: 153700 2xx, 0 3xx, 0 4xx, 3 5xx\n";
        let count = Count { requests: 153_700, errors: 3, requests_per_s: 51234.33 };
        assert_eq!(parse(text), Some(count));
        assert_eq!(parse("[ERROR] Could not resolve"), None);
    }
}
