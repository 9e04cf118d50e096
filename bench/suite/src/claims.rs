//! Published claims beside what was measured here.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cost::{Price, Use};
use crate::error::{Error, Result};
use crate::record::Record;
use crate::statistics::median;

/// The claims, a file of this program.
const CLAIMS: &str = include_str!("../data/claims.yaml");
/// A figure holds when what was measured is within this factor of it, either way: the published
/// machines are not this one, and a claim that only holds on one machine is no help to anyone.
const WITHIN: f64 = 1.5;
/// The scenario whose idle memory, start-up and file sizes are looked at first.
const USUAL: &str = "http-1k";

/// One claim.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Short name of the source.
    pub source: String,
    /// What it says.
    pub says: String,
    /// How it is checked.
    pub(crate) check: Check,
}

/// How a claim is checked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Check {
    /// A latency.
    Latency { scenario: String, mesh: String, quantile: Percentile, ms: f64 },
    /// A latency over that of no mesh.
    AddedLatency { scenario: String, mesh: String, quantile: Percentile, ms: f64 },
    /// A latency below that of another.
    LessLatency { scenario: String, mesh: String, than: String, quantile: Percentile, percent: f64 },
    /// Processors that a proxy keeps busy at a rate, in proportion to the rate measured.
    Cpu { scenario: String, mesh: String, rate_per_s: f64, cpus: f64 },
    /// Resident memory of a proxy.
    Memory {
        #[serde(default)]
        scenario: Option<String>,
        mesh: String,
        moment: Moment,
        mb: f64,
    },
    /// From exec to the first request served.
    StartUp { mesh: String, ms: f64 },
    /// Size of the executable.
    Binary { mesh: String, mb: f64 },
    /// The most that passes.
    HighestRate { mesh: String, rate_per_s: f64 },
    /// What the stated use of a hundred sidecars costs.
    Dollars { machine: String, cpus: f64, mb: f64, dollars: f64 },
    /// No request fails.
    NoLoss { scenario: String, mesh: String },
    /// It cannot be checked on one machine.
    Unmeasurable { why: String },
}

/// Which latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Percentile {
    /// The median.
    P50,
    /// The 75th.
    P75,
    /// The 95th.
    P95,
    /// The 99th.
    P99,
}

/// When memory was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Moment {
    /// Before any load.
    Idle,
    /// The most under load.
    Peak,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// What was measured agrees.
    Holds,
    /// What was measured does not.
    DoesNotHoldHere,
    /// Nothing was measured that could say.
    NotMeasurableHere,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Holds => "holds",
            Self::DoesNotHoldHere => "does not hold here",
            Self::NotMeasurableHere => "not measurable here",
        })
    }
}

/// A claim and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Short name of the source.
    pub source: String,
    /// What it says.
    pub says: String,
    /// What became of it.
    pub verdict: Verdict,
    /// What was measured, or why nothing was.
    pub because: String,
}

/// Reads the claims.
///
/// # Errors
/// Never with the file this program is built with; a test says so.
pub fn claims() -> Result<Vec<Claim>> {
    let wrong = |error| Error::Refused(format!("the table of claims is damaged: {error}"));
    serde_saphyr::from_str(CLAIMS).map_err(wrong)
}

/// Looks at every claim.
#[must_use]
pub fn check(claims: &[Claim], records: &[Record], prices: &[Price]) -> Vec<Outcome> {
    let bench = Measured { records, prices };
    let outcome = |claim: &Claim| {
        let (verdict, because) = match bench.look(&claim.check) {
            Ok((holds, because)) if holds => (Verdict::Holds, because),
            Ok((_, because)) => (Verdict::DoesNotHoldHere, because),
            Err(why) => (Verdict::NotMeasurableHere, why),
        };
        Outcome { source: claim.source.clone(), says: claim.says.clone(), verdict, because }
    };
    claims.iter().map(outcome).collect()
}

/// What there is to look at.
struct Measured<'a> {
    records: &'a [Record],
    prices: &'a [Price],
}

/// Whether it holds and what was seen, or why nothing can be said.
type Seen = Result<(bool, String), String>;

impl Measured<'_> {
    fn look(&self, check: &Check) -> Seen {
        match check {
            Check::Latency { scenario, mesh, quantile, ms } => {
                Ok(near(self.latency(scenario, mesh, *quantile)?, *ms, "ms"))
            }
            Check::AddedLatency { scenario, mesh, quantile, ms } => {
                let bare = self.latency(scenario, "none", *quantile)?;
                Ok(near(self.latency(scenario, mesh, *quantile)? - bare, *ms, "ms added"))
            }
            Check::LessLatency { scenario, mesh, than, quantile, percent } => {
                let (one, other) = (
                    self.latency(scenario, mesh, *quantile)?,
                    self.latency(scenario, than, *quantile)?,
                );
                Ok(near((1.0 - one / other) * 100.0, *percent, "% less"))
            }
            Check::Cpu { scenario, mesh, rate_per_s, cpus } => {
                let each = self.median(Some(scenario), mesh, |record| {
                    let rate = record.requests_per_s / f64::from(record.services.max(1));
                    (record.proxies > 0).then(|| record.cpus_per_proxy() / rate)
                })?;
                Ok(near(each * rate_per_s, *cpus, "processors"))
            }
            Check::Memory { scenario, mesh, moment, mb } => {
                let kib = self.median(scenario.as_deref(), mesh, |record| {
                    let rss = match moment {
                        Moment::Idle => record.rss_kib.idle,
                        Moment::Peak => record.rss_kib.peak,
                    };
                    (record.proxies > 0 && rss > 0).then(|| rss as f64 / f64::from(record.proxies))
                })?;
                Ok(near(kib * 1024.0 / 1e6, *mb, "MB"))
            }
            Check::StartUp { mesh, ms } => {
                let seen = self.median(None, mesh, |record| record.start_up_ms)?;
                Ok((seen <= ms * WITHIN, format!("{seen:.0} ms to the first request served")))
            }
            Check::Binary { mesh, mb } => {
                let bytes =
                    self.median(None, mesh, |record| record.binary_bytes.map(|b| b as f64))?;
                Ok(near(bytes / 1e6, *mb, "MB"))
            }
            Check::HighestRate { mesh, rate_per_s } => {
                let rate = |record: &Record| Some(record.requests_per_s);
                Ok(near(self.median(Some("saturation"), mesh, rate)?, *rate_per_s, "requests/s"))
            }
            Check::Dollars { machine, cpus, mb, dollars } => {
                self.dollars(machine, (*cpus, *mb), *dollars)
            }
            Check::NoLoss { scenario, mesh } => {
                let lost =
                    self.median(Some(scenario), mesh, |record| Some(record.errors as f64))?;
                Ok((lost == 0.0, format!("{lost:.0} requests failed")))
            }
            Check::Unmeasurable { why } => Err(why.clone()),
        }
    }

    fn dollars(&self, machine: &str, (cpus, mb): (f64, f64), claimed: f64) -> Seen {
        let price = self.prices.iter().find(|price| price.name == machine);
        let price = price.ok_or_else(|| format!("{machine} is not in the table of prices"))?;
        let seen = price.a_year(Use { cpus, rss_kib: mb * 1e6 / 1024.0 });
        let (holds, text) = near(seen, claimed, "dollars");
        Ok((holds, format!("{text}, by the use it states itself")))
    }

    fn latency(&self, scenario: &str, mesh: &str, quantile: Percentile) -> Result<f64, String> {
        self.median(Some(scenario), mesh, |record| {
            let latency = &record.latency_us;
            Some(
                match quantile {
                    Percentile::P50 => latency.p50,
                    Percentile::P75 => latency.p75,
                    Percentile::P95 => latency.p95,
                    Percentile::P99 => latency.p99,
                } as f64
                    / 1000.0,
            )
        })
    }

    /// The median over all valid rounds of a mesh; in any scenario, the usual one first, when none
    /// is named. `leno` alone stands for whatever capture it was measured with.
    fn median(
        &self,
        scenario: Option<&str>,
        mesh: &str,
        figure: impl Fn(&Record) -> Option<f64>,
    ) -> Result<f64, String> {
        let of = |name: &str| {
            let wanted = |record: &&Record| {
                let same =
                    record.mesh == mesh || (mesh == "leno" && record.mesh.starts_with("leno"));
                same && record.scenario == name && record.valid()
            };
            self.records.iter().filter(wanted).filter_map(&figure).collect::<Vec<f64>>()
        };
        let mut found = of(scenario.unwrap_or(USUAL));
        if found.is_empty() && scenario.is_none() {
            let mut names: Vec<&str> = self.records.iter().map(|r| r.scenario.as_str()).collect();
            names.dedup();
            found = names.into_iter().map(of).find(|some| !some.is_empty()).unwrap_or_default();
        }
        if found.is_empty() {
            let name = scenario.unwrap_or(USUAL);
            let others = if mesh == "none" { String::new() } else { format!(",{mesh}") };
            return Err(format!("no valid record: leno bench run {name} --mesh none{others}"));
        }
        Ok(median(&found))
    }
}

fn near(seen: f64, claimed: f64, unit: &str) -> (bool, String) {
    let holds = seen > 0.0 && seen <= claimed * WITHIN && seen >= claimed / WITHIN;
    (holds, format!("{} {unit}", figure(seen)))
}

/// Three digits that say something.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Latency, Mark, MarkKind, RssKib};

    fn record(mesh: &str, p99: u64) -> Record {
        Record {
            scenario: "http-1k".into(),
            mesh: mesh.into(),
            proxies: u32::from(mesh != "none"),
            latency_us: Latency { p99, ..Latency::default() },
            rss_kib: RssKib { idle: 44_000, ..RssKib::default() },
            ..Record::default()
        }
    }

    fn verdict(check: &str, records: &[Record]) -> Outcome {
        let claim = format!("- {{source: T, says: it, check: {check}}}");
        let claims: Vec<Claim> = serde_saphyr::from_str(&claim).unwrap();
        let prices = crate::cost::prices(None).unwrap();
        super::check(&claims, records, &prices).remove(0)
    }

    #[test]
    fn the_table_is_read_whole() {
        let claims = claims().unwrap();
        assert!(claims.len() > 30);
        let seen = super::check(&claims, &[], &crate::cost::prices(None).unwrap());
        // Without a record only arithmetic can be judged.
        let judged = seen.iter().filter(|one| one.verdict != Verdict::NotMeasurableHere);
        assert_eq!(judged.count(), 2);
        assert!(seen.iter().all(|one| !one.because.is_empty()));
    }

    #[test]
    fn what_a_mesh_adds_is_over_no_mesh_in_the_same_scenario() {
        let check = "{kind: added-latency, scenario: http-1k, mesh: envoy, quantile: p99, ms: 2.0}";
        let records = [record("none", 10_000), record("envoy", 12_500)];
        let seen = verdict(check, &records);
        assert_eq!((seen.verdict, seen.because.as_str()), (Verdict::Holds, "2.5 ms added"));
        let slow = [record("none", 10_000), record("envoy", 30_000)];
        assert_eq!(verdict(check, &slow).verdict, Verdict::DoesNotHoldHere);
        let alone = verdict(check, &records[1..]);
        assert_eq!(alone.verdict, Verdict::NotMeasurableHere);
        assert!(alone.because.contains("leno bench run http-1k"), "{}", alone.because);
    }

    #[test]
    fn a_marked_run_is_no_evidence() {
        let mut marked = record("envoy", 1);
        marked.marks.push(Mark { kind: MarkKind::GeneratorLimited, why: String::new() });
        let check = "{kind: memory, mesh: envoy, moment: idle, mb: 45}";
        assert_eq!(verdict(check, &[marked]).verdict, Verdict::NotMeasurableHere);
        assert_eq!(verdict(check, &[record("envoy", 1)]).verdict, Verdict::Holds);
    }

    #[test]
    fn stated_costs_are_computed_again() {
        let check = "{kind: dollars, machine: m6g.large, cpus: 0.05, mb: 32, dollars: 1700}";
        let seen = verdict(check, &[]);
        assert_eq!(seen.verdict, Verdict::Holds, "{}", seen.because);
    }
}
