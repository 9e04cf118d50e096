//! Fortio, the generator of Istio's own benchmarks.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use leno_measure::load::{Bucket, Pace, Plan, Report};
use serde::Deserialize;

use super::name::Client;
use crate::interrupt::Interrupt;
use crate::process;
use crate::tools::{self, Missing};

/// The path at which `scripts/tools.sh fortio` installs it.
const INSTALLED: &str = "fortio/fortio";

pub(super) fn find() -> Result<PathBuf, Missing> {
    let found = tools::installed(INSTALLED).or_else(|| tools::find("fortio"));
    found.ok_or_else(|| Missing::new("fortio", "scripts/tools.sh fortio"))
}

pub(super) fn run(client: Client<'_>, plan: &Plan, interrupt: &Interrupt) -> Result<Report> {
    let Pace::Rate(rate) = plan.pace else { bail!("fortio needs a rate") };
    // The buckets of its histogram double in size, so the latencies are read from its log, which
    // has every request.
    let log = tempfile::NamedTempFile::new()?;
    let mut command = client(&find()?)?;
    command.args(["load", "-quiet", "-json", "-", "-nocatchup", "-uniform"]);
    command.args(["-access-log-format", "json", "-access-log-file"]).arg(log.path());
    command.args(["-qps", &rate.to_string(), "-c", &plan.connections.to_string()]);
    command.args(["-t", &format!("{}ms", plan.duration.as_millis())]);
    if plan.new_connection {
        command.arg("-keepalive=false");
    }
    let said = process::run(command.arg(&plan.url), "", interrupt)?;
    let report: FortioReport = serde_json::from_slice(&said).context("fortio did not report")?;
    let log = fs::read_to_string(log.path()).context("fortio wrote no log")?;
    Ok(report.read(&log, plan, rate))
}

/// The fields of its report that are used.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FortioReport {
    #[serde(rename = "ActualQPS")]
    actual_qps: f64,
    /// In nanoseconds.
    actual_duration: f64,
    duration_histogram: Durations,
    #[serde(default)]
    ret_codes: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Durations {
    count: u64,
}

/// One line of its log.
#[derive(Debug, Deserialize)]
struct Request {
    /// In seconds.
    latency: f64,
    ok: bool,
    /// The status. Fortio counts a redirect as a failure, all other generators as an answer.
    #[serde(default)]
    details: String,
}

impl Request {
    fn is_answered(&self) -> bool {
        self.ok || matches!(self.details.parse(), Ok(300..400))
    }
}

impl FortioReport {
    fn read(self, log: &str, plan: &Plan, rate: f64) -> Report {
        let failed: BTreeMap<String, u64> = self
            .ret_codes
            .iter()
            .filter(|(code, _)| !matches!(code.parse(), Ok(200..400)))
            .map(|(code, count)| (format!("status_{code}"), *count))
            .collect();
        let requests = log.lines().filter_map(|line| serde_json::from_str::<Request>(line).ok());
        let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
        for request in requests.filter(Request::is_answered) {
            *counted.entry((request.latency * 1e6).round() as u64).or_default() += 1;
        }
        Report {
            url: plan.url.clone(),
            rate_per_s: Some(rate),
            connections: plan.connections,
            duration_s: self.actual_duration / 1e9,
            requests: self.duration_histogram.count,
            errors: failed.values().sum(),
            errors_by_kind: failed,
            requests_per_s: self.actual_qps,
            generator_limited: (self.duration_histogram.count as f64) < wanted(plan, rate) * 0.95,
            buckets: counted.into_iter().map(|(us, count)| Bucket { us, count }).collect(),
            ..Report::default()
        }
    }
}

/// The number of requests that Fortio means to send: on each connection, the whole requests that
/// fit into the duration. If it cannot keep up it sends fewer, and its report gives no other sign.
fn wanted(plan: &Plan, rate: f64) -> f64 {
    let connections = plan.connections as f64;
    connections * (rate * plan.duration.as_secs_f64() / connections).floor()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn its_report_is_read() {
        let text = r#"{"ActualQPS": 99.5, "ActualDuration": 2010000000,
            "DurationHistogram": {"Count": 200}, "RetCodes": {"200": 197, "302": 1, "503": 1, "-1": 1}}"#;
        let log = "{\"latency\":0.0105,\"ok\":true,\"details\":\"200\"}\n\
            {\"latency\":0.0105,\"ok\":true}\n\
            {\"latency\":0.02,\"ok\":false,\"details\":\"302\"}\n\
            {\"latency\":9,\"ok\":false,\"details\":\"503\"}\n";
        let said: FortioReport = serde_json::from_str(text).unwrap();
        let report = said.read(log, &Plan::new("http://a/", 100.0, Duration::from_secs(2)), 100.0);
        assert_eq!((report.requests, report.errors), (200, 2));
        let answered = [Bucket { us: 10_500, count: 2 }, Bucket { us: 20_000, count: 1 }];
        assert_eq!(report.buckets, answered, "a redirect is an answer");
        assert!(!report.generator_limited && (report.duration_s - 2.01).abs() < 1e-9);
    }

    /// Regression: all runs of a few seconds at a low rate were marked (16 connections for 20
    /// requests/s).
    #[test]
    fn a_last_request_that_does_not_fit_into_the_time_is_no_error() {
        let mut plan = Plan::new("http://a/", 20.0, Duration::from_secs(5));
        plan.connections = 16;
        assert_eq!(wanted(&plan, 20.0), 96.0, "6 on each, not 6.25");
        let said = |count| FortioReport {
            actual_qps: 17.3,
            actual_duration: 5.5e9,
            duration_histogram: Durations { count },
            ret_codes: BTreeMap::new(),
        };
        let limited = |count| said(count).read("", &plan, 20.0).generator_limited;
        assert!(!limited(96) && !limited(92) && limited(90));
    }
}
