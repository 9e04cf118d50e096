//! Lists the owners of kernel programs, and their programs and maps, for operators. The rows are about this
//! machine, or come from the agent of a node.

use leno_bpf::inspect::{self, PinnedMap, PinnedProgram};
use leno_bpf::{Error, LeftoverPrograms, PinRoot};
use serde::{Deserialize, Serialize};

use crate::caps::WorkloadCap;
use crate::view::FlowView;

/// An owner of programs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnerRow {
    /// The name under which they were attached.
    pub owner: String,
    /// `flows` or `capture`.
    pub does: String,
    /// The version of Leno that attached them.
    pub version: String,
    /// Whether any of its programs is still attached.
    pub attached: bool,
    /// The cost, for an owner that accounts for flows.
    #[serde(flatten)]
    pub price: Option<PriceColumns>,
    /// For an owner that accounts for flows: why it does not count dropped packets; `None` if it does.
    #[serde(default)]
    pub drops_not_counted: Option<String>,
    /// The path of the pins.
    pub pins: String,
}

/// What accounting for flows costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PriceColumns {
    /// The level of accounting.
    pub level: String,
    /// The last measured share of the machine's CPU time.
    pub cpu_percent: f64,
    /// Its budget; `None` without one.
    pub cpu_budget_percent: Option<f64>,
    /// The workloads that have their own budget.
    #[serde(default)]
    pub workloads: Vec<WorkloadPrice>,
}

/// The cost of accounting for one workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadPrice {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub workload: String,
    /// Its own level. The common level may be lower.
    pub level: String,
    /// Its part of the cost in the last measurement, as a share of the machine's CPU time.
    pub cpu_percent: f64,
    /// Its budget.
    pub cpu_budget_percent: f64,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramRow {
    /// The name under which it was attached.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// The kernel's number for it.
    pub id: u32,
    /// The object to which it is attached.
    pub attached_to: String,
    /// How many instructions the verifier has processed.
    pub verified_instructions: u32,
    /// How many times it ran while the kernel counted its runs.
    pub runs: u64,
    /// The mean time of a run.
    pub ns_per_run: Option<u64>,
}

/// A map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapRow {
    /// The name under which its programs were attached.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// The kernel's number for it.
    pub id: u32,
    /// The kernel's name of its type.
    #[serde(rename = "type")]
    pub kind: String,
    /// Most entries. For a ring buffer, its size in bytes.
    pub capacity: u32,
    /// Kernel memory that it uses now.
    pub memory_bytes: u64,
}

/// The owners of programs on this machine.
///
/// # Errors
/// If the pins cannot be read.
pub fn owners() -> Result<Vec<OwnerRow>, Error> {
    let row = |one: LeftoverPrograms| {
        let view = one.flows.then(|| FlowView::open(&one.owner).ok().flatten()).flatten();
        OwnerRow {
            does: if one.flows { "flows" } else { "capture" }.to_owned(),
            price: view.as_ref().and_then(price_of),
            drops_not_counted: view.and_then(|view| view.drops_are_not_counted()),
            attached: one.attached,
            pins: one.directory.display().to_string(),
            version: one.version,
            owner: one.owner,
        }
    };
    Ok(leno_bpf::list(&PinRoot::find()?)?.into_iter().map(row).collect())
}

/// The programs of this machine.
///
/// # Errors
/// If the pins cannot be read.
pub fn programs() -> Result<Vec<ProgramRow>, Error> {
    let row = |one: PinnedProgram| {
        let PinnedProgram { owner, name, id, attached_to, verified_instructions, runs, took } = one;
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let ns_per_run = ns.checked_div(runs);
        ProgramRow { owner, name, id, attached_to, verified_instructions, runs, ns_per_run }
    };
    Ok(inspect::programs(&PinRoot::find()?)?.into_iter().map(row).collect())
}

/// The maps of this machine.
///
/// # Errors
/// If the pins cannot be read.
pub fn maps() -> Result<Vec<MapRow>, Error> {
    let row = |one: PinnedMap| {
        let PinnedMap { owner, name, id, kind, capacity, memory_bytes } = one;
        MapRow { owner, name, id, kind, capacity, memory_bytes }
    };
    Ok(inspect::maps(&PinRoot::find()?)?.into_iter().map(row).collect())
}

/// The price of an owner; `None` if its programs are of another version.
fn price_of(view: &FlowView) -> Option<PriceColumns> {
    let price = view.price().ok()?;
    let percent = |millionths: u32| f64::from(millionths) / 1e4;
    let workload = |cap: WorkloadCap| WorkloadPrice {
        namespace: cap.namespace,
        workload: cap.workload,
        level: cap.price.level.name().to_owned(),
        cpu_percent: percent(cap.price.cost_millionths),
        cpu_budget_percent: percent(cap.price.budget_millionths),
    };
    Some(PriceColumns {
        workloads: view.caps().ok()?.into_iter().map(workload).collect(),
        level: price.level.name().to_owned(),
        cpu_percent: percent(price.cost_millionths),
        cpu_budget_percent: (price.budget_millionths > 0).then(|| percent(price.budget_millionths)),
    })
}
