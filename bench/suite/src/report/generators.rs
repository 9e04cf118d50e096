//! Compares generators: the figures of Leno's own generator and those of others, for the same load in the same rounds.

use std::collections::BTreeMap;

use super::cell::Cell;
use crate::generator::name::Generator;
use crate::record::{Record, by_case, cluster, of_one_generator, pairs};
use crate::scenario::{self, Pace};
use crate::statistics::{Interval, ratio};

/// Two generators agree if the ratio of their medians differs from 1 by at most this. The same load on the same machine
/// varies by a few percent from one minute to the next.
const CLOSE: f64 = 0.10;
/// Two rates count as equal if they differ by at most this share, because some generators only accept whole requests.
const SAME_RATE: f64 = 0.01;

/// The figures of one generator for a mesh in a scenario, in comparison with those of the generator that the report
/// uses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Agreement {
    /// The figures; without rounds if there are none.
    pub(crate) cell: Cell,
    pub(crate) generator: String,
    /// The median latency that the report's generator measured, divided by the median that this generator measured in
    /// the same rounds; `None` for the report's generator itself.
    pub(crate) p50_ratio: Option<Interval>,
    /// Why some rounds cannot be compared; `None` if all can.
    pub(crate) apart: Option<String>,
    pub(crate) left_out: Option<String>,
}

impl Agreement {
    /// Whether the medians differ by at most a tenth; `None` if there are none to compare.
    pub(crate) fn is_close(&self) -> Option<bool> {
        self.p50_ratio.map(|ratio| (1.0 - CLOSE..=1.0 / (1.0 - CLOSE)).contains(&ratio.value))
    }
}

/// The figures of every generator; empty if there was only one.
pub(super) fn agreements(records: &[Record]) -> Vec<Agreement> {
    let main = of_one_generator(records);
    if main.len() == records.len() {
        return Vec::new();
    }
    let main = by_case(&main);
    let order = |name: &str| Generator::ALL.iter().position(|one| one.name() == name);
    let mut groups: BTreeMap<_, Vec<&Record>> = BTreeMap::new();
    for one in records {
        let key = (one.case(), order(one.made_by()), one.made_by());
        groups.entry(key).or_default().push(one);
    }
    let of_group = |((case, _, generator), all): (_, Vec<&Record>)| {
        let ours = main.get(&case).map_or(&[][..], |ours| ours);
        let is_other = ours.first().is_some_and(|first| first.made_by() != generator);
        agreement(&all, if is_other { ours } else { &[] })
    };
    groups.into_iter().map(of_group).collect()
}

fn agreement(all: &[&Record], ours: &[&Record]) -> Agreement {
    let cell = Cell::of(all);
    // Only valid rounds are compared, because failed requests have no latency.
    let good: Vec<&Record> = cell.rounds.iter().filter(|_| cell.valid).collect();
    let mut both = pairs(&good, ours);
    let apart = both.iter().find_map(|(theirs, own)| why_apart(own, theirs));
    both.retain(|(theirs, own)| why_apart(own, theirs).is_none());
    let p50 = |record: &Record| record.latency_us.p50 as f64;
    let (own, theirs): (Vec<f64>, Vec<f64>) =
        both.iter().map(|(theirs, own)| (p50(own), p50(theirs))).unzip();
    Agreement {
        generator: all[0].made_by().to_owned(),
        p50_ratio: ratio(&own, &theirs),
        apart,
        left_out: all[0].left_out.clone().filter(|_| cell.rounds.is_empty()),
        cell,
    }
}

/// Why two records of a round do not have the same load on the same machine; `None` if they do.
fn why_apart(own: &Record, other: &Record) -> Option<String> {
    if searches(&own.scenario) {
        return Some("not compared: each looks for a rate of its own".to_owned());
    }
    let machines = own.machine.differences(&other.machine).into_iter();
    let places = cluster::differences(own.cluster.as_ref(), other.cluster.as_ref());
    if let Some(first) = machines.chain(places).next() {
        return Some(format!("not compared: measured elsewhere ({first})"));
    }
    let same = match (own.rate_per_s, other.rate_per_s) {
        (Some(one), Some(two)) => (one - two).abs() <= one.max(two) * SAME_RATE,
        (one, two) => one.is_none() && two.is_none(),
    };
    let rate = |record: &Record| {
        record.rate_per_s.map_or_else(|| "no rate".to_owned(), |rate| format!("{rate:.0}/s"))
    };
    (!same).then(|| format!("not compared: another load ({} and {})", rate(own), rate(other)))
}

fn searches(scenario: &str) -> bool {
    scenario::find(scenario).is_ok_and(|one| matches!(one.pace, Pace::SearchP99Ms(_)))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::report::summary::Summary;
    use crate::report::tables::rows_of_generators;

    /// Records, words of the last row of the table, and words of the report's caveats.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct RecordsOfGenerators {
        records: Vec<Record>,
        row: Vec<String>,
        #[serde(default)]
        caveats: Vec<String>,
    }

    #[test]
    fn generators_are_compared_where_they_made_the_same_load() {
        let all: Vec<RecordsOfGenerators> =
            serde_saphyr::from_str(include_str!("../../data/agreements.test.yaml")).unwrap();
        for RecordsOfGenerators { records, row, caveats } in all {
            let summary = Summary::of(&records);
            let rows = rows_of_generators(&summary.generators);
            let (last, said) = (rows.last().unwrap().join(", "), summary.caveats.join("; "));
            assert!(row.iter().all(|words| last.contains(words)), "{row:?} is not in {last}");
            assert!(caveats.iter().all(|words| said.contains(words)), "{caveats:?}: {said}");
            assert_eq!(said.is_empty(), caveats.is_empty(), "{said}");
            // The rest of the report uses Leno's own generator.
            let [cell] = &summary.cells[..] else { panic!("{:?}", summary.cells) };
            assert_eq!(cell.rounds[0].generator, "leno");
            assert_eq!((summary.left_out, summary.generators[0].is_close()), (vec![], None));
        }
    }

    #[test]
    fn one_generator_is_reported_whichever_it_is() {
        let fortio = Record { generator: "fortio".into(), ..Record::default() };
        let summary = Summary::of(&[fortio]);
        assert_eq!((summary.cells.len(), summary.generators.len()), (1, 0));
    }
}
