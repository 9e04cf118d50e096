//! The yearly cost of sidecars, from measured CPU and memory and a table of prices.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::record::Record;
use crate::statistics::mean;

/// The default table of prices.
pub const PRICES: &str = include_str!("../data/prices.yaml");
/// The number of sidecars for which costs are calculated.
pub const SIDECARS: f64 = 100.0;
const HOURS: f64 = 24.0 * 365.0;
const KIB_PER_GIB: f64 = 1024.0 * 1024.0;

/// A machine that can be rented.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The machine's name.
    pub name: String,
    /// The provider and region.
    #[serde(rename = "where")]
    pub place: String,
    /// The number of its processors.
    pub cpus: f64,
    /// The size of its memory, in GiB.
    pub memory_gib: f64,
    /// The price of an hour.
    pub dollars_per_hour: f64,
}

/// The resources that one sidecar uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SidecarUse {
    /// The number of processors that the sidecar keeps busy.
    pub cpus: f64,
    /// The resident memory of the sidecar, in KiB.
    pub rss_kib: f64,
}

/// The cost of one mesh under one load on one machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The scenario of the load.
    pub scenario: String,
    /// The mesh of the sidecars.
    pub mesh: String,
    /// The rented machine.
    pub machine: String,
    /// The resources that one sidecar uses.
    #[serde(flatten)]
    pub used: SidecarUse,
    /// The cost of 100 sidecars in dollars per year.
    pub dollars_per_100_sidecars_year: f64,
    /// How many dollars are saved in comparison with the most expensive mesh of the same scenario and machine.
    pub saved_dollars: f64,
}

/// Parses a table of prices.
pub fn prices(file: Option<&Path>) -> Result<Vec<Price>> {
    let text = match file {
        Some(file) => files::read(file)?,
        None => PRICES.to_owned(),
    };
    let name = file.unwrap_or(Path::new("the built-in prices"));
    let prices: Vec<Price> =
        serde_saphyr::from_str(&text).map_err(|error| anyhow!("{}: {error}", name.display()))?;
    let good = |price: &Price| {
        [price.cpus, price.memory_gib, price.dollars_per_hour].iter().all(|number| *number > 0.0)
    };
    match prices.iter().find(|price| !good(price)) {
        Some(wrong) => Err(anyhow!("{}: {}: a number is not above 0", name.display(), wrong.name)),
        None => Ok(prices),
    }
}

impl Price {
    /// The cost of 100 sidecars that each use this much, in dollars per year. A sidecar pays for the larger of its two
    /// shares of a machine, CPU or memory, because a machine is full as soon as one of the two is used up. The rest of
    /// the other could be used by other programs, but this is not taken into account.
    pub fn a_year(&self, used: SidecarUse) -> f64 {
        let share = (used.cpus / self.cpus).max(used.rss_kib / KIB_PER_GIB / self.memory_gib);
        share * self.dollars_per_hour * HOURS * SIDECARS
    }
}

/// The valid records of meshes with proxies, by scenario and mesh.
fn counted(records: &[Record]) -> BTreeMap<&str, BTreeMap<&str, Vec<&Record>>> {
    let mut counted: BTreeMap<&str, BTreeMap<&str, Vec<&Record>>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.valid() && record.proxies > 0) {
        let meshes = counted.entry(&record.scenario).or_default();
        meshes.entry(&record.mesh).or_default().push(record);
    }
    counted
}

fn has_step(runs: &[&Record], step: Option<f64>) -> bool {
    runs.iter().any(|record| record.step == step)
}

/// One line for each step whose cost is unknown, because a mesh of its scenario has no valid record of it. The step is
/// left out of the costs, because otherwise a mesh that fails at the highest rates would be the cheapest.
pub fn uncounted(records: &[Record]) -> Vec<String> {
    let mut lines = Vec::new();
    for (scenario, meshes) in counted(records) {
        let mut steps: Vec<f64> = meshes.values().flatten().filter_map(|one| one.step).collect();
        steps.sort_by(f64::total_cmp);
        steps.dedup();
        for step in steps {
            let missing = meshes.iter().filter(|(_, runs)| !has_step(runs, Some(step)));
            let missing: Vec<&str> = missing.map(|(mesh, _)| *mesh).collect();
            if !missing.is_empty() {
                let of = missing.join(", ");
                lines.push(format!(
                    "{scenario} at {step}/s is not counted: no valid record of {of}"
                ));
            }
        }
    }
    lines
}

/// The cost of every mesh with proxies, by scenario and machine. Only steps for which all meshes have valid records
/// count; see [`uncounted`].
pub fn costs(records: &[Record], prices: &[Price]) -> Vec<Cost> {
    let mut found = Vec::new();
    for price in prices {
        for (scenario, meshes) in counted(records) {
            let in_all =
                |record: &&&Record| meshes.values().all(|runs| has_step(runs, record.step));
            let uses = meshes.iter().filter_map(|(mesh, runs)| {
                Some((*mesh, mean_use(runs.iter().filter(in_all).copied())?))
            });
            let costs: Vec<_> = uses.map(|(mesh, used)| (mesh, used, price.a_year(used))).collect();
            let dearest = costs.iter().map(|(.., dollars)| *dollars).fold(0.0, f64::max);
            found.extend(costs.into_iter().map(|(mesh, used, dollars)| Cost {
                scenario: scenario.to_owned(),
                mesh: mesh.to_owned(),
                machine: price.name.clone(),
                used,
                dollars_per_100_sidecars_year: dollars,
                saved_dollars: dearest - dollars,
            }));
        }
    }
    found
}

/// The mean resources of a sidecar over rounds; `None` if there are no rounds.
fn mean_use<'r>(runs: impl Iterator<Item = &'r Record>) -> Option<SidecarUse> {
    let each = |record: &Record| record.rss_kib.peak as f64 / f64::from(record.proxies.max(1));
    let (cpus, rss_kib): (Vec<f64>, Vec<f64>) =
        runs.map(|record| (record.cpus_per_proxy(), each(record))).unzip();
    (!cpus.is_empty()).then(|| SidecarUse { cpus: mean(&cpus), rss_kib: mean(&rss_kib) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_is_read_and_holds_the_machine_of_the_claims() {
        let prices = prices(None).unwrap();
        let machine = prices.iter().find(|price| price.name == "m6g.large").unwrap();
        assert_eq!((machine.cpus, machine.memory_gib), (2.0, 8.0));
    }

    #[test]
    fn the_larger_share_is_paid_for() {
        let price = Price {
            name: "x".into(),
            place: String::new(),
            cpus: 2.0,
            memory_gib: 8.0,
            dollars_per_hour: 0.1,
        };
        // 0.1 of two processors is a twentieth, and the memory is a hundredth: the larger share is used.
        let busy = SidecarUse { cpus: 0.1, rss_kib: 0.08 * KIB_PER_GIB };
        assert!((price.a_year(busy) - 0.05 * 0.1 * 8760.0 * 100.0).abs() < 1e-9);
        let large = SidecarUse { cpus: 0.001, rss_kib: 0.8 * KIB_PER_GIB };
        assert!((price.a_year(large) - 0.1 * 0.1 * 8760.0 * 100.0).abs() < 1e-9);
    }

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct PricedRecords {
        records: Vec<Record>,
        costs: Vec<String>,
        #[serde(default)]
        uncounted: Vec<String>,
    }

    #[test]
    fn meshes_are_compared_with_the_most_expensive_over_the_steps_that_all_of_them_have() {
        let all: Vec<PricedRecords> =
            serde_saphyr::from_str(include_str!("../data/cost.test.yaml")).unwrap();
        let prices = &prices(None).unwrap()[..1];
        for PricedRecords { records, costs, uncounted } in all {
            let said = super::costs(&records, prices).into_iter().map(|one| {
                let (own, saved) = (one.dollars_per_100_sidecars_year, one.saved_dollars);
                let share = saved / (own + saved) * 100.0;
                let saved = if saved > 0.0 { format!("{share:.0} %") } else { "nothing".into() };
                let Cost { scenario, mesh, used, .. } = one;
                format!("{scenario} {mesh}: {:.3} CPUs, saves {saved}", used.cpus)
            });
            assert_eq!(said.collect::<Vec<_>>(), costs);
            assert_eq!(super::uncounted(&records), uncounted);
        }
    }

    #[test]
    fn a_table_with_a_mistake_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "- {name: a, where: b, cpus: 0, memory_gib: 1, dollars_per_hour: 1}")
            .unwrap();
        assert!(prices(Some(file.path())).unwrap_err().to_string().contains("above 0"));
    }
}
