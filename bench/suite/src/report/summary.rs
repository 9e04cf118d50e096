//! The contents of a report: the figures of every scenario and mesh over their rounds.

use std::collections::BTreeMap;

use super::generators::{self, Agreement};
use super::other_figures;
use crate::compare;
use crate::mesh_names::NONE;
use crate::record::{Quantile, Record, kinds_of_marks, of_one_generator, pairs, title};
use crate::statistics::{Interval, difference, median, ratio};

/// The meshes that the CPU of others is compared with.
pub(super) const REFERENCES: [&str; 4] = ["before", "haproxy", "envoy", "leno"];

/// One scenario (and step) under one mesh, over all its rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The scenario.
    pub scenario: String,
    /// The step.
    pub step: Option<f64>,
    /// The mesh.
    pub mesh: String,
    /// Number of rounds that the figures are from.
    pub rounds: usize,
    /// Whether the figures of those rounds are valid.
    pub valid: bool,
    /// Requests a second; the median of the rounds.
    pub requests_per_s: f64,
    /// Failed requests; the sum over the rounds.
    pub errors: u64,
    /// Latency in milliseconds, medians of the rounds: p50, p95, p99, p99.9.
    pub latency_ms: [f64; 4],
    /// Latency added to the baseline of the same rounds, in milliseconds, at p50 and p99.
    pub added_ms: Option<[Interval; 2]>,
    /// The 99th percentile divided by the baseline's, with its interval.
    pub p99_ratio: Option<Interval>,
    /// CPU of all proxies per request, user and system, in microseconds.
    pub cpu_us: [f64; 2],
    /// CPU of all proxies per request divided by that of the references, round by round.
    pub cpu_ratios: [Option<Interval>; 4],
    /// Processors that all proxies kept busy.
    pub cpus: f64,
    /// Memory of one proxy in MB: idle, under load, peak.
    pub rss_mb: [f64; 3],
    /// The figures of [`other_figures::FIGURES`].
    pub(super) others: Vec<Option<f64>>,
    /// Marks of all rounds, without duplicates.
    pub marks: Vec<&'static str>,
    /// Latency over quantiles, median of the rounds.
    pub spectrum: Vec<Quantile>,
}

/// The contents of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// What readers must know before they trust any figure.
    pub caveats: Vec<String>,
    /// The figures; the baseline is first in each scenario.
    pub cells: Vec<Cell>,
    /// The figures of every generator, if there were several. All other fields are from one
    /// generator: Leno's own if it was used.
    pub generators: Vec<Agreement>,
    /// Scenario and mesh of measurements that were not made, and why.
    pub left_out: Vec<(String, String, String)>,
    /// The machine, in one line.
    pub machine: String,
    /// The versions of the meshes, as their proxies print them.
    pub versions: BTreeMap<String, String>,
}

impl Summary {
    /// Summarizes records.
    pub fn of(records: &[Record]) -> Self {
        let generators = generators::agreements(records);
        let everything = records;
        let records = &of_one_generator(records)[..];
        let mut groups: Vec<(Key<'_>, Vec<&Record>)> = Vec::new();
        for record in records.iter().filter(|record| record.left_out.is_none()) {
            let key = Key::of(record);
            match groups.iter_mut().find(|(known, _)| *known == key) {
                Some((_, group)) => group.push(record),
                None => groups.push((key, vec![record])),
            }
        }
        let cell = |(key, group): &(Key<'_>, Vec<&Record>)| {
            let of = |mesh| {
                let other = Key { mesh, ..*key };
                groups.iter().find(|(one, _)| *one == other).map(|(_, group)| &group[..])
            };
            Cell::of(group, of(NONE), REFERENCES.map(of))
        };
        let mut cells: Vec<Cell> = groups.iter().map(cell).collect();
        cells.sort_by(|one, two| {
            let key = |cell: &Cell| (cell.scenario.clone(), cell.mesh != NONE, cell.mesh.clone());
            let step = |cell: &Cell| cell.step.unwrap_or_default();
            one.scenario
                .cmp(&two.scenario)
                .then_with(|| step(one).total_cmp(&step(two)))
                .then_with(|| key(one).cmp(&key(two)))
        });
        let mut left_out: Vec<(String, String, String)> = records
            .iter()
            .filter_map(|one| Some((one.scenario.clone(), one.mesh.clone(), one.left_out.clone()?)))
            .collect();
        left_out.sort();
        left_out.dedup();
        let machine = records.first().map_or_else(String::new, |record| {
            if let Some(cluster) = &record.cluster {
                return cluster.line();
            }
            let machine = &record.machine;
            format!(
                "{} processors ({}), {} MiB, Linux {}",
                machine.cpus, machine.cpu, machine.memory_mib, machine.kernel
            )
        });
        let versions = records
            .iter()
            .filter(|record| !record.mesh_version.is_empty())
            .map(|record| (record.mesh.clone(), record.mesh_version.clone()))
            .collect();
        // The table of generators includes all records.
        let all = if generators.is_empty() { records } else { everything };
        let said = [compare::real_applications(all), compare::within(all)].concat();
        let caveats = caveats(said, records);
        Summary { caveats, cells, generators, left_out, machine, versions }
    }
}

impl Summary {
    /// The titles of the scenarios, and their cells.
    pub fn scenarios(&self) -> Vec<(String, Vec<&Cell>)> {
        let mut found: Vec<(String, Vec<&Cell>)> = Vec::new();
        for cell in &self.cells {
            match found.last_mut().filter(|(title, _)| *title == cell.title()) {
                Some((_, cells)) => cells.push(cell),
                None => found.push((cell.title(), vec![cell])),
            }
        }
        found
    }
}

/// The caveats of a report: the notes in `said` about machines and versions, and marks, each kind
/// once.
fn caveats(mut said: Vec<String>, records: &[Record]) -> Vec<String> {
    let mut kinds: BTreeMap<(&str, &str, &str), (usize, &str)> = BTreeMap::new();
    for record in records {
        for mark in &record.marks {
            let key = (record.scenario.as_str(), record.mesh.as_str(), mark.kind.as_str());
            let known = kinds.entry(key).or_insert((0, mark.why.as_str()));
            known.0 += 1;
        }
    }
    for ((scenario, mesh, kind), (count, why)) in kinds {
        let rounds = if count == 1 { "1 round".to_owned() } else { format!("{count} rounds") };
        said.push(format!("{scenario}, {mesh}: {kind} in {rounds} (such as: {why})"));
    }
    said
}

/// The key that records are grouped by.
#[derive(Clone, Copy, PartialEq)]
struct Key<'a> {
    scenario: &'a str,
    step: Option<f64>,
    mesh: &'a str,
}

impl<'a> Key<'a> {
    fn of(record: &'a Record) -> Self {
        Key { scenario: &record.scenario, step: record.step, mesh: &record.mesh }
    }
}

impl Cell {
    /// Summarizes the valid rounds, or all rounds if none is valid.
    fn of(all: &[&Record], base: Option<&[&Record]>, references: [Option<&[&Record]>; 4]) -> Self {
        let good: Vec<&Record> = all.iter().copied().filter(|record| record.valid()).collect();
        let valid = !good.is_empty();
        let rounds = if valid { &good } else { all };
        let of = |figure: &dyn Fn(&Record) -> f64| {
            median(&rounds.iter().map(|record| figure(record)).collect::<Vec<_>>())
        };
        let ms = |us: u64| us as f64 / 1000.0;
        let one = rounds[0];
        let pairs = pairs(rounds, base.unwrap_or_default());
        let of_pairs = |figure: fn(&Record) -> u64| -> (Vec<f64>, Vec<f64>) {
            pairs.iter().map(|(own, bare)| (ms(figure(own)), ms(figure(bare)))).unzip()
        };
        let (p50, p50_bare) = of_pairs(|record| record.latency_us.p50);
        let (p99, p99_bare) = of_pairs(|record| record.latency_us.p99);
        let compared = one.mesh != NONE && valid;
        let added = difference(&p50, &p50_bare).zip(difference(&p99, &p99_bare));
        let each = |record: &Record, kib: u64| {
            kib as f64 * 1024.0 / 1e6 / f64::from(record.proxies.max(1))
        };
        let cpu_ratio = |reference: Option<&[&Record]>| {
            let both = self::pairs(rounds, reference?);
            let of = |record: &Record| record.cpu_us_per_request();
            let (own, other): (Vec<f64>, Vec<f64>) =
                both.iter().map(|(own, other)| (of(own), of(other))).unzip();
            ratio(&own, &other).filter(|ratio| ratio.value > 0.0)
        };
        Cell {
            scenario: one.scenario.clone(),
            step: one.step,
            mesh: one.mesh.clone(),
            rounds: rounds.len(),
            valid,
            requests_per_s: of(&|record| record.requests_per_s),
            errors: all.iter().map(|record| record.errors).sum(),
            latency_ms: [
                of(&|record| ms(record.latency_us.p50)),
                of(&|record| ms(record.latency_us.p95)),
                of(&|record| ms(record.latency_us.p99)),
                of(&|record| ms(record.latency_us.p99_9)),
            ],
            added_ms: added.filter(|_| compared).map(|(p50, p99)| [p50, p99]),
            p99_ratio: ratio(&p99, &p99_bare).filter(|_| compared),
            cpu_us: [
                of(&|record| record.cpu_user_us_per_request),
                of(&|record| record.cpu_system_us_per_request),
            ],
            cpu_ratios: references.map(cpu_ratio),
            cpus: of(&|record| record.cpus_per_proxy() * f64::from(record.proxies)),
            rss_mb: [
                of(&|record| each(record, record.rss_kib.idle)),
                of(&|record| each(record, record.rss_kib.load)),
                of(&|record| each(record, record.rss_kib.peak)),
            ],
            others: other_figures::of(rounds),
            marks: kinds_of_marks(all),
            spectrum: spectrum(rounds),
        }
    }

    /// User and system CPU of all proxies per request, in microseconds.
    pub fn cpu_us_in_all(&self) -> f64 {
        self.cpu_us[0] + self.cpu_us[1]
    }

    /// The scenario with its step.
    pub fn title(&self) -> String {
        title(&self.scenario, self.step)
    }
}

/// The median over the rounds, at each quantile that all of them reach.
fn spectrum(rounds: &[&Record]) -> Vec<Quantile> {
    let length = rounds.iter().map(|record| record.spectrum.len()).min().unwrap_or_default();
    let at = |nth: usize| {
        let values: Vec<f64> = rounds.iter().map(|record| record.spectrum[nth].us as f64).collect();
        Quantile { quantile: rounds[0].spectrum[nth].quantile, us: median(&values) as u64 }
    };
    (0..length).map(at).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::record::{Latency, Mark, MarkKind, RssKib};

    pub(in crate::report) fn record(mesh: &str, round: u32, p99: u64) -> Record {
        Record {
            scenario: "http-1k".into(),
            mesh: mesh.into(),
            round,
            requests: 1000,
            requests_per_s: 100.0,
            duration_s: 10.0,
            proxies: if mesh == NONE { 0 } else { 2 },
            latency_us: Latency { p50: 1000, p99, ..Latency::default() },
            rss_kib: RssKib { idle: 10_000, load: 20_000, peak: 30_000 },
            spectrum: vec![
                Quantile { quantile: 0.0, us: 500 },
                Quantile { quantile: 0.5, us: 1000 },
                Quantile { quantile: 0.99, us: p99 },
            ],
            ..Record::default()
        }
    }

    #[test]
    fn added_latency_is_computed_within_each_round() {
        let records = [
            record("none", 0, 1000),
            record("leno", 0, 2000),
            record("none", 1, 11_000),
            record("leno", 1, 12_000),
        ];
        let summary = Summary::of(&records);
        let [none, leno] = &summary.cells[..] else { panic!("two cells") };
        assert_eq!((none.mesh.as_str(), none.added_ms), ("none", None));
        assert_eq!(leno.added_ms.map(|[p50, p99]| [p50.value, p99.value]), Some([0.0, 1.0]));
        assert!((leno.p99_ratio.unwrap().value - 14.0 / 12.0).abs() < 1e-9);
        assert!((leno.rss_mb[0] - 5.12).abs() < 1e-9, "of one proxy of two");
    }

    #[test]
    fn marked_rounds_are_shown_and_not_counted_among_good_ones() {
        let mut marked = record("leno", 0, 90_000);
        marked.marks.push(Mark { kind: MarkKind::Errors, why: "2 % failed".into() });
        let summary = Summary::of(&[marked.clone(), record("leno", 1, 2000)]);
        assert_eq!((summary.cells[0].rounds, summary.cells[0].latency_ms[2]), (1, 2.0));
        assert_eq!(summary.cells[0].marks, ["errors"]);
        assert!(summary.caveats[0].contains("2 % failed"), "{:?}", summary.caveats);
        let alone = Summary::of(&[marked]);
        assert!(!alone.cells[0].valid);
        assert_eq!(alone.cells[0].latency_ms[2], 90.0, "never dropped");
        let mut failing = record("leno", 1, 1);
        failing.marks.push(Mark { kind: MarkKind::DeadTarget, why: String::new() });
        let beside = Summary::of(&[record("none", 1, 1000), failing]);
        assert_eq!(beside.cells[1].added_ms, None, "what failed has nothing to compare");
    }

    #[test]
    fn a_mesh_that_was_left_out_is_listed_with_the_reason() {
        let mut missing = record("envoy", 0, 0);
        missing.left_out = Some("envoy is missing: scripts/tools.sh envoy".into());
        let summary = Summary::of(&[missing]);
        assert!(summary.cells.is_empty());
        assert_eq!(summary.left_out[0].1, "envoy");
    }
}
