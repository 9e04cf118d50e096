//! Load generators of other projects. A file says how each is called; the code here reads their reports.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::{Context, Result};
use leno_measure::load::{Bucket, Pace, Plan, Protocol, Report};
use minijinja::value::Serde;
use minijinja::{Environment, context};
use regex::Regex;
use serde::Deserialize;

use super::name::Client;
use crate::interrupt::Interrupt;
use crate::process;
use crate::tools::{Missing, Tool};

/// If a generator has sent less than this share of the requests that were wanted, it was the bottleneck.
const LIMITED: f64 = 0.95;

/// The file of the generators, built into this program.
static EXTERNAL: LazyLock<Vec<External>> = LazyLock::new(|| {
    let all = serde_saphyr::from_str(include_str!("../../data/generators.yaml"));
    all.expect("a test reads the built-in file")
});

/// A generator of another project.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct External {
    name: String,
    tool: Tool,
    protocols: Vec<Protocol>,
    paces: Vec<String>,
    /// Why the generator cannot generate any other load.
    otherwise: String,
    arguments: Vec<String>,
    /// The content of a file that the generator reads: a script, or the message of gRPC calls.
    #[serde(default)]
    script: String,
}

impl External {
    /// The generator with this name; `None` if the name is that of Leno's own generator.
    pub(super) fn named(name: &str) -> Option<&'static Self> {
        EXTERNAL.iter().find(|one| one.name == name)
    }

    pub(super) fn find(&self) -> Result<PathBuf, Missing> {
        self.tool.find((&self.name, None))
    }

    /// Why the generator cannot generate this load; `None` if it can.
    pub(super) fn unable(&self, plan: &Plan) -> Option<&str> {
        let pace = match plan.pace {
            Pace::Rate(_) => "rate",
            Pace::Saturate => "saturate",
            Pace::Think(_) => "think",
        };
        let is_able =
            self.protocols.contains(&plan.protocol) && self.paces.iter().any(|one| one == pace);
        (!is_able).then_some(&self.otherwise)
    }

    pub(super) fn run(
        &self,
        client: Client<'_>,
        plan: &Plan,
        interrupt: &Interrupt,
    ) -> Result<Report> {
        let (log, mut input) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
        let values = context! {
            plan => Serde(plan),
            ms => plan.duration.as_millis() as u64,
            // For programs that accept no fractions.
            seconds => plan.duration.as_secs_f64().round().max(1.0) as u64,
            log => log.path().display().to_string(),
            input => input.path().display().to_string(),
        };
        let render = |template: &str| Environment::new().render_str(template, values.clone());
        let arguments = self.arguments.iter().map(|one| render(one));
        let mut arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        arguments.retain(|one| !one.is_empty());
        if plan.protocol == Protocol::Grpc {
            let length = u32::try_from(plan.body_size)?.to_be_bytes();
            input.write_all(&[&[0][..], &length, &vec![b'x'; plan.body_size]].concat())?;
        } else {
            input.write_all(render(&self.script)?.as_bytes())?;
        }
        let mut command = client(&self.find()?)?;
        let said = process::run(command.args(arguments).arg(&plan.url), "", interrupt)?;
        let (said, log) = (String::from_utf8_lossy(&said), fs::read_to_string(log.path())?);
        let report = match &*self.name {
            "fortio" => read_fortio(plan, &said, &log),
            "h2load" => read_h2load(plan, &said, &log),
            _ => read_wrk(&said),
        };
        let report = report.with_context(|| format!("{} did not report: {said}", self.name))?;
        let (url, rate_per_s) = (plan.url.clone(), plan.rate());
        Ok(Report { url, connections: plan.connections, rate_per_s, ..report })
    }
}

/// A histogram of latencies, which are in microseconds.
fn buckets(latencies: impl Iterator<Item = u64>) -> Vec<Bucket> {
    let mut counted: BTreeMap<u64, u64> = BTreeMap::new();
    latencies.for_each(|us| *counted.entry(us).or_default() += 1);
    counted.into_iter().map(|(us, count)| Bucket { us, count }).collect()
}

/// The fields of Fortio's report that are used.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FortioReport {
    #[serde(rename = "ActualQPS")]
    actual_qps: f64,
    /// In nanoseconds.
    actual_duration: f64,
    duration_histogram: FortioHistogram,
    #[serde(default)]
    ret_codes: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct FortioHistogram {
    count: u64,
}

#[derive(Deserialize)]
struct FortioRequest {
    /// In seconds.
    latency: f64,
    ok: bool,
    /// The status. Fortio counts a redirect as a failure, whereas all other generators count it as a success.
    #[serde(default)]
    details: String,
}

fn read_fortio(plan: &Plan, said: &str, log: &str) -> Option<Report> {
    let report: FortioReport = serde_json::from_str(said).ok()?;
    let failed = report.ret_codes.iter().filter(|(code, _)| !matches!(code.parse(), Ok(200..400)));
    let errors_by_kind: BTreeMap<String, u64> =
        failed.map(|(code, count)| (format!("status_{code}"), *count)).collect();
    let requests = log.lines().filter_map(|line| serde_json::from_str::<FortioRequest>(line).ok());
    let answered = requests.filter(|one| one.ok || matches!(one.details.parse(), Ok(300..400)));
    // On each connection, Fortio plans as many whole requests as fit into the duration. If it is too slow for them it
    // sends fewer, and nothing else in its report shows this.
    let connections = plan.connections as f64;
    let each = (plan.rate()? * plan.duration.as_secs_f64() / connections).floor();
    let count = report.duration_histogram.count;
    Some(Report {
        duration_s: report.actual_duration / 1e9,
        requests: count,
        errors: errors_by_kind.values().sum(),
        errors_by_kind,
        requests_per_s: report.actual_qps,
        generator_limited: (count as f64) < connections * each * LIMITED,
        buckets: buckets(answered.map(|one| (one.latency * 1e6).round() as u64)),
        ..Report::default()
    })
}

/// h2load's log has a line for each request: its start in microseconds since 1970, its status, and its duration in
/// microseconds.
fn read_h2load(plan: &Plan, said: &str, log: &str) -> Option<Report> {
    let taken = log.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1).map(str::parse::<i64>);
        let (status, us) = (fields.next()?.ok()?, fields.next()?.ok()?);
        (200..400).contains(&status).then_some(us.unsigned_abs())
    });
    let buckets = buckets(taken);
    let requests = log.lines().count() as u64;
    let finished = Regex::new(r"finished in [^,]*, ([0-9.]+) req/s").ok()?.captures(said)?;
    let requests_per_s: f64 = finished[1].parse().ok()?;
    Some(Report {
        duration_s: requests as f64 / f64::max(requests_per_s, f64::MIN_POSITIVE),
        requests,
        errors: requests - buckets.iter().map(|bucket| bucket.count).sum::<u64>(),
        requests_per_s,
        generator_limited: plan.rate().is_some_and(|rate| requests_per_s < rate * LIMITED),
        buckets,
        ..Report::default()
    })
}

/// Reads the counts of wrk, and its four percentiles. Each percentile stands for the requests between it and the
/// percentile before it.
fn read_wrk(said: &str) -> Option<Report> {
    let all = |pattern: &str| -> Vec<[String; 2]> {
        let pattern = Regex::new(pattern).expect("a test uses it");
        pattern.captures_iter(said).map(|one| [1, 2].map(|nth| one[nth].to_owned())).collect()
    };
    let [requests, duration] = all("([0-9]+) requests in ([0-9.a-z]+)").pop()?;
    let [_, requests_per_s] = all("(Requests/sec): +([0-9.]+)").pop()?;
    let errors = all("(connect|read|write|timeout|3xx responses:) ([0-9]+)").into_iter();
    let mut report = Report {
        requests: requests.parse().ok()?,
        duration_s: microseconds(&duration)? / 1e6,
        requests_per_s: requests_per_s.parse().ok()?,
        errors: errors.filter_map(|[_, count]| count.parse::<u64>().ok()).sum(),
        ..Report::default()
    };
    let mut before = 0.0;
    for [percent, latency] in all("([0-9.]+)% +([0-9.]+[a-z]+)") {
        let quantile = percent.parse::<f64>().ok()? / 100.0;
        let count = ((quantile - before) * report.requests as f64).round() as u64;
        report.buckets.push(Bucket { us: microseconds(&latency)?.round() as u64, count });
        before = quantile;
    }
    (report.requests_per_s > 0.0).then_some(report)
}

/// Parses a time such as 12.34us, 1.2ms, 3.00s or 1.5m.
fn microseconds(text: &str) -> Option<f64> {
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let factor = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        "m" => 60e6,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn plan(rate: f64, connections: usize, seconds: u64) -> Plan {
        Plan { connections, ..Plan::new("http://a/", rate, Duration::from_secs(seconds)) }
    }

    #[test]
    fn the_report_of_fortio_is_read() {
        let text = r#"{"ActualQPS": 99.5, "ActualDuration": 2010000000,
            "DurationHistogram": {"Count": 200}, "RetCodes": {"200": 197, "302": 1, "503": 1, "-1": 1}}"#;
        let log = "{\"latency\":0.0105,\"ok\":true,\"details\":\"200\"}\n\
            {\"latency\":0.0105,\"ok\":true}\n\
            {\"latency\":0.02,\"ok\":false,\"details\":\"302\"}\n\
            {\"latency\":9,\"ok\":false,\"details\":\"503\"}\n";
        let report = read_fortio(&plan(100.0, 16, 2), text, log).unwrap();
        assert_eq!((report.requests, report.errors), (200, 2));
        let answered = [Bucket { us: 10_500, count: 2 }, Bucket { us: 20_000, count: 1 }];
        assert_eq!(report.buckets, answered, "a redirect is an answer");
        assert!(!report.generator_limited && (report.duration_s - 2.01).abs() < 1e-9);
    }

    /// Regression: all runs of a few seconds at a low rate were marked (16 connections for 20
    /// requests/s).
    #[test]
    fn a_last_request_of_fortio_that_does_not_fit_into_the_time_is_no_error() {
        // It plans to send 6 on each connection, not 6.25.
        for (count, limited) in [(96, false), (92, false), (90, true)] {
            let said = format!(
                r#"{{"ActualQPS": 17.3, "ActualDuration": 5.5e9, "DurationHistogram": {{"Count": {count}}}}}"#
            );
            let report = read_fortio(&plan(20.0, 16, 5), &said, "").unwrap();
            assert_eq!(report.generator_limited, limited, "{count}");
        }
    }

    #[test]
    fn the_log_of_h2load_is_read() {
        let log = "1000\t200\t150\n1001\t200\t150\n1002\t503\t90\n1003\t200\t151\n1004\t-1\t5\n";
        let said = "finished in 2.00s, 2.50 req/s, 1KB/s\n";
        let report = read_h2load(&plan(2.5, 1, 2), said, log).unwrap();
        assert_eq!((report.requests, report.errors), (5, 2));
        assert_eq!(report.buckets, [Bucket { us: 150, count: 2 }, Bucket { us: 151, count: 1 }]);
        assert!((report.duration_s - 2.0).abs() < 1e-9 && !report.generator_limited);
    }

    #[test]
    fn the_percentiles_of_wrk_are_read() {
        let text = "  Latency Distribution\n     50%  500.00us\n     75%    1.00ms\n     90%    2.00ms\n     \
            99%    3.50ms\n  1000 requests in 4.02s, 84.31MB read\n  \
            Socket errors: connect 1, read 2, write 3, timeout 4\n  \
            Non-2xx or 3xx responses: 5\nRequests/sec:  248.76\n";
        let report = read_wrk(text).unwrap();
        assert_eq!((report.requests, report.errors), (1000, 15));
        assert!((report.requests_per_s - 248.76).abs() < 1e-9, "{report:?}");
        assert_eq!(report.buckets[0], Bucket { us: 500, count: 500 });
        assert_eq!(report.buckets.last(), Some(&Bucket { us: 3500, count: 90 }));
        assert!(read_wrk("unable to connect").is_none());
    }
}
