//! The figures of a record, which are made from the report of a generator and the used resources, and the marks for
//! figures with a problem.

use std::fmt::Write as _;
use std::time::Duration;

use leno_measure::load::{Bucket, MAX_BUSY, Report, value_at};

use crate::record::{ContextSwitches, CpuMs, Latency, Mark, MarkKind, Quantile, Record, RssKib};
use crate::statistics::median;

/// The largest share of failed requests. If more fail, the run is marked, and a rate does not count as sustained.
pub(crate) const MAX_ERRORS: f64 = 0.01;

/// The largest share of the machine that other programs may use. If they use more, the run is marked.
const MAX_OTHERS: f64 = 0.10;

/// The largest share of the time that the hypervisor may take. If it takes more, the run is marked.
const MAX_STEAL: f64 = 0.02;

/// The largest share of the latency that the generator's own delay may be, both at the 99th percentile. If it is more,
/// the generator counts as the bottleneck.
const MAX_LAG: f64 = 0.1;

/// The number of points of a latency spectrum between 90 % and 99 %, between 99 % and 99.9 %, and so on.
const PER_NINE: u32 = 12;

/// How long proxies are left alone before their memory counts as idle. By then, proxies have released the memory that
/// they only need to start.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);

/// The heading of the file of samples.
pub(crate) const USAGE: &str =
    "elapsed_ms,proxies_rss_kib,control_rss_kib,proxies_cpu_ms,application_cpu_ms";

/// The resources that were used between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResourceUse {
    pub(crate) cpu: CpuMs,
    pub(crate) proxy_user_ms: f64,
    pub(crate) switches: ContextSwitches,
    pub(crate) wall: Duration,
    /// The number of processors that `cpu.machine` covers; `None` means those in the record.
    pub(crate) processors: Option<f64>,
    /// The part of `cpu` that was used on machines that `cpu.machine` does not include.
    pub(crate) elsewhere_ms: f64,
}

pub(crate) fn failing(report: &Report) -> bool {
    report.requests == 0 || report.errors as f64 > report.requests as f64 * MAX_ERRORS
}

pub(crate) fn fill(record: &mut Record, report: &Report, used: &ResourceUse) {
    record.rate_per_s = report.rate_per_s;
    record.connections = report.connections;
    record.duration_s = report.duration_s;
    record.requests = report.requests;
    record.errors = report.errors;
    record.errors_by_kind.clone_from(&report.errors_by_kind);
    record.requests_per_s = report.requests_per_s;
    record.bytes_per_s = report.body_bytes as f64 / report.duration_s.max(f64::MIN_POSITIVE);
    record.connections_opened = report.connections_opened;
    record.latency_us = Latency::of(&report.buckets);
    record.spectrum = spectrum(&report.buckets);
    let each = |ms: f64| ms * 1000.0 / (report.requests.max(1)) as f64;
    record.cpu_user_us_per_request = each(used.proxy_user_ms);
    record.cpu_system_us_per_request = each((used.cpu.proxies - used.proxy_user_ms).max(0.0));
    record.cpu_ms = used.cpu;
    record.context_switches = used.switches;
}

pub(crate) fn marks(record: &Record, report: &Report, used: &ResourceUse) -> Vec<Mark> {
    let mut marks = Vec::new();
    let mut mark = |kind, why| marks.push(Mark::new(kind, why));
    let answered = report.requests.saturating_sub(report.errors);
    if answered == 0 {
        mark(MarkKind::DeadTarget, format!("nothing was answered: {}", report.errors_in_words()));
    } else if failing(report) {
        let share = report.errors as f64 / report.requests as f64 * 100.0;
        mark(
            MarkKind::Errors,
            format!("{share:.1} % of the requests failed: {}", report.errors_in_words()),
        );
    }
    let (lag, latency) = (report.lag_us.p99 as f64, record.latency_us.p99 as f64);
    if report.rate_per_s.is_some() && report.generator_busy > MAX_BUSY {
        let busy = report.generator_busy * 100.0;
        mark(
            MarkKind::GeneratorLimited,
            format!("a thread of load was busy {busy:.0} % of the time"),
        );
    } else if report.generator_limited && (lag > latency * MAX_LAG || lag == 0.0) {
        let why = format!("requests left {lag:.0} us late at the 99th percentile");
        mark(MarkKind::GeneratorLimited, why);
    }
    let cpus = used.processors.unwrap_or(record.machine.cpus.max(1) as f64);
    let all_ms = used.wall.as_secs_f64() * 1000.0 * cpus;
    let cpu = &used.cpu;
    let ours = cpu.proxies
        + cpu.application
        + cpu.generator
        + cpu.neighbour
        + cpu.agent
        + cpu.control
        + cpu.kernel_threads.unwrap_or_default()
        + cpu.interrupts
        - used.elsewhere_ms;
    let (others, steal) = ((cpu.machine - ours).max(0.0) / all_ms, cpu.steal / all_ms);
    if others > MAX_OTHERS {
        let share = others * 100.0;
        let who = match cpu.kernel_threads {
            Some(_) => "others",
            None => "others, or threads of the kernel, which are not seen here,",
        };
        mark(MarkKind::BusyMachine, format!("{who} used {share:.0} % of the machine"));
    }
    if steal > MAX_STEAL {
        let share = steal * 100.0;
        mark(MarkKind::BusyMachine, format!("the hypervisor took {share:.0} % of the machine"));
    }
    marks
}

/// Latency by quantile, up to the highest quantile for which there are enough requests.
fn spectrum(buckets: &[Bucket]) -> Vec<Quantile> {
    let count: u64 = buckets.iter().map(|bucket| bucket.count).sum();
    let nines = (count as f64).log10();
    let point = |step: u32| 1.0 - 10_f64.powf(-f64::from(step) / f64::from(PER_NINE));
    (0..)
        .take_while(|step| f64::from(*step) <= nines * f64::from(PER_NINE))
        .map(point)
        .map(|quantile| Quantile { quantile, us: value_at(buckets, quantile) })
        .collect()
}

pub(crate) fn table(buckets: &[Bucket]) -> String {
    let mut text = "value_us,count\n".to_owned();
    for bucket in buckets {
        let _ = writeln!(text, "{},{}", bucket.us, bucket.count);
    }
    text
}

/// The median and the maximum under load. `idle` is 0.
pub(crate) fn under_load(kib: &[f64]) -> RssKib {
    let peak = kib.iter().fold(0.0, |most, one| f64::max(most, *one));
    RssKib { idle: 0, load: median(kib) as u64, peak: peak as u64 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;
    use crate::machine::Machine;

    #[test]
    fn the_spectrum_goes_as_far_as_there_are_requests() {
        let buckets = [Bucket { us: 5, count: 999 }, Bucket { us: 50, count: 1 }];
        let found = spectrum(&buckets);
        assert_eq!((found.first().unwrap().us, found.last().unwrap().us), (5, 5));
        assert!((found.last().unwrap().quantile - 0.999).abs() < 1e-9);
        assert!(spectrum(&[]).is_empty());
    }

    #[derive(Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct MarkedLoad {
        errors: BTreeMap<String, u64>,
        is_limited: bool,
        busy: f64,
        lag_p99: u64,
        cpu: CpuMs,
        elsewhere_ms: f64,
        marks: Vec<String>,
    }

    #[test]
    fn a_run_has_the_marks_that_it_deserves() {
        let all: Vec<MarkedLoad> =
            serde_saphyr::from_str(include_str!("../../data/marks.test.yaml")).unwrap();
        for one in all {
            let latency = |p99| Latency { p99, ..Latency::default() };
            let report = Report {
                requests: 1000,
                rate_per_s: Some(100.0),
                errors: one.errors.values().sum(),
                errors_by_kind: one.errors,
                generator_limited: one.is_limited,
                generator_busy: one.busy,
                lag_us: latency(one.lag_p99),
                ..Report::default()
            };
            let MarkedLoad { cpu, elsewhere_ms, .. } = one;
            let wall = Duration::from_secs(10);
            let used = ResourceUse { cpu, elsewhere_ms, wall, ..ResourceUse::default() };
            let machine = Machine { cpus: 2, ..Machine::default() };
            let record = Record { machine, latency_us: latency(2000), ..Record::default() };
            let marks = marks(&record, &report, &used).into_iter();
            let marks: Vec<_> = marks.map(|one| format!("{}: {}", one.kind, one.why)).collect();
            assert_eq!(marks, one.marks);
        }
    }
}
