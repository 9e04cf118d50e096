//! The published claims, and how each is checked.

use anyhow::{Result, anyhow};
use serde::Deserialize;

/// The file of the claims, built into this program.
const CLAIMS: &str = include_str!("../../data/claims.yaml");

/// One claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Short name of the source.
    pub source: String,
    /// The claim as published.
    pub says: String,
    /// How the measurement here differs from the published one; printed with every verdict.
    #[serde(default)]
    pub(super) but: Option<String>,
    pub(super) check: Check,
}

/// The check of a claim.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Check {
    Figure(FigureCheck),
    /// Whether the mesh sustains the rate of a step, with no more errors than a valid run may have. The claim is that
    /// it does if `kept` is true, and that it does not otherwise.
    Keeps {
        by: Evidence,
        kept: bool,
    },
    /// The yearly cost of a hundred sidecars that each use this many processors and MB, on this machine of the table of
    /// prices. The claim is a number of dollars (`near`).
    Dollars {
        machine: String,
        cpus: f64,
        mb: f64,
        near: f64,
    },
    /// This bench cannot check the claim, for this reason.
    Unmeasurable(String),
}

impl Check {
    /// The scenario whose records are the evidence; `None` if records of any scenario are evidence, or none are needed.
    pub(super) fn scenario(&self) -> Option<&str> {
        match self {
            Self::Figure(FigureCheck { by, .. }) | Self::Keeps { by, .. } => by.scenario.as_deref(),
            Self::Dollars { .. } | Self::Unmeasurable(_) => None,
        }
    }
}

/// Compares a figure in the records with a bound.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FigureCheck {
    pub(super) of: String,
    /// A factor for the figure.
    #[serde(default = "once")]
    pub(super) times: f64,
    pub(super) by: Evidence,
    pub(super) is: Bound,
}

/// Which records are the evidence.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Evidence {
    /// The mesh. The name of a lab's mesh also accepts records of the same proxy in a cluster.
    pub(super) mesh: String,
    /// `None` accepts any scenario and prefers the usual one.
    pub(super) scenario: Option<String>,
    /// The step of the scenario, given as the published total of requests per second; all steps if absent.
    pub(super) step: Option<f64>,
    /// Only runs in which each service answered this many requests a second.
    pub(super) reached: Option<f64>,
}

/// The claim about a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Bound {
    /// About this number, in the figure's unit.
    Near(f64),
    /// At most about this number.
    AtMost(f64),
    /// More than the figure of another mesh, by about this number.
    Over { mesh: String, by: f64 },
    /// Less than the figure of another mesh, by about this percentage.
    Under { mesh: String, percent: f64 },
    /// The lowest, followed by the figures of these meshes in increasing order.
    Rising(Vec<String>),
}

fn once() -> f64 {
    1.0
}

/// Parses the built-in claims.
pub fn claims() -> Result<Vec<Claim>> {
    let wrong = |error| anyhow!("the table of claims is damaged: {error}");
    serde_saphyr::from_str(CLAIMS).map_err(wrong)
}
