//! Limits on the cost of single workloads, and how often programs have accounted for something of them.

use std::io;

use leno_bpf_abi::flow::{FlowCap, FlowLevel, FlowProgram, FlowRuns};
use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use super::{AccountingPrice, Flows, Maps};
use crate::error::Error;
use crate::pins;

/// How often each [`FlowProgram`] has accounted for something of a workload, in the order of [`FlowProgram::ALL`].
pub type ProgramRuns = [u64; FlowProgram::ALL.len()];

impl Flows {
    /// How often each program has accounted for something of a workload.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn runs(&self, workload: u32) -> Result<ProgramRuns, Error> {
        let action = "read how often programs ran for a workload";
        let value = lookup(&Maps::open_one(&self.directory, "runs")?, workload, action)?;
        FlowRuns::from_bytes(&value).map(|runs| runs.of).ok_or_else(|| invalid(action))
    }

    /// The level of one workload, its budget, and its part of the programs' cost. Zeros, and the level full, if it has
    /// no limit.
    ///
    /// # Errors
    /// If the map cannot be read.
    pub fn cap(&self, workload: u32) -> Result<AccountingPrice, Error> {
        // A version without limits for workloads has not pinned this map.
        if !pins::map_path(&self.directory, "caps").exists() {
            return Ok(AccountingPrice {
                level: FlowLevel::Full,
                budget_millionths: 0,
                cost_millionths: 0,
            });
        }
        let cap = self.cap_of(workload)?;
        Ok(AccountingPrice {
            level: super::level_of(cap.level),
            budget_millionths: cap.budget,
            cost_millionths: cap.cost,
        })
    }

    /// Sets the level of one workload for connections that begin from now on. If the level of the machine accounts for
    /// less, that applies.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_cap(&self, workload: u32, price: AccountingPrice) -> Result<(), Error> {
        let AccountingPrice { level, budget_millionths, cost_millionths } = price;
        let (level, budget, cost) = (u32::from(level as u8), budget_millionths, cost_millionths);
        self.set_cap_of(workload, &FlowCap { level, budget, cost, ..self.cap_of(workload)? })
    }

    pub(super) fn cap_of(&self, workload: u32) -> Result<FlowCap, Error> {
        let action = "read the budget of a workload";
        let value = lookup(&Maps::open_one(&self.directory, "caps")?, workload, action)?;
        FlowCap::from_bytes(&value).ok_or_else(|| invalid(action))
    }

    pub(super) fn set_cap_of(&self, workload: u32, cap: &FlowCap) -> Result<(), Error> {
        let caps = Maps::open_one(&self.directory, "caps")?;
        let action = "set the budget of a workload";
        super::update(&caps, &workload.to_ne_bytes(), &cap.to_bytes(), action)
    }
}

fn lookup(map: &MapHandle, workload: u32, action: &str) -> Result<Vec<u8>, Error> {
    let value = map.lookup(&workload.to_ne_bytes(), MapFlags::ANY).map_err(Error::bpf(action))?;
    value.ok_or_else(|| invalid(action))
}

fn invalid(action: &str) -> Error {
    Error::io(action)(io::ErrorKind::InvalidData.into())
}
