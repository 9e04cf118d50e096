//! Published claims beside what was measured here.
//!
//! The claims are a file of this program, with the check of each. A claim that nothing measures says why.

mod look;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cost::Price;
use crate::error::{Error, Result};
use crate::record::{Record, of_one_generator};
use crate::{compare, scenario};

/// The claims, a file of this program.
const CLAIMS: &str = include_str!("../data/claims.yaml");

/// One claim.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Short name of the source.
    pub source: String,
    /// What it says.
    pub says: String,
    /// How what is measured here differs from what was published; told with every verdict.
    #[serde(default)]
    but: Option<String>,
    /// How it is checked.
    check: Check,
}

/// How a claim is checked. A mesh of the lab stands for the one that a cluster has of it, too.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
enum Check {
    /// A latency.
    Latency {
        scenario: String,
        /// The point on the scenario's scale, published requests/s in all; all points without it.
        #[serde(default)]
        step: Option<f64>,
        mesh: String,
        quantile: Percentile,
        ms: f64,
    },
    /// A latency over that of another, or of no mesh.
    AddedLatency {
        scenario: String,
        mesh: String,
        #[serde(default)]
        over: Option<String>,
        quantile: Percentile,
        ms: f64,
    },
    /// A latency below that of another.
    LessLatency { scenario: String, mesh: String, than: String, quantile: Percentile, percent: f64 },
    /// Context switches for a request, below those of another.
    LessSwitches { scenario: String, mesh: String, than: String, percent: f64 },
    /// The lower latency (p99) of two where each service gets a rate.
    Leads { scenario: String, mesh: String, than: String, rate_per_s: f64 },
    /// Whether a step's rate is kept with no more errors than a run may have.
    Keeps { scenario: String, step: f64, mesh: String, kept: bool },
    /// Processors that a proxy keeps busy at a rate, in proportion to the rate measured.
    Cpu { scenario: String, mesh: String, rate_per_s: f64, cpus: f64 },
    /// Processors that a proxy keeps busy before any load, which records of a cluster have.
    IdleCpu { mesh: String, cpus: f64 },
    /// Memory that all proxies of a mesh take together under load, from the least to the most.
    MemoryOrder { scenario: String, rising: Vec<String> },
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
    /// Nothing here can check it.
    Unmeasurable { why: String },
}

impl Check {
    /// Whose records are looked at; none where any will do, or none are needed.
    fn scenario(&self) -> Option<&str> {
        match self {
            Self::Latency { scenario, .. }
            | Self::AddedLatency { scenario, .. }
            | Self::LessLatency { scenario, .. }
            | Self::LessSwitches { scenario, .. }
            | Self::Leads { scenario, .. }
            | Self::Keeps { scenario, .. }
            | Self::Cpu { scenario, .. }
            | Self::MemoryOrder { scenario, .. } => Some(scenario),
            Self::Memory { scenario, .. } => scenario.as_deref(),
            Self::IdleCpu { .. }
            | Self::StartUp { .. }
            | Self::Binary { .. }
            | Self::HighestRate { .. }
            | Self::Dollars { .. }
            | Self::Unmeasurable { .. } => None,
        }
    }
}

/// Which latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Percentile {
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
enum Moment {
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

/// Looks at every claim; of records of several generators, at those of one.
#[must_use]
pub fn check(claims: &[Claim], records: &[Record], prices: &[Price]) -> Vec<Outcome> {
    let records = &of_one_generator(records)[..];
    let bench = look::Measured { records, prices };
    let outcome = |claim: &Claim| {
        let (verdict, mut because) = match bench.look(&claim.check) {
            Ok((holds, because)) if holds => (Verdict::Holds, because),
            Ok((_, because)) => (Verdict::DoesNotHoldHere, because),
            Err(why) => (Verdict::NotMeasurableHere, why),
        };
        if verdict != Verdict::NotMeasurableHere {
            let toy = claim.check.scenario().is_some_and(|name| is_of_toys(name, records));
            let toy = toy.then_some("our own services of its shape, which do less");
            for but in claim.but.as_deref().into_iter().chain(toy) {
                because += &format!("; {but}");
            }
        }
        Outcome { source: claim.source.clone(), says: claim.says.clone(), verdict, because }
    };
    claims.iter().map(outcome).collect()
}

/// Whether a scenario has a real application, which records of it do not have.
fn is_of_toys(scenario: &str, records: &[Record]) -> bool {
    let real = |record: &Record| record.scenario == scenario && compare::real(record).is_some();
    let found = scenario::find(scenario);
    found.is_ok_and(|one| one.is_an_application()) && !records.iter().any(real)
}

#[cfg(test)]
mod tests;
