//! Counts packets that the kernel has dropped, by workload and by the kernel's reason.

use std::collections::BTreeMap;

use leno_bpf::flows::drop_reasons;
use leno_bpf_abi::flow::FlowDrop;
use serde::{Deserialize, Serialize};

use crate::connection::{WorkloadNames, name_of};

/// The key of a row: namespace, workload, reason.
pub(crate) type DropKey = [String; 3];

/// A number of dropped packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropRow {
    /// The namespace of the workload; empty for packets that did not fit into the kernel's table.
    pub namespace: String,
    /// The workload in whose network namespace they were dropped.
    pub workload: String,
    /// The kernel's reason.
    pub reason: String,
    /// How many.
    pub packets: u64,
}

/// The last published counts. There are at most as many rows as in the kernel's table.
#[derive(Debug, Default)]
pub(crate) struct Drops {
    /// The names of the kernel's reasons. They are read when the first packet is dropped.
    reasons: BTreeMap<u32, String>,
    rows: BTreeMap<DropKey, u64>,
}

impl Drops {
    /// Takes over the kernel's counts. A count that is lower than before keeps its value.
    pub(crate) fn take_in(&mut self, counts: &[(FlowDrop, u64)], names: &WorkloadNames) {
        if self.reasons.is_empty() && !counts.is_empty() {
            self.reasons = drop_reasons().into_iter().collect();
        }
        for (of, count) in counts {
            // The kernel counts packets that do not fit into its table under the ID 0, which no workload has.
            let row = if of.workload == 0 {
                [String::new(), "other".to_owned(), "other".to_owned()]
            } else {
                let (namespace, workload) = name_of(names, of.workload);
                [namespace, workload, self.reason(of.reason)]
            };
            let published = self.rows.entry(row).or_default();
            *published = (*count).max(*published);
        }
    }

    /// The counts as rows.
    pub(crate) fn into_rows(self) -> Vec<DropRow> {
        let row = |([namespace, workload, reason], packets): (DropKey, u64)| DropRow {
            namespace,
            workload,
            reason,
            packets,
        };
        self.rows.into_iter().map(row).collect()
    }

    /// Each row with its count.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (&DropKey, &u64)> {
        self.rows.iter()
    }

    /// The name of a reason. Reasons of kernel modules, such as a network driver, are not in the kernel's list.
    fn reason(&self, number: u32) -> String {
        self.reasons.get(&number).cloned().unwrap_or_else(|| number.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_without_a_name_is_a_number_and_what_found_no_room_is_other() {
        let mut drops =
            Drops { reasons: [(3, "NO_SOCKET".to_owned())].into(), rows: BTreeMap::new() };
        let names = [(7, ("shop".to_owned(), "web".to_owned()))].into();
        let of = |workload, reason| FlowDrop { workload, reason };
        drops.take_in(&[(of(7, 3), 5), (of(7, 65_536), 1), (of(0, 0), 2)], &names);
        drops.take_in(&[(of(7, 3), 4)], &names);
        let rows: Vec<(String, u64)> =
            drops.rows().map(|(row, count)| (row.join("/"), *count)).collect();
        let expected = [("/other/other", 2), ("shop/web/65536", 1), ("shop/web/NO_SOCKET", 5)];
        assert_eq!(rows, expected.map(|(row, count)| (row.to_owned(), count)));
    }
}
