//! Compares two runs, and lists what makes them hard to compare.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::machine::unequal;
use crate::mesh_names::NONE;
use crate::real_application::images::Images;
use crate::record::{Case, Record, by_case, cluster, of_one_generator, title};
use crate::statistics::{Interval, ratio};

type ComparedFigure = (&'static str, fn(&Record) -> f64);

const FIGURES: &[ComparedFigure] = &[
    ("latency_us.p50", |record| record.latency_us.p50 as f64),
    ("latency_us.p99", |record| record.latency_us.p99 as f64),
    ("cpu_us_per_request", Record::cpu_us_per_request),
    ("rss_kib.peak", |record| record.rss_kib.peak as f64),
    ("requests_per_s", |record| record.requests_per_s),
];

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Reasons why the figures may differ although the meshes do not; printed before any figure.
    pub caveats: Vec<String>,
    /// The figures.
    pub rows: Vec<ComparisonRow>,
}

/// One figure of one mesh in one scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// The scenario.
    pub scenario: String,
    /// The mesh.
    pub mesh: String,
    /// Which figure, by its name in the records.
    pub figure: &'static str,
    /// Mean of the earlier run.
    pub before: f64,
    /// Mean of the later run.
    pub after: f64,
    /// Rounds that both runs have; one round gives no interval.
    pub rounds: usize,
    /// The later mean divided by the earlier one.
    pub ratio: Interval,
}

/// Compares `after` with `before`, over valid records of scenarios and meshes that both have.
pub fn compare(before: &[Record], after: &[Record]) -> Comparison {
    let (own, others) = (of_one_generator(before), of_one_generator(after));
    let mut caveats = between(&own, &others);
    caveats.extend(within(before).into_iter().map(|text| format!("in the first: {text}")));
    caveats.extend(within(after).into_iter().map(|text| format!("in the second: {text}")));
    let (before, after) = (valid(&own), valid(&others));
    let mut rows = Vec::new();
    for (case, old) in &before {
        let Some(new) = after.get(case) else { continue };
        let step = old[0].step.map_or_else(String::new, |step| format!("@{step}"));
        let scenario = format!("{}{step}", old[0].scenario);
        for (name, figure) in FIGURES {
            let values = |records: &[&Record]| -> Vec<f64> {
                records.iter().map(|record| figure(record)).collect()
            };
            // The rounds of two runs do not have the same disturbances, so it makes no difference that the bootstrap
            // draws them in pairs.
            let (old, new) = (values(old), values(new));
            let Some(ratio) = ratio(&new, &old) else { continue };
            let shown = old.len().min(new.len());
            let mean = |values: &[f64]| crate::statistics::mean(&values[..shown]);
            rows.push(ComparisonRow {
                scenario: scenario.clone(),
                mesh: case.3.to_owned(),
                figure: name,
                before: mean(&old),
                after: mean(&new),
                rounds: shown,
                ratio,
            });
        }
    }
    Comparison { caveats, rows }
}

/// The text for a mesh that the run did not install.
const FOUND: &str = "was there, as its owner has it";

/// The origin of a mesh in a cluster; empty for a lab, and without a mesh.
fn came(record: &Record) -> &'static str {
    match &record.cluster {
        Some(_) if record.mesh == NONE => "",
        Some(cluster) if cluster.found => FOUND,
        Some(_) => "was installed for the run",
        None => "",
    }
}

/// The real application of a measurement; `None` if the services were the suite's own.
pub(crate) fn real(record: &Record) -> Option<String> {
    let images = record.cluster.as_ref().and_then(|cluster| cluster.application.as_ref());
    images.map(Images::line).or_else(|| record.application.clone())
}

/// The applications of two records in words, if they differ.
pub(crate) fn applications(one: &Record, two: &Record) -> Option<(String, String)> {
    let images = |record: &Record| record.cluster.as_ref()?.application.clone();
    let own = || "the suite's own services".to_owned();
    let words = [real(one), real(two)].map(|real| real.unwrap_or_else(own));
    // In the lab, a folder may have had other contents before, and two folders may have the same contents.
    let are_known =
        |record: &&Record| record.cluster.is_none() && !record.application_digests.is_empty();
    if [one, two].iter().all(are_known) {
        return others(one, two);
    }
    match (images(one), images(two)) {
        (Some(old), Some(new)) if old != new && words[0] == words[1] => {
            Some((old.in_full(), new.in_full()))
        }
        _ if words[0] != words[1] => Some(words.into()),
        // The image of a tag may have changed.
        _ => others(one, two),
    }
}

/// The services whose programs differ between two records, with their digests; `None` if either
/// record has no digests.
fn others(one: &Record, two: &Record) -> Option<(String, String)> {
    let all = [one, two].map(|record| &record.application_digests);
    let [old, new] = all;
    if old == new || old.is_empty() || new.is_empty() {
        return None;
    }
    let differs = |(name, _): &(&String, &String)| old.get(*name) != new.get(*name);
    let words = all.map(|digests| {
        let each = digests.iter().filter(differs).map(|(name, digest)| format!("{name} {digest}"));
        each.collect::<Vec<_>>().join(", ")
    });
    Some(words.into())
}

/// The differences between two records in one respect, in words; empty if there is none.
type Differences = fn(&Record, &Record) -> Vec<String>;

/// Differences in the place and the version of the measurements.
fn of_places(one: &Record, two: &Record) -> Vec<String> {
    let machines = one.machine.differences(&two.machine).into_iter();
    let machines = machines.map(|text| format!("measured on different machines ({text})"));
    let places = cluster::differences(one.cluster.as_ref(), two.cluster.as_ref()).into_iter();
    let places = places.map(|text| format!("measured in different places ({text})"));
    let versions = [one, two].map(|record| &record.suite_version);
    let versions = (versions[0] != versions[1]).then(|| {
        format!("measured by different versions of leno ({} and {})", versions[0], versions[1])
    });
    machines.chain(places).chain(versions).collect()
}

/// Differences in the versions, settings and origins of a mesh.
fn of_mesh(one: &Record, two: &Record) -> Vec<String> {
    different(one, two, |record| {
        let told = record.cluster.as_ref().map(|cluster| cluster.told.join(", "));
        let (version, origin) = (record.mesh_version.clone(), came(record).to_owned());
        [("versions", version), ("settings", told.unwrap_or_default()), ("origins", origin)]
    })
}

/// Differences in what generates the load of a mesh, and in how the load is captured.
fn of_load(one: &Record, two: &Record) -> Vec<String> {
    different(one, two, |record| {
        let rate = record.rate_per_s.map_or_else(|| "none".to_owned(), |rate| rate.to_string());
        let (capture, generator) = (record.capture.clone(), record.generator.clone());
        [("captures", capture), ("generators", generator), ("rates", rate)]
    })
}

fn different(
    one: &Record,
    two: &Record,
    facts: impl Fn(&Record) -> [(&'static str, String); 3],
) -> Vec<String> {
    let (of, all) = (&one.mesh, unequal(facts(one), facts(two)).into_iter());
    all.map(|(what, one, two)| format!("different {what} of {of} ({one} and {two})")).collect()
}

fn of_application(one: &Record, two: &Record) -> Vec<String> {
    let words = |(first, second)| {
        format!("{} with different applications ({first} and {second})", one.scenario)
    };
    applications(one, two).map(words).into_iter().collect()
}

/// Differences in the duration of the measurements. Two runs of the same requested duration differ by less than a
/// tenth.
fn of_time(one: &Record, two: &Record) -> Vec<String> {
    let (first, second) = (one.duration_s, two.duration_s);
    let differ = (first - second).abs() > first.max(second) * 0.1;
    let words = || format!("{} for {first:.0} s and {second:.0} s", one.scenario);
    differ.then(words).into_iter().collect()
}

/// Differences in the factors for the rates of a scenario.
fn of_scale(one: &Record, two: &Record) -> Vec<String> {
    let words =
        || format!("{} with different scales ({} and {})", one.scenario, one.scale, two.scale);
    (one.scale != two.scale).then(words).into_iter().collect()
}

/// Reasons not to compare the records of one run with each other. Such differences exist because a resumed run may have
/// moved to another machine.
pub fn within(records: &[Record]) -> Vec<String> {
    // Each record is compared with the first record of the same kind, in the respects in which all records of the kind
    // should agree.
    let kinds = |record: &Record| -> [(Differences, String); 5] {
        let case = title(&record.scenario, record.step);
        let by = format!("{case} {:?}", record.other_generator());
        [
            (of_places, String::new()),
            (of_mesh, record.mesh.clone()),
            (of_application, record.scenario.clone()),
            (of_scale, case),
            (of_time, by),
        ]
    };
    let measured = measured(records);
    let mut firsts: BTreeMap<(usize, String), &Record> = BTreeMap::new();
    let mut found = Vec::new();
    for record in &measured {
        for (nth, (differences, kind)) in kinds(record).into_iter().enumerate() {
            let first = *firsts.entry((nth, kind)).or_insert(record);
            found.extend(differences(first, record));
        }
        if came(record) == FOUND {
            found.push(format!("{} {FOUND}: its settings are not in the records", record.mesh));
        }
    }
    each_once(found)
}

fn each_once(found: impl IntoIterator<Item = String>) -> Vec<String> {
    found.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

/// The scenarios that ran the real application: information for the reader, not a difference
/// between records.
pub fn real_applications(records: &[Record]) -> Vec<String> {
    let line = |record: &Record| {
        Some(format!("{} is the real application ({})", record.scenario, real(record)?))
    };
    each_once(measured(records).into_iter().filter_map(line))
}

/// The records with figures; the others are not compared.
fn measured(records: &[Record]) -> Vec<&Record> {
    records.iter().filter(|record| record.left_out.is_none()).collect()
}

/// Reasons not to compare the records of two runs.
fn between(before: &[Record], after: &[Record]) -> Vec<String> {
    let (olds, news) = (measured(before), measured(after));
    let (Some(old), Some(new)) = (olds.first(), news.first()) else { return Vec::new() };
    let mut found = of_places(old, new);
    let new_cases = valid(after);
    for (case, olds) in valid(before) {
        let Some(news) = new_cases.get(&case) else { continue };
        let of_case: [Differences; 5] = [of_mesh, of_load, of_application, of_time, of_scale];
        found.extend(of_case.iter().flat_map(|differences| differences(olds[0], news[0])));
    }
    each_once(found)
}

/// Valid records. Those that are rounds of the same case are together.
fn valid(records: &[Record]) -> BTreeMap<Case<'_>, Vec<&Record>> {
    by_case(records.iter().filter(|record| record.valid()))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::record::Latency;

    #[test]
    fn figures_are_compared_with_their_interval() {
        let run = |p99: u64| {
            let latency_us = Latency { p99, ..Latency::default() };
            [0, 1].map(|round| Record {
                round,
                latency_us: latency_us.clone(),
                ..Record::default()
            })
        };
        let compared = compare(&run(100), &run(150));
        assert_eq!(compared.caveats, [""; 0]);
        let row = compared.rows.iter().find(|row| row.figure == "latency_us.p99").unwrap();
        assert_eq!((row.ratio.low, row.ratio.value, row.ratio.high), (1.5, 1.5, 1.5));
    }

    /// Two runs, and the texts that the comparison must print.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ComparedRuns {
        before: Vec<Record>,
        after: Vec<Record>,
        #[serde(default)]
        says: Vec<String>,
        #[serde(default)]
        unsaid: Vec<String>,
        #[serde(default)]
        within: Vec<String>,
    }

    #[test]
    fn differences_that_make_runs_hard_to_compare_are_named() {
        let rows: Vec<ComparedRuns> =
            serde_saphyr::from_str(include_str!("../data/compare.test.yaml")).unwrap();
        for ComparedRuns { before, after, says, unsaid, within } in rows {
            let said = compare(&before, &after).caveats.join("\n");
            assert_eq!(said.is_empty(), says.is_empty(), "{said}");
            assert!(!unsaid.iter().any(|words| said.contains(words)), "{unsaid:?} is in {said}");
            let both = super::within(&[before, after].concat()).join("\n");
            for (words, said) in
                says.iter().map(|one| (one, &said)).chain(within.iter().map(|one| (one, &both)))
            {
                assert!(said.contains(words), "{words} is not in {said}");
            }
        }
    }

    #[test]
    fn a_real_application_is_named() {
        let real = Record {
            scenario: "faces".into(),
            application: Some("/faces".into()),
            ..Record::default()
        };
        assert_eq!(
            real_applications(&[real, Record::default()]),
            ["faces is the real application (/faces)"]
        );
    }
}
