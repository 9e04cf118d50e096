//! h2load of nghttp2, for HTTP/2 and gRPC.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use leno_measure::load::{Bucket, Pace, Plan, Protocol, Report};

use super::name::Client;
use super::wrk::seconds;
use crate::interrupt::Interrupt;
use crate::process;
use crate::tools::{self, Missing};

pub(super) fn find() -> Result<PathBuf, Missing> {
    let missing = || Missing::new("h2load", "apt-get install -y nghttp2-client");
    tools::find("h2load").ok_or_else(missing)
}

pub(super) fn run(client: Client<'_>, plan: &Plan, interrupt: &Interrupt) -> Result<Report> {
    let log = tempfile::NamedTempFile::new()?;
    let mut command = client(&find()?)?;
    command.args(["-t", "1", "-c", &plan.connections.to_string(), "-m", &plan.streams.to_string()]);
    command.args(["-D", &seconds(plan.duration).to_string()]);
    command.arg(format!("--log-file={}", log.path().display()));
    if let Pace::Rate(rate) = plan.pace {
        // `--rps` is the rate of one connection.
        command.args(["--rps", &(rate / plan.connections as f64).to_string()]);
    }
    let mut body = tempfile::NamedTempFile::new()?;
    if plan.protocol == Protocol::Grpc {
        use std::io::Write as _;
        let length = u32::try_from(plan.body_size)?.to_be_bytes();
        body.write_all(&[&[0][..], &length, &vec![b'x'; plan.body_size]].concat())?;
        command.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]);
        command.arg(body.path());
    }
    let said = process::run(command.arg(&plan.url), "", interrupt)?;
    let log = fs::read_to_string(log.path()).context("h2load wrote no log")?;
    Ok(read(plan, &String::from_utf8_lossy(&said), &log))
}

/// Parses the log, which has one line per request: start in microseconds since 1970, status,
/// microseconds taken.
fn read(plan: &Plan, said: &str, log: &str) -> Report {
    let mut taken: Vec<u64> = Vec::new();
    let mut errors = 0;
    for line in log.lines() {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let status = fields.next().and_then(|status| status.parse::<i64>().ok());
        let us = fields.next().and_then(|us| us.parse().ok());
        match (status, us) {
            (Some(200..400), Some(us)) => taken.push(us),
            _ => errors += 1,
        }
    }
    taken.sort_unstable();
    let mut buckets: Vec<Bucket> = Vec::new();
    for us in &taken {
        match buckets.last_mut() {
            Some(last) if last.us == *us => last.count += 1,
            _ => buckets.push(Bucket { us: *us, count: 1 }),
        }
    }
    let finished = said.lines().find_map(|line| line.strip_prefix("finished in "));
    let rate =
        finished.and_then(|line| line.split(", ").find_map(|part| part.strip_suffix(" req/s")));
    let requests = taken.len() as u64 + errors;
    let wanted = match plan.pace {
        Pace::Rate(rate) => Some(rate),
        Pace::Saturate | Pace::Think(_) => None,
    };
    let requests_per_s = rate.and_then(|rate| rate.parse().ok()).unwrap_or_default();
    Report {
        url: plan.url.clone(),
        rate_per_s: wanted,
        connections: plan.connections,
        duration_s: requests as f64 / f64::max(requests_per_s, f64::MIN_POSITIVE),
        requests,
        errors,
        requests_per_s,
        generator_limited: wanted.is_some_and(|wanted| requests_per_s < wanted * 0.95),
        buckets,
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn its_log_is_read() {
        let log = "1000\t200\t150\n1001\t200\t150\n1002\t503\t90\n1003\t200\t151\n1004\t-1\t5\n";
        let said = "finished in 2.00s, 2.50 req/s, 1KB/s\n";
        let plan = Plan::new("http://a/", 2.5, Duration::from_secs(2));
        let report = read(&plan, said, log);
        assert_eq!((report.requests, report.errors), (5, 2));
        assert_eq!(report.buckets, [Bucket { us: 150, count: 2 }, Bucket { us: 151, count: 1 }]);
        assert!((report.duration_s - 2.0).abs() < 1e-9 && !report.generator_limited);
    }
}
