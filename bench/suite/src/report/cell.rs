//! The figures of one scenario and mesh over its rounds.

use crate::figures;
use crate::mesh_names::NONE;
use crate::record::{Quantile, Record, kinds_of_marks, pairs, title};
use crate::statistics::{Interval, difference, median, ratio};

/// The meshes with which the CPU of other meshes is compared.
pub(super) const REFERENCES: [&str; 4] = ["before", "haproxy", "envoy", "leno"];

/// One scenario (and step) under one mesh, over all its rounds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    pub(crate) scenario: String,
    pub(crate) step: Option<f64>,
    pub(crate) mesh: String,
    /// The rounds from which the figures are made: the valid rounds, or all rounds if none is valid.
    pub(crate) rounds: Vec<Record>,
    pub(crate) valid: bool,
    /// The number of failed requests in all rounds.
    pub(crate) errors: u64,
    /// Latency added to the baseline of the same rounds, in milliseconds, at p50 and p99.
    pub(crate) added_ms: Option<[Interval; 2]>,
    /// The 99th percentile divided by the baseline's, with its interval.
    pub(crate) p99_ratio: Option<Interval>,
    /// CPU of all proxies per request, divided by that of each reference in the same round.
    pub(crate) cpu_ratios: [Option<Interval>; 4],
    /// Marks of all rounds, without duplicates.
    pub(crate) marks: Vec<String>,
}

impl Cell {
    /// Makes the cell from the records of a scenario, step and mesh, of which there must be at least one. A record
    /// without figures does not count as a round.
    pub(super) fn of(all: &[&Record]) -> Self {
        let measured = || all.iter().copied().filter(|record| record.left_out.is_none());
        let valid = measured().any(Record::valid);
        let rounds = measured().filter(|record| !valid || record.valid()).cloned().collect();
        Cell {
            scenario: all[0].scenario.clone(),
            step: all[0].step,
            mesh: all[0].mesh.clone(),
            rounds,
            valid,
            errors: all.iter().map(|record| record.errors).sum(),
            added_ms: None,
            p99_ratio: None,
            cpu_ratios: [None; 4],
            marks: kinds_of_marks(all),
        }
    }

    /// Compares the rounds with those of the baseline and of the references.
    pub(super) fn compared(
        self,
        base: Option<&[&Record]>,
        references: [Option<&[&Record]>; 4],
    ) -> Self {
        let rounds: Vec<&Record> = self.rounds.iter().collect();
        let both = |base: &[&Record], figure: fn(&Record) -> f64| -> (Vec<f64>, Vec<f64>) {
            let pairs = pairs(&rounds, base).into_iter();
            pairs.map(|(own, other)| (figure(own), figure(other))).unzip()
        };
        let cpu_ratio = |reference: Option<&[&Record]>| {
            let (own, other) = both(reference?, Record::cpu_us_per_request);
            ratio(&own, &other).filter(|ratio| ratio.value > 0.0)
        };
        let cpu_ratios = references.map(cpu_ratio);
        let Some(base) = base.filter(|_| self.mesh != NONE && self.valid) else {
            return Self { cpu_ratios, ..self };
        };
        let (p50, p50_bare) = both(base, |record| record.latency_us.p50 as f64 / 1000.0);
        let (p99, p99_bare) = both(base, |record| record.latency_us.p99 as f64 / 1000.0);
        let added = difference(&p50, &p50_bare).zip(difference(&p99, &p99_bare));
        Self {
            added_ms: added.map(|(p50, p99)| [p50, p99]),
            p99_ratio: ratio(&p99, &p99_bare),
            cpu_ratios,
            ..self
        }
    }

    /// The median of a figure over the rounds; `None` if it was not measured.
    pub(crate) fn median(&self, figure: &str) -> Option<f64> {
        figures::named(figure).median(&self.rounds)
    }

    /// The median of a figure, as a text for a table.
    pub(super) fn text(&self, figure: &str) -> String {
        let digits = figures::named(figure).digits;
        self.median(figure).map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    }

    pub(super) fn has_proxies(&self) -> bool {
        self.median("idle-memory").is_some()
    }

    /// User and system CPU of all proxies per request, in microseconds.
    pub(super) fn cpu_us_in_all(&self) -> f64 {
        ["cpu-user", "cpu-system"].iter().filter_map(|figure| self.median(figure)).sum()
    }

    pub(crate) fn title(&self) -> String {
        title(&self.scenario, self.step)
    }

    /// Latency by quantile: the median over the rounds, at each quantile that all rounds reach.
    pub(super) fn spectrum(&self) -> Vec<Quantile> {
        let all: Vec<&[Quantile]> = self.rounds.iter().map(|record| &record.spectrum[..]).collect();
        let length = all.iter().map(|spectrum| spectrum.len()).min().unwrap_or_default();
        let at = |nth: usize| {
            let values: Vec<f64> = all.iter().map(|spectrum| spectrum[nth].us as f64).collect();
            Quantile { us: median(&values) as u64, ..all[0][nth] }
        };
        (0..length).map(at).collect()
    }
}
