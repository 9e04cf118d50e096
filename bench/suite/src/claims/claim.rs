//! The published claims, and how each is checked.

use anyhow::{Result, anyhow};

use serde::Deserialize;

/// The file of the claims, built into this program.
const CLAIMS: &str = include_str!("../../data/claims.yaml");

/// One claim.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Short name of the source.
    pub source: String,
    /// The claim as published.
    pub says: String,
    /// How the measurement differs from the published one; printed with every verdict.
    #[serde(default)]
    pub(super) but: Option<String>,
    /// The check that decides on the claim.
    pub(super) check: Check,
}

/// The check of a claim. The name of a lab's mesh also accepts records of the same proxy in a
/// cluster.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Check {
    /// A latency.
    Latency {
        scenario: String,
        /// The step of the scenario, as the published total of requests per second; all steps if
        /// absent.
        #[serde(default)]
        step: Option<f64>,
        mesh: String,
        quantile: Percentile,
        ms: f64,
    },
    /// The latency that a mesh adds to that of another mesh, or of none.
    AddedLatency {
        scenario: String,
        mesh: String,
        #[serde(default)]
        over: Option<String>,
        quantile: Percentile,
        ms: f64,
    },
    /// A latency that is lower than that of another mesh, by a percentage.
    LessLatency { scenario: String, mesh: String, than: String, quantile: Percentile, percent: f64 },
    /// Context switches per request, lower than those of another mesh by a percentage.
    LessSwitches { scenario: String, mesh: String, than: String, percent: f64 },
    /// Which of two meshes has the lower p99 at a given rate to each service.
    Leads { scenario: String, mesh: String, than: String, rate_per_s: f64 },
    /// Whether the rate of a step is sustained, with no more errors than a valid run may have.
    Keeps { scenario: String, step: f64, mesh: String, kept: bool },
    /// Processors that a proxy keeps busy at a rate, scaled linearly from the measured rate.
    Cpu { scenario: String, mesh: String, rate_per_s: f64, cpus: f64 },
    /// Processors that a proxy keeps busy before any load; only records of a cluster have it.
    IdleCpu { mesh: String, cpus: f64 },
    /// Meshes by the memory of all their proxies together under load, in rising order.
    MemoryOrder { scenario: String, rising: Vec<String> },
    /// Resident memory of a proxy.
    Memory {
        #[serde(default)]
        scenario: Option<String>,
        mesh: String,
        moment: MemoryMoment,
        mb: f64,
    },
    /// Time from exec to the first served request.
    StartUp { mesh: String, ms: f64 },
    /// Size of the executable.
    Binary { mesh: String, mb: f64 },
    /// The highest sustained rate.
    HighestRate { mesh: String, rate_per_s: f64 },
    /// The cost of a hundred sidecars that use the stated resources.
    Dollars { machine: String, cpus: f64, mb: f64, dollars: f64 },
    /// This bench cannot check the claim.
    Unmeasurable { why: String },
}

impl Check {
    /// The scenario whose records are evidence; `None` if any scenario will do or the check needs
    /// no records.
    pub(super) fn scenario(&self) -> Option<&str> {
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

/// The percentile of a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Percentile {
    /// The median.
    P50,
    /// The 75th percentile.
    P75,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
}

/// The moment of a memory measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum MemoryMoment {
    /// Before the load.
    Idle,
    /// The highest value under load.
    Peak,
}

/// Parses the built-in claims.
pub fn claims() -> Result<Vec<Claim>> {
    let wrong = |error| anyhow!("the table of claims is damaged: {error}");
    serde_saphyr::from_str(CLAIMS).map_err(wrong)
}
