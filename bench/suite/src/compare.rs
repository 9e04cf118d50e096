//! Compares two runs, and lists what makes them hard to compare.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::mesh_names::NONE;
use crate::real_application::images::Images;
use crate::record::{Record, cluster, of_one_generator};
use crate::statistics::{Interval, ratio};

/// The name of a figure and the function that reads it from a record.
type Figure = (&'static str, fn(&Record) -> f64);

/// The figures that are compared.
const FIGURES: &[Figure] = &[
    ("latency_us.p50", |record| record.latency_us.p50 as f64),
    ("latency_us.p99", |record| record.latency_us.p99 as f64),
    ("cpu_us_per_request", Record::cpu_us_per_request),
    ("rss_kib.peak", |record| record.rss_kib.peak as f64),
    ("requests_per_s", |record| record.requests_per_s),
];

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Reasons why the figures may differ that have nothing to do with the meshes; printed before
    /// any figure.
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
#[must_use]
pub fn compare(before: &[Record], after: &[Record]) -> Comparison {
    let (own, others) = (of_one_generator(before), of_one_generator(after));
    let mut caveats = between(&own, &others);
    caveats.extend(within(before).into_iter().map(|text| format!("in the first: {text}")));
    caveats.extend(within(after).into_iter().map(|text| format!("in the second: {text}")));
    let (before, after) = (by_case(&own), by_case(&others));
    let mut rows = Vec::new();
    for (case, old) in &before {
        let Some(new) = after.get(case) else { continue };
        for (name, figure) in FIGURES {
            let values = |records: &[&Record]| -> Vec<f64> {
                records.iter().map(|record| figure(record)).collect()
            };
            // Rounds of two runs share no disturbance, so the bootstrap may draw them in pairs as
            // well as independently.
            let (old, new) = (values(old), values(new));
            let Some(ratio) = ratio(&new, &old) else { continue };
            let shown = old.len().min(new.len());
            let mean = |values: &[f64]| crate::statistics::mean(&values[..shown]);
            let (scenario, mesh) = (case.0.clone(), case.1.clone());
            let (before, after) = (mean(&old), mean(&new));
            rows.push(ComparisonRow {
                scenario,
                mesh,
                figure: name,
                before,
                after,
                rounds: shown,
                ratio,
            });
        }
    }
    Comparison { caveats, rows }
}

/// The settings that the run installed a mesh with; empty for the defaults.
fn told(record: &Record) -> String {
    record.cluster.as_ref().map(|cluster| cluster.told.join(", ")).unwrap_or_default()
}

/// The origin of a mesh that the run did not install.
const FOUND: &str = "was there, as its owner has it";

/// The origin of a mesh in a cluster; empty in a lab, and for no mesh.
fn came(record: &Record) -> &'static str {
    match &record.cluster {
        Some(_) if record.mesh == NONE => "",
        Some(cluster) if cluster.found => FOUND,
        Some(_) => "was installed for the run",
        None => "",
    }
}

/// The real application behind the mesh; `None` for the suite's own services.
pub(crate) fn real(record: &Record) -> Option<String> {
    let images = record.cluster.as_ref().and_then(|cluster| cluster.application.as_ref());
    images.map(Images::line).or_else(|| record.application.clone())
}

/// The applications of two records in words, if they differ.
pub(crate) fn applications(one: &Record, two: &Record) -> Option<(String, String)> {
    let images = |record: &Record| record.cluster.as_ref()?.application.clone();
    let own = || "the suite's own services".to_owned();
    let words = [real(one), real(two)].map(|real| real.unwrap_or_else(own));
    // In the lab, one folder may have had different contents, and two folders the same.
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
        // An image tag may have moved.
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

/// Reasons not to compare the records of one run with each other: a resumed run may have moved to
/// another machine.
#[must_use]
pub fn within(records: &[Record]) -> Vec<String> {
    let measured = measured(records);
    let Some((first, others)) = measured.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    for record in others {
        for text in first.machine.differences(&record.machine) {
            found.push(format!("measured on different machines ({text})"));
        }
        for text in cluster::differences(first.cluster.as_ref(), record.cluster.as_ref()) {
            found.push(format!("measured in different places ({text})"));
        }
        if record.suite_version != first.suite_version {
            let (one, two) = (&first.suite_version, &record.suite_version);
            found.push(format!("measured by different versions of leno ({one} and {two})"));
        }
    }
    let mut versions: BTreeMap<&str, &Record> = BTreeMap::new();
    for record in &measured {
        let known = *versions.entry(&record.mesh).or_insert(record);
        let mesh = &record.mesh;
        let mut look = |what: &str, known: &str, other: &str| {
            if known != other {
                found.push(format!("different {what} of {mesh} ({known} and {other})"));
            }
        };
        look("versions", &known.mesh_version, &record.mesh_version);
        look("settings", &told(known), &told(record));
        look("origins", came(known), came(record));
    }
    for record in versions.values().filter(|record| came(record) == FOUND) {
        let mesh = &record.mesh;
        found.push(format!("{mesh} {FOUND}: its settings are not in the records"));
    }
    let mut scenarios: BTreeMap<&str, &Record> = BTreeMap::new();
    for record in &measured {
        let scenario = &record.scenario;
        let known = *scenarios.entry(scenario).or_insert(record);
        if let Some((one, two)) = applications(known, record) {
            found.push(format!("{scenario} with different applications ({one} and {two})"));
        }
    }
    let mut rates: BTreeMap<String, f64> = BTreeMap::new();
    let mut times: BTreeMap<String, f64> = BTreeMap::new();
    for record in &measured {
        let by = record.other_generator();
        let case = format!("{}{:?}", record.scenario, record.step);
        let how = record.scale;
        let time = *times.entry(format!("{case}{by:?}")).or_insert(record.duration_s);
        if differ(time, record.duration_s) {
            let (scenario, other) = (&record.scenario, record.duration_s);
            found.push(format!("{scenario} for {time:.0} s and {other:.0} s"));
        }
        let known = rates.entry(case).or_insert(how);
        if *known != how {
            found.push(format!("{} with different scales", record.scenario));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The scenarios that ran the real application: information for the reader, not a difference
/// between records.
#[must_use]
pub fn real_applications(records: &[Record]) -> Vec<String> {
    let line = |record: &Record| {
        Some(format!("{} is the real application ({})", record.scenario, real(record)?))
    };
    let mut found: Vec<String> = measured(records).into_iter().filter_map(line).collect();
    found.sort();
    found.dedup();
    found
}

/// Whether two measured durations differ by more than two runs of the same requested duration do.
fn differ(one: f64, two: f64) -> bool {
    (one - two).abs() > one.max(two) * 0.1
}

/// The records with figures; the others are not compared.
fn measured(records: &[Record]) -> Vec<&Record> {
    records.iter().filter(|record| record.left_out.is_none()).collect()
}

fn between(before: &[Record], after: &[Record]) -> Vec<String> {
    let (olds, news) = (measured(before), measured(after));
    let (Some(old), Some(new)) = (olds.first(), news.first()) else { return Vec::new() };
    let mut found: Vec<String> = old
        .machine
        .differences(&new.machine)
        .into_iter()
        .map(|text| format!("different machines: {text}"))
        .collect();
    let places = cluster::differences(old.cluster.as_ref(), new.cluster.as_ref());
    found.extend(places.into_iter().map(|text| format!("different places: {text}")));
    if old.suite_version != new.suite_version {
        let (one, two) = (&old.suite_version, &new.suite_version);
        found.push(format!("different versions of leno bench: {one} and {two}"));
    }
    let new_cases = by_case(after);
    for (case, olds) in by_case(before) {
        let Some(news) = new_cases.get(&case) else { continue };
        let (old, new) = (olds[0], news[0]);
        let mut differ = |what: &str, one: String, two: String| {
            if one != two {
                found.push(format!("{} of {} differs: {one} and {two}", what, case.1));
            }
        };
        differ("version", old.mesh_version.clone(), new.mesh_version.clone());
        if let Some((one, two)) = applications(old, new) {
            differ("application", one, two);
        }
        differ("what was told", told(old), told(new));
        differ("how it came into the cluster", came(old).to_owned(), came(new).to_owned());
        differ("capture", old.capture.clone(), new.capture.clone());
        differ("generator", old.generator.clone(), new.generator.clone());
        differ("scale", old.scale.to_string(), new.scale.to_string());
        if self::differ(old.duration_s, new.duration_s) {
            differ(
                "measured time",
                format!("{:.0} s", old.duration_s),
                format!("{:.0} s", new.duration_s),
            );
        }
        differ("rate", format!("{:?}", old.rate_per_s), format!("{:?}", new.rate_per_s));
    }
    found.sort();
    found.dedup();
    found
}

/// Valid records by scenario (with its step) and mesh.
fn by_case(records: &[Record]) -> BTreeMap<(String, String), Vec<&Record>> {
    let mut cases: BTreeMap<(String, String), Vec<&Record>> = BTreeMap::new();
    for record in records.iter().filter(|record| record.valid()) {
        let step = record.step.map_or_else(String::new, |step| format!("@{step}"));
        let case = (format!("{}{step}", record.scenario), record.mesh.clone());
        cases.entry(case).or_default().push(record);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::record::Latency;

    fn record(round: u32, p99: u64) -> Record {
        Record {
            scenario: "http-1k".into(),
            mesh: "leno".into(),
            mesh_version: "1".into(),
            round,
            machine: Machine { cpus: 2, ..Machine::default() },
            latency_us: Latency { p99, ..Latency::default() },
            ..Record::default()
        }
    }

    #[test]
    fn figures_are_compared_with_their_interval() {
        let compared =
            compare(&[record(0, 100), record(1, 100)], &[record(0, 150), record(1, 150)]);
        assert_eq!(compared.caveats, [""; 0]);
        let row = compared.rows.iter().find(|row| row.figure == "latency_us.p99").unwrap();
        assert_eq!((row.ratio.low, row.ratio.value, row.ratio.high), (1.5, 1.5, 1.5));
    }

    #[test]
    fn a_cluster_and_a_lab_are_never_compared_without_a_word() {
        let mut other = record(0, 100);
        other.cluster = Some(cluster::Cluster { context: "prod".into(), ..Default::default() });
        let said = compare(&[record(0, 100)], std::slice::from_ref(&other)).caveats.join("\n");
        assert!(
            said.contains("different places: the lab of one machine and cluster prod"),
            "{said}"
        );
        let said = within(&[record(0, 100), other]).join("\n");
        assert!(said.contains("measured in different places"), "{said}");
    }

    #[test]
    fn a_mesh_that_was_there_is_not_one_that_was_installed() {
        let of = |found, mesh: &str| {
            let cluster = Some(cluster::Cluster { found, ..Default::default() });
            Record { cluster, mesh: mesh.into(), ..record(0, 100) }
        };
        let said = compare(&[of(false, "leno")], &[of(true, "leno")]).caveats.join("\n");
        let how =
            "how it came into the cluster of leno differs: was installed for the run and was there";
        assert!(said.contains(how), "{said}");
        let said = within(&[of(false, "leno"), of(true, "leno")]).join("\n");
        assert!(said.contains("different origins of leno"), "{said}");
        let unknown = "leno was there, as its owner has it: its settings are not in the records";
        assert_eq!(within(&[of(false, "none"), of(true, "leno"), of(true, "leno")]), [unknown]);
        assert_eq!(within(&[of(false, "none"), of(false, "leno")]), [""; 0]);
    }

    #[test]
    fn a_real_application_is_never_compared_with_another_without_a_word() {
        let of = |tag: &str, env: &str| {
            let text = format!(
                "{{scenario: faces, services: {{face: {{image: 'face:{tag}', env: {{A: {env}}}}}}}}}"
            );
            let application = Some(serde_saphyr::from_str(&text).unwrap());
            let cluster = Some(cluster::Cluster { application, ..Default::default() });
            Record { cluster, application: Some("/images.yaml".into()), ..record(0, 100) }
        };
        let own = Record { cluster: Some(cluster::Cluster::default()), ..record(0, 100) };
        let in_lab = |folder: Option<&str>| Record {
            application: folder.map(str::to_owned),
            ..record(0, 100)
        };
        let same = of("1", "b");
        let twice = [same.clone(), same.clone()];
        assert_eq!((within(&twice), compare(&twice, &twice).caveats), (vec![], vec![]));
        let said = ["http-1k is the real application (face face:1)"];
        assert_eq!(real_applications(&twice), said);
        assert_eq!(real_applications(std::slice::from_ref(&own)), [""; 0]);
        for (one, two, words) in [
            (&own, &same, "the suite's own services and face face:1"),
            (&same, &of("2", "b"), "face face:1 and face face:2"),
            (&same, &of("1", "c"), "\"A\":\"b\""),
            (&in_lab(None), &in_lab(Some("/faces")), "the suite's own services and /faces"),
            (&in_lab(Some("/shop")), &in_lab(Some("/faces")), "/shop and /faces"),
        ] {
            let said =
                compare(std::slice::from_ref(one), std::slice::from_ref(two)).caveats.join("\n");
            assert!(said.contains("application of leno differs") && said.contains(words), "{said}");
            let said = within(&[one.clone(), two.clone()]).join("\n");
            assert!(said.contains("http-1k with different applications ("), "{said}");
            assert!(said.contains(words), "{said}");
        }
        let moved = Record { application: Some("/other.yaml".into()), ..same.clone() };
        let said = compare(&[same], &[moved]).caveats.join("\n");
        assert!(!said.contains("differ"), "the file has the same content: {said}");
    }

    #[test]
    fn what_ran_under_the_same_name_is_told_apart_by_its_digest() {
        let of = |folder: &str, face: &str| {
            let digests = [("face", face), ("color", "sha256:0")];
            let application_digests =
                digests.map(|(name, digest)| (name.to_owned(), digest.to_owned())).into();
            Record { application: Some(folder.into()), application_digests, ..record(0, 100) }
        };
        let said = |one: &Record, two: &Record| {
            let both = compare(std::slice::from_ref(one), std::slice::from_ref(two));
            both.caveats.join("\n")
        };
        let before = of("/faces", "sha256:1");
        let differs = said(&before, &of("/faces", "sha256:2"));
        let words = "application of leno differs: face sha256:1 and face sha256:2";
        assert!(differs.contains(words) && !differs.contains("color"), "{differs}");
        assert!(!said(&before, &of("/moved", "sha256:1")).contains("differs"), "they are the same");
        let in_cluster = |digest: &str| {
            let cluster = Some(cluster::Cluster::default());
            Record { cluster, ..of("/images.yaml", digest) }
        };
        let differs = said(&in_cluster("a@sha256:1"), &in_cluster("a@sha256:2"));
        assert!(differs.contains("face a@sha256:1 and face a@sha256:2"), "{differs}");
    }

    #[test]
    fn what_was_left_out_makes_nothing_hard_to_compare() {
        let mut out = record(0, 0);
        out.left_out = Some("linkerd is missing".into());
        out.machine.cpus = 64;
        out.cluster = Some(cluster::Cluster { context: "prod".into(), ..Default::default() });
        for records in [[out.clone(), record(0, 100)], [record(0, 100), out]] {
            assert_eq!(within(&records), [""; 0]);
            assert_eq!(compare(&[record(0, 100)], &records).caveats, [""; 0]);
        }
    }

    #[test]
    fn short_and_long_measurements_are_told_apart() {
        let of = |duration_s| Record { duration_s, ..record(0, 100) };
        let said = compare(&[of(10.0)], &[of(1.0)]).caveats.join("\n");
        assert!(said.contains("measured time of leno differs: 10 s and 1 s"), "{said}");
        let said = within(&[of(10.0), of(1.0)]).join("\n");
        assert!(said.contains("http-1k for 10 s and 1 s"), "{said}");
        let compared = compare(&[of(10.0)], &[of(10.4)]);
        assert_eq!((compared.caveats.len(), compared.rows[0].rounds), (0, 1));
    }

    #[test]
    fn other_machines_and_versions_are_never_passed_over() {
        let mut other = record(0, 100);
        other.machine.cpus = 64;
        other.mesh_version = "2".into();
        let said = compare(&[record(0, 100)], std::slice::from_ref(&other)).caveats.join("\n");
        assert!(said.contains("processors: 2 and 64"), "{said}");
        assert!(said.contains("version of leno differs: 1 and 2"), "{said}");
        let said = within(&[record(0, 100), other]).join("\n");
        assert!(said.contains("different machines") && said.contains("versions of leno"), "{said}");
    }
}
