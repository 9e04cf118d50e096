//! The options of a run.

use std::path::PathBuf;
use std::time::Duration;

use crate::generator::name::Generator;
use crate::interrupt::Interrupt;
use crate::scenario::Scenario;

/// The options of a run.
pub struct Options {
    /// The scenarios to run.
    pub scenarios: Vec<Scenario>,
    /// Number of rounds.
    pub rounds: u32,
    /// How long each measurement lasts.
    pub duration: Duration,
    /// How long to generate load before each measurement.
    pub warm_up: Duration,
    /// Factor for the scenarios' rates.
    pub scale: f64,
    /// The load generators; under each mesh of a round, they take turns. A cluster has only Leno's. Without any, each
    /// load is made by the program that is usual for it ([`Generator::established`]).
    pub generators: Vec<Generator>,
    /// The real application instead of the suite's own services: its folder in the lab, its file of
    /// images in a cluster.
    pub application: Option<PathBuf>,
    /// The directory of the records.
    pub out: PathBuf,
    /// Skips measurements that have figures already.
    pub resume: bool,
    /// Whether there is one proxy in plaintext on loopback, instead of a mesh in namespaces; only in the lab.
    pub one_hop: bool,
    /// Whether the proxies have a CPU of their own, and everything else the others; only in the lab.
    pub pinned: bool,
    /// Ends the run.
    pub interrupt: Interrupt,
}
