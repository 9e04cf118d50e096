//! Reads the counters of containers, and of the kernel that they share.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::containers;
use crate::kernel_counters::{self, KernelCounters, NodeCounters, Process};

/// The counters to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CounterQuestion {
    /// IDs of containers.
    pub(crate) containers: Vec<String>,
    /// The container whose connections to other hosts are counted.
    pub(crate) connections_of: Option<String>,
    /// Whether to read the counters of the whole kernel, too, and to measure the run time of its eBPF programs from now
    /// on.
    pub(crate) whole: bool,
}

pub(super) fn read(question: &CounterQuestion) -> Result<NodeCounters> {
    let asked = question.containers.iter().chain(&question.connections_of);
    let pids = containers::pids(asked.map(String::as_str));
    let now = NodeCounters::now()?;
    let wanted = pids.iter().filter(|(id, _)| question.containers.contains(id));
    let of = |(id, pids): (&String, &Vec<u32>)| {
        (id.clone(), pids.iter().filter_map(|pid| Process::of(*pid)).collect())
    };
    let containers = wanted.map(of).filter(|(_, all): &(_, Vec<_>)| !all.is_empty()).collect();
    let client = question.connections_of.as_ref().and_then(|id| pids.get(id)?.first());
    Ok(NodeCounters {
        containers,
        connections: client.map(|pid| kernel_counters::crossing_of(*pid)),
        whole: question.whole.then(KernelCounters::read).transpose()?,
        ..now
    })
}
