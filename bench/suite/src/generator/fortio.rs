//! Fortio, the generator of Istio's own benchmarks.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use leno_measure::load::{Bucket, Pace, Plan, Report};
use serde::Deserialize;

use crate::interrupt::Interrupt;
use crate::lab::{self, Lab};
use crate::mesh::{Missing, tools};

/// Where `scripts/tools.sh fortio` puts it.
const INSTALLED: &str = "fortio/fortio";

pub(super) fn find() -> Result<PathBuf, Missing> {
    tools::installed(INSTALLED).or_else(|| tools::find("fortio")).ok_or_else(|| Missing {
        what: "fortio".to_owned(),
        bring: "scripts/tools.sh fortio".to_owned(),
    })
}

pub(super) fn run(lab: &Lab, plan: &Plan, interrupt: &Interrupt) -> Result<Report> {
    let Pace::Rate(rate) = plan.pace else { bail!("fortio needs a rate") };
    // Its histogram has buckets of up to twice the value before; its log has every request.
    let log = tempfile::NamedTempFile::new()?;
    let mut command = lab.as_client(&find()?)?;
    command.args(["load", "-quiet", "-json", "-", "-nocatchup", "-uniform"]);
    command.args(["-access-log-format", "json", "-access-log-file"]).arg(log.path());
    command.args(["-qps", &rate.to_string(), "-c", &plan.connections.to_string()]);
    command.args(["-t", &format!("{}ms", plan.duration.as_millis())]);
    if plan.new_connection {
        command.arg("-keepalive=false");
    }
    let said = lab::run(command.arg(&plan.url), "", interrupt)?;
    let report: Said = serde_json::from_slice(&said).context("fortio did not report")?;
    let log = fs::read_to_string(log.path()).context("fortio wrote no log")?;
    Ok(report.read(&log, plan, rate))
}

/// What is read of its report.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Said {
    #[serde(rename = "ActualQPS")]
    actual_qps: f64,
    /// Nanoseconds.
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

/// A line of its log.
#[derive(Debug, Deserialize)]
struct Request {
    /// Seconds.
    latency: f64,
    ok: bool,
}

impl Said {
    fn read(self, log: &str, plan: &Plan, rate: f64) -> Report {
        let failed: BTreeMap<String, u64> = self
            .ret_codes
            .iter()
            .filter(|(code, _)| !matches!(code.parse(), Ok(200..300)))
            .map(|(code, count)| (format!("status_{code}"), *count))
            .collect();
        let requests = log.lines().filter_map(|line| serde_json::from_str::<Request>(line).ok());
        let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
        for request in requests.filter(|request| request.ok) {
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
            // It sends late when it cannot keep up, and says only that it was slower.
            generator_limited: self.actual_qps < rate * 0.95,
            buckets: counted.into_iter().map(|(us, count)| Bucket { us, count }).collect(),
            ..Report::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn its_report_is_read() {
        let text = r#"{"ActualQPS": 99.5, "ActualDuration": 2010000000,
            "DurationHistogram": {"Count": 4}, "RetCodes": {"200": 2, "503": 1, "-1": 1}}"#;
        let log = "{\"latency\":0.0105,\"ok\":true,\"details\":\"200\"}\n\
            {\"latency\":0.0105,\"ok\":true}\n{\"latency\":9,\"ok\":false}\n";
        let said: Said = serde_json::from_str(text).unwrap();
        let report = said.read(log, &Plan::new("http://a/", 100.0, Duration::from_secs(2)), 100.0);
        assert_eq!((report.requests, report.errors), (4, 2));
        assert_eq!(report.buckets, [Bucket { us: 10_500, count: 2 }]);
        assert!(!report.generator_limited && (report.duration_s - 2.01).abs() < 1e-9);
    }
}
