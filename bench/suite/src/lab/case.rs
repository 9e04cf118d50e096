//! One measurement of a run in the lab.

use super::mesh::{Mesh, MeshPrograms};
use crate::generator::name::Generator;
use crate::scenario::Scenario;

pub(super) struct Case<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) mesh: &'a Mesh,
    pub(super) found: &'a MeshPrograms,
    pub(super) generator: Generator,
    pub(super) round: u32,
    /// The step to measure, if the scenario has several rates.
    pub(super) step: Option<f64>,
}
