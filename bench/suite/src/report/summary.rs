//! The contents of a report: the figures of every scenario and mesh over their rounds.

use std::collections::{BTreeMap, BTreeSet};

use super::cell::{Cell, REFERENCES};
use super::generators::{self, Agreement};
use crate::compare;
use crate::mesh_names::NONE;
use crate::record::{Case, Record, by_case, of_one_generator};

/// The contents of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// What readers must know before they trust any figure.
    pub(crate) caveats: Vec<String>,
    /// The figures; the baseline is first in each scenario.
    pub(crate) cells: Vec<Cell>,
    /// The figures of every generator, if there were several. All other fields are from one generator: Leno's own if it
    /// was used.
    pub(crate) generators: Vec<Agreement>,
    /// The scenario and the mesh of each measurement that was not made, and the reason.
    pub(crate) left_out: Vec<(String, String, String)>,
    pub(crate) machine: String,
    /// The versions of the meshes, as their proxies print them.
    pub(crate) versions: BTreeMap<String, String>,
}

impl Summary {
    /// Summarizes records.
    pub fn of(records: &[Record]) -> Self {
        let generators = generators::agreements(records);
        let everything = records;
        let records = &of_one_generator(records)[..];
        let groups = by_case(records.iter().filter(|record| record.left_out.is_none()));
        let cell = |(&(scenario, step, ..), group): (&Case<'_>, &Vec<&Record>)| {
            let of = |mesh| groups.get(&(scenario, step, mesh != NONE, mesh)).map(|all| &all[..]);
            Cell::of(group).compared(of(NONE), REFERENCES.map(of))
        };
        let cells = groups.iter().map(cell).collect();
        let left_out: BTreeSet<(String, String, String)> = records
            .iter()
            .filter_map(|one| Some((one.scenario.clone(), one.mesh.clone(), one.left_out.clone()?)))
            .collect();
        let left_out = left_out.into_iter().collect();
        let versions = records
            .iter()
            .filter(|record| !record.mesh_version.is_empty())
            .map(|record| (record.mesh.clone(), record.mesh_version.clone()))
            .collect();
        // The table of generators includes all records.
        let all = if generators.is_empty() { records } else { everything };
        let said = [compare::real_applications(all), compare::within(all)].concat();
        let caveats = caveats(said, records);
        let machine = records.first().map_or_else(String::new, Record::place);
        Summary { caveats, cells, generators, left_out, machine, versions }
    }

    /// The titles of the scenarios, and their cells.
    pub(crate) fn scenarios(&self) -> Vec<(String, Vec<&Cell>)> {
        let scenarios = self.cells.chunk_by(|one, next| one.title() == next.title());
        scenarios.map(|cells| (cells[0].title(), cells.iter().collect())).collect()
    }
}

/// The caveats of a report: the notes in `said` about machines and versions, and each kind of mark once.
fn caveats(mut said: Vec<String>, records: &[Record]) -> Vec<String> {
    let mut kinds: BTreeMap<(&str, &str, String), (usize, &str)> = BTreeMap::new();
    for record in records {
        for mark in &record.marks {
            let key = (record.scenario.as_str(), record.mesh.as_str(), mark.kind.to_string());
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::record::{Latency, Mark, MarkKind, Quantile, RssKib};

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
    fn a_mesh_of_which_every_round_has_failed_is_shown_and_not_compared() {
        let mut failing = record("leno", 1, 90_000);
        failing.marks.push(Mark::new(MarkKind::DeadTarget, ""));
        let beside = Summary::of(&[record("none", 1, 1000), failing]);
        let cell = &beside.cells[1];
        assert_eq!((cell.valid, cell.median("p99"), cell.added_ms), (false, Some(90.0), None));
    }
}
