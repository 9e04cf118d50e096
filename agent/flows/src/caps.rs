//! Enforces the budgets of single workloads, with a separate [`Governor`] for each.

use std::collections::BTreeMap;

use leno_bpf::Error;
use leno_bpf::flows::{AccountingPrice, Flows};
use leno_bpf_abi::flow::FlowLevel;

use crate::budget::{CpuBudget, FrameUse, Governor, LevelChange, MeasuredCost, millionths};

/// The level, budget and cost of accounting for a workload without its own budget.
const FREE: AccountingPrice =
    AccountingPrice { level: FlowLevel::Full, budget_millionths: 0, cost_millionths: 0 };

/// A workload with its own budget. Any process can read this from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadCap {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub workload: String,
    /// Its level, its budget, and its share of the cost.
    pub price: AccountingPrice,
}

/// The workloads that have their own budget, by their IDs.
#[derive(Debug, Default)]
pub(crate) struct Caps(BTreeMap<u32, WorkloadBudget>);

#[derive(Debug)]
struct WorkloadBudget {
    governor: Governor,
    cost: f64,
    /// How many times its level was lowered and raised.
    steps: [u64; 2],
}

impl WorkloadBudget {
    fn price(&self) -> AccountingPrice {
        AccountingPrice {
            level: self.governor.level(),
            budget_millionths: self.governor.budget().millionths(),
            cost_millionths: millionths(self.cost),
        }
    }
}

impl Caps {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the next round may change the level of any of these workloads.
    pub(crate) fn are_watching(&self) -> bool {
        self.0.values().any(|cap| cap.governor.is_watching())
    }

    /// Sets the budget of a workload; `None` removes it. A workload that already has a budget keeps its level and
    /// its counters.
    pub(crate) fn set(
        &mut self,
        flows: &Flows,
        workload: u32,
        budget: Option<CpuBudget>,
    ) -> Result<(), Error> {
        if self.0.get(&workload).map(|cap| cap.governor.budget()) == budget {
            return Ok(());
        }
        let Some(budget) = budget else {
            self.0.remove(&workload);
            return flows.set_cap(workload, FREE);
        };
        if let Some(cap) = self.0.get_mut(&workload) {
            cap.governor.set_budget(budget);
            return flows.set_cap(workload, cap.price());
        }
        let cap = WorkloadBudget { governor: Governor::new(budget), cost: 0.0, steps: [0, 0] };
        flows.set_cap(workload, cap.price())?;
        self.0.insert(workload, cap);
        Ok(())
    }

    /// Handles one measurement, with each workload's part of the cost. Returns the changes of levels by workload.
    pub(crate) fn judge(
        &mut self,
        flows: &Flows,
        measured: &MeasuredCost,
        frames: impl Fn(u32) -> FrameUse,
    ) -> Result<Vec<(u32, LevelChange)>, Error> {
        let mut changes = Vec::new();
        for (workload, cap) in &mut self.0 {
            cap.cost = measured.of(*workload);
            cap.governor.set_frames(frames(*workload));
            if let Some(step) = cap.governor.judge(cap.cost) {
                cap.steps[usize::from(!step.down)] += 1;
                changes.push((*workload, step));
            }
            flows.set_cap(*workload, cap.price())?;
        }
        Ok(changes)
    }

    /// The price of each workload, and how many times its level was lowered and raised.
    pub(crate) fn prices(&self) -> impl Iterator<Item = (u32, AccountingPrice, [u64; 2])> {
        self.0.iter().map(|(workload, cap)| (*workload, cap.price(), cap.steps))
    }
}

/// Removes the budgets that an earlier process has set.
pub(crate) fn clear(flows: &Flows, workloads: impl Iterator<Item = u32>) -> Result<(), Error> {
    for workload in workloads {
        if flows.cap(workload)? != FREE {
            flows.set_cap(workload, FREE)?;
        }
    }
    Ok(())
}
