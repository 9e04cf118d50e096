//! wrk, for HTTP/1.1 in a closed loop.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use leno_measure::load::{Bucket, Plan, Report};

use super::name::Client;
use crate::interrupt::Interrupt;
use crate::process;
use crate::tools::{self, Missing};

pub(super) fn find() -> Result<PathBuf, Missing> {
    tools::find("wrk").ok_or_else(|| Missing::new("wrk", "apt-get install -y wrk"))
}

pub(super) fn run(client: Client<'_>, plan: &Plan, interrupt: &Interrupt) -> Result<Report> {
    let mut command = client(&find()?)?;
    command.args(["--latency", "-t", "1", "-c", &plan.connections.to_string()]);
    command.args(["-d", &format!("{}s", seconds(plan.duration))]);
    if plan.new_connection {
        command.args(["-H", "Connection: close"]);
    }
    // wrk sends bodies only by a script.
    let mut script = tempfile::NamedTempFile::new()?;
    if plan.body_size > 0 {
        let (method, size) = (&plan.method, plan.body_size);
        writeln!(script, "wrk.method = {method:?} wrk.body = string.rep('x', {size})")?;
        command.arg("-s").arg(script.path());
    }
    let said = process::run(command.arg(&plan.url), "", interrupt)?;
    let text = String::from_utf8_lossy(&said);
    let report = parse(&text).with_context(|| format!("cannot read what wrk printed: {text}"))?;
    Ok(Report { url: plan.url.clone(), connections: plan.connections, ..report })
}

/// Parses wrk's output: counts, and its four percentiles if it was started with `--latency`. Each
/// percentile stands for the requests since the one before it. `None` if there is no rate in it.
fn parse(text: &str) -> Option<Report> {
    let mut report = Report::default();
    let mut quantiles: Vec<(f64, u64)> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some((number, rest)) = line.split_once(" requests in ") {
            report.requests = number.parse().ok()?;
            report.duration_s = microseconds(rest.split(',').next()?)? / 1e6;
        } else if let Some(rate) = line.strip_prefix("Requests/sec:") {
            report.requests_per_s = rate.trim().parse().ok()?;
        } else if let Some(errors) = line.strip_prefix("Socket errors:") {
            // connect 0, read 3, write 0, timeout 0
            let numbers = errors
                .split_whitespace()
                .filter_map(|word| word.trim_end_matches(',').parse::<u64>().ok());
            report.errors += numbers.sum::<u64>();
        } else if let Some(number) = line.strip_prefix("Non-2xx or 3xx responses:") {
            report.errors += number.trim().parse::<u64>().ok()?;
        } else if let Some((quantile, value)) = line.split_once('%')
            && let (Ok(quantile), Some(us)) = (quantile.parse::<f64>(), microseconds(value.trim()))
        {
            quantiles.push((quantile / 100.0, us.round() as u64));
        }
    }
    let mut before = 0.0;
    for (quantile, us) in quantiles {
        let count = ((quantile - before) * report.requests as f64).round() as u64;
        report.buckets.push(Bucket { us, count });
        before = quantile;
    }
    (report.requests_per_s > 0.0).then_some(report)
}

/// Parses a time such as 12.34us, 1.2ms, 3.00s or 1.5m.
fn microseconds(text: &str) -> Option<f64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let number: f64 = text[..digits].parse().ok()?;
    let factor = match &text[digits..] {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return None,
    };
    Some(number * factor)
}

/// A duration in whole seconds, at least 1, for programs that accept no fractions.
pub(super) fn seconds(duration: Duration) -> u64 {
    duration.as_secs_f64().round().max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_percentiles_are_read() {
        let text = "  Latency Distribution\n     50%  500.00us\n     75%    1.00ms\n     90%    2.00ms\n     \
            99%    3.50ms\n  1000 requests in 4.02s, 84.31MB read\n  \
            Socket errors: connect 1, read 2, write 3, timeout 4\n  \
            Non-2xx or 3xx responses: 5\nRequests/sec:  248.76\n";
        let report = parse(text).unwrap();
        assert_eq!((report.requests, report.errors), (1000, 15));
        assert!((report.requests_per_s - 248.76).abs() < 1e-9, "{report:?}");
        assert_eq!(report.buckets[0], Bucket { us: 500, count: 500 });
        assert_eq!(report.buckets.last(), Some(&Bucket { us: 3500, count: 90 }));
        assert!(parse("unable to connect").is_none());
    }
}
