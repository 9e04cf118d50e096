//! Compares generators: the figures of Leno's own and of others, for the same load in the same
//! rounds.

use crate::generator::name::Generator;
use crate::record::{Record, cluster, kinds_of_marks, of_one_generator, pairs, title};
use crate::scenario::{self, Pace};
use crate::statistics::{Interval, median, ratio};

/// Two generators agree if their medians are this close: the same load on the same machine varies
/// by a few percent from one minute to the next.
const CLOSE: f64 = 0.10;
/// Rates this close count as equal, because some generators only accept whole requests.
const SAME_RATE: f64 = 0.01;

/// The figures of one generator for a mesh in a scenario, compared with those of the report's
/// generator.
#[derive(Clone, Debug, PartialEq)]
pub struct Agreement {
    /// The scenario with its step.
    pub title: String,
    /// The mesh.
    pub mesh: String,
    /// The generator.
    pub generator: String,
    /// Number of rounds that the figures are from.
    pub rounds: usize,
    /// Requests a second, median.
    pub requests_per_s: f64,
    /// Latency in milliseconds, medians of the rounds: p50 and p99.
    pub latency_ms: [f64; 2],
    /// The median latency measured by the report's generator divided by this generator's, in the
    /// same rounds; `None` for the report's own generator.
    pub p50_ratio: Option<Interval>,
    /// Why some rounds are not compared; `None` if all are.
    pub apart: Option<String>,
    /// Marks of all rounds, without duplicates.
    pub marks: Vec<&'static str>,
    /// Why it has no figures.
    pub left_out: Option<String>,
}

impl Agreement {
    /// Whether the medians differ by at most a tenth; `None` if there is nothing to compare.
    pub fn is_close(&self) -> Option<bool> {
        self.p50_ratio.map(|ratio| (1.0 - CLOSE..=1.0 / (1.0 - CLOSE)).contains(&ratio.value))
    }
}

/// The figures of every generator; empty if there was only one.
pub(super) fn agreements(records: &[Record]) -> Vec<Agreement> {
    let main = of_one_generator(records);
    if main.len() == records.len() {
        return Vec::new();
    }
    let key = |record: &Record| {
        let by = record.made_by().to_owned();
        (record.scenario.clone(), record.step.map(f64::to_bits), record.mesh.clone(), by)
    };
    let mut found: Vec<Agreement> = Vec::new();
    let mut seen = Vec::new();
    for one in records {
        if seen.contains(&key(one)) {
            continue;
        }
        seen.push(key(one));
        let all: Vec<&Record> = records.iter().filter(|other| key(other) == key(one)).collect();
        let same = |other: &&Record| {
            (&other.scenario, other.step, &other.mesh) == (&one.scenario, one.step, &one.mesh)
        };
        let ours: Vec<&Record> = main.iter().filter(same).collect();
        let is_ours = ours.first().is_some_and(|first| first.made_by() == one.made_by());
        found.push(agreement(&all, if is_ours { &[] } else { &ours }));
    }
    let order = |name: &str| Generator::ALL.iter().position(|one| one.name() == name);
    found.sort_by(|one, two| {
        let key = |one: &Agreement| (one.title.clone(), one.mesh != "none", one.mesh.clone());
        key(one).cmp(&key(two)).then_with(|| order(&one.generator).cmp(&order(&two.generator)))
    });
    found
}

fn agreement(all: &[&Record], ours: &[&Record]) -> Agreement {
    let measured = |record: &&&Record| record.left_out.is_none();
    let measured: Vec<&Record> = all.iter().filter(measured).copied().collect();
    let good: Vec<&Record> = measured.iter().copied().filter(|record| record.valid()).collect();
    let rounds = if good.is_empty() { &measured } else { &good };
    let of = |figure: &dyn Fn(&Record) -> f64| {
        median(&rounds.iter().map(|record| figure(record)).collect::<Vec<_>>())
    };
    // Only valid rounds are compared: failed requests have no latency.
    let mut both = pairs(&good, ours);
    let apart = both.iter().find_map(|(theirs, own)| why_apart(own, theirs));
    both.retain(|(theirs, own)| why_apart(own, theirs).is_none());
    let (own, theirs): (Vec<f64>, Vec<f64>) = both
        .iter()
        .map(|(theirs, own)| (own.latency_us.p50 as f64, theirs.latency_us.p50 as f64))
        .unzip();
    let one = all[0];
    Agreement {
        title: title(&one.scenario, one.step),
        mesh: one.mesh.clone(),
        generator: one.made_by().to_owned(),
        rounds: rounds.len(),
        requests_per_s: of(&|record| record.requests_per_s),
        latency_ms: [
            of(&|record| record.latency_us.p50 as f64 / 1000.0),
            of(&|record| record.latency_us.p99 as f64 / 1000.0),
        ],
        p50_ratio: ratio(&own, &theirs),
        apart,
        marks: kinds_of_marks(all),
        left_out: measured.is_empty().then(|| one.left_out.clone()).flatten(),
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

/// Whether the scenario searches for the rate.
fn searches(scenario: &str) -> bool {
    scenario::find(scenario).is_ok_and(|one| matches!(one.pace, Pace::SearchP99Ms(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Mark, MarkKind};
    use crate::report::summary::Summary;
    use crate::report::summary::tests::record;
    use crate::report::text::rows_of_generators as rows;

    fn by(generator: &str, round: u32, p50: u64) -> Record {
        let mut record = record("none", round, 5000);
        record.generator = generator.into();
        record.latency_us.p50 = p50;
        record
    }

    #[test]
    fn medians_are_compared_in_the_same_rounds() {
        let all = [
            by("leno", 0, 1000),
            by("leno", 1, 2000),
            by("fortio", 0, 1050),
            by("fortio", 1, 2150),
        ];
        let summary = Summary::of(&all);
        assert_eq!((summary.cells.len(), summary.cells[0].rounds), (1, 2), "ours alone");
        let [ours, theirs] = &summary.generators[..] else { panic!("{:?}", summary.generators) };
        assert_eq!((ours.p50_ratio, ours.is_close()), (None, None));
        let ratio = theirs.p50_ratio.unwrap().value;
        assert!((ratio - 3000.0 / 3200.0).abs() < 1e-9, "{ratio}");
        assert_eq!(theirs.is_close(), Some(true));
        let rows = rows(&summary.generators);
        assert_eq!(rows[2][2..5], ["fortio", "100", "1.60"].map(str::to_owned));
        assert!(rows[2][6].starts_with("0.938 (") && rows[2][7] == "yes", "{:?}", rows[2]);
        let far = Summary::of(&[by("leno", 0, 1000), by("fortio", 0, 1200)]);
        assert_eq!(far.generators[1].is_close(), Some(false));
        assert_eq!(Summary::of(&all[..2]).generators, [], "there is no other generator");
        assert_eq!(Summary::of(&all[2..]).cells.len(), 1, "another is reported like ours");
    }

    #[test]
    fn only_the_same_load_on_the_same_machine_is_compared() {
        let at = |generator: &str, rate| Record { rate_per_s: rate, ..by(generator, 0, 1000) };
        let apart = |other: Record| {
            let summary = Summary::of(&[at("leno", Some(100.0)), other]);
            let said = summary.caveats.join("; ");
            (rows(&summary.generators)[2][6..].join(" "), said)
        };
        let (same, said) = apart(at("fortio", Some(100.2)));
        assert!(same.ends_with("yes -") && said.is_empty(), "{same}: {said}");
        let (faster, _) = apart(at("fortio", Some(500.0)));
        assert_eq!(faster, "- - not compared: another load (100/s and 500/s)");
        let (closed, _) = apart(at("fortio", None));
        assert_eq!(closed, "- - not compared: another load (100/s and no rate)");
        let mut moved = at("fortio", Some(100.0));
        (moved.machine.cpus, moved.scale) = (64, 0.5);
        let (elsewhere, said) = apart(moved);
        assert_eq!(elsewhere, "- - not compared: measured elsewhere (processors: 0 and 64)");
        assert!(said.contains("measured on different machines (processors: 0 and 64)"), "{said}");
        assert!(said.contains("http-1k with different scales"), "{said}");
    }

    #[test]
    fn generators_that_search_for_a_rate_are_not_compared() {
        let of = |generator: &str| Record {
            scenario: "saturation".into(),
            rate_per_s: (generator == "leno").then_some(700.0),
            ..by(generator, 0, 1000)
        };
        let summary = Summary::of(&[of("leno"), of("wrk")]);
        let row = rows(&summary.generators).remove(2);
        assert_eq!(row[6..], ["-", "-", "not compared: each looks for a rate of its own"]);
        assert_eq!(summary.generators[1].is_close(), None);
    }

    #[test]
    fn the_table_says_why_a_generator_has_no_figures() {
        let mut unable = by("wrk", 0, 0);
        unable.left_out = Some("wrk is driven for HTTP/1.1 in a closed loop only".into());
        let mut limited = by("fortio", 0, 9000);
        limited.marks.push(Mark { kind: MarkKind::GeneratorLimited, why: String::new() });
        let summary = Summary::of(&[by("leno", 0, 1000), unable, limited]);
        assert_eq!(summary.left_out, [], "the mesh was measured");
        let rows = rows(&summary.generators);
        assert_eq!(rows[2][2..], ["fortio", "100", "9.00", "5.00", "-", "-", "generator limited"]);
        assert_eq!(rows[3][3..8], ["-"; 5]);
        assert!(rows[3][8].contains("closed loop"));
    }
}
