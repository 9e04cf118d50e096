//! Fortio, the generator of Istio's own benchmarks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use leno_measure::load::{Bucket, Pace, Plan, Report};
use serde::Deserialize;

use crate::interrupt::Interrupt;
use crate::lab::{self, Lab};
use crate::mesh::{Missing, tools};

/// Where `scripts/tools.sh fortio` puts it.
const INSTALLED: &str = "fortio/fortio";
/// Width of its finest bucket, in seconds.
const RESOLUTION: &str = "0.00001";

pub(super) fn find() -> Result<PathBuf, Missing> {
    tools::installed(INSTALLED).or_else(|| tools::find("fortio")).ok_or_else(|| Missing {
        what: "fortio".to_owned(),
        bring: "scripts/tools.sh fortio".to_owned(),
    })
}

pub(super) fn run(lab: &Lab, plan: &Plan, interrupt: &Interrupt) -> Result<Report> {
    let Pace::Rate(rate) = plan.pace else { bail!("fortio needs a rate") };
    let mut command = lab.as_client(&find()?)?;
    command.args(["load", "-quiet", "-json", "-", "-nocatchup", "-uniform", "-r", RESOLUTION]);
    command.args(["-qps", &rate.to_string(), "-c", &plan.connections.to_string()]);
    command.args(["-t", &format!("{}ms", plan.duration.as_millis())]);
    if plan.new_connection {
        command.arg("-keepalive=false");
    }
    let said = lab::run(command.arg(&plan.url), "", interrupt)?;
    let report: Said = serde_json::from_slice(&said).context("fortio did not report")?;
    Ok(report.read(plan, rate))
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
    #[serde(default)]
    data: Option<Vec<Part>>,
}

/// A bucket: evenly spread from `start` to `end`, in seconds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Part {
    start: f64,
    end: f64,
    count: u64,
}

impl Said {
    fn read(self, plan: &Plan, rate: f64) -> Report {
        let failed: BTreeMap<String, u64> = self
            .ret_codes
            .iter()
            .filter(|(code, _)| !matches!(code.parse(), Ok(200..300)))
            .map(|(code, count)| (format!("status_{code}"), *count))
            .collect();
        let middle = |part: Part| Bucket {
            us: (f64::midpoint(part.start, part.end) * 1e6).round() as u64,
            count: part.count,
        };
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
            buckets: self
                .duration_histogram
                .data
                .unwrap_or_default()
                .into_iter()
                .map(middle)
                .collect(),
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
        let text = r#"{"ActualQPS": 99.5, "ActualDuration": 2010000000, "DurationHistogram":
            {"Count": 200, "Data": [{"Start": 0.0100, "End": 0.0110, "Percent": 90, "Count": 180},
            {"Start": 0.02, "End": 0.03, "Percent": 100, "Count": 20}]},
            "RetCodes": {"200": 197, "503": 2, "-1": 1}}"#;
        let said: Said = serde_json::from_str(text).unwrap();
        let report = said.read(&Plan::new("http://a/", 100.0, Duration::from_secs(2)), 100.0);
        assert_eq!((report.requests, report.errors), (200, 3));
        assert_eq!(report.buckets[0], Bucket { us: 10_500, count: 180 });
        assert!(!report.generator_limited && (report.duration_s - 2.01).abs() < 1e-9);
    }
}
