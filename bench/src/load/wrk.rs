//! Runs wrk and parses its output.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_testkit::binaries;

use super::{Count, Origin};

/// The kind of request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask<'a> {
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
    ask: Ask<'_>,
) -> Result<Count> {
    let mut command = origin.command(binaries::require("wrk", "wrk")?);
    command.args(["-t", "1", "-c", &connections.to_string()]);
    command.args(["-d", &format!("{}s", duration.as_secs().max(1))]);
    match ask {
        Ask::Keep => {}
        Ask::Close => drop(command.args(["-H", "Connection: close"])),
        Ask::Script(file) => drop(command.arg("-s").arg(file)),
    }
    let output = command.arg(url).output().context("cannot run wrk")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("wrk failed: {text}{}", String::from_utf8_lossy(&output.stderr));
    }
    parse(&text).with_context(|| format!("cannot read what wrk printed: {text}"))
}

fn parse(text: &str) -> Option<Count> {
    let mut count = Count::default();
    for line in text.lines().map(str::trim) {
        if let Some((number, _)) = line.split_once(" requests in ") {
            count.requests = number.parse().ok()?;
        } else if let Some(rate) = line.strip_prefix("Requests/sec:") {
            count.requests_per_s = rate.trim().parse().ok()?;
        } else if let Some(errors) = line.strip_prefix("Socket errors:") {
            // connect 0, read 3, write 0, timeout 0
            count.errors += errors
                .split_whitespace()
                .filter_map(|word| word.trim_end_matches(',').parse::<u64>().ok())
                .sum::<u64>();
        } else if let Some(number) = line.strip_prefix("Non-2xx or 3xx responses:") {
            count.errors += number.trim().parse::<u64>().ok()?;
        }
    }
    (count.requests_per_s > 0.0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counts_and_errors() {
        let text = "  70335 requests in 4.02s, 84.31MB read\n  \
            Socket errors: connect 1, read 2, write 3, timeout 4\n  \
            Non-2xx or 3xx responses: 5\nRequests/sec:  17496.41\n";
        let count = Count { requests: 70335, errors: 15, requests_per_s: 17496.41 };
        assert_eq!(parse(text), Some(count));
        assert_eq!(parse("unable to connect"), None);
    }
}
