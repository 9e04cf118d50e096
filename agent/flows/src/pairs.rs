//! Counts connections by pairs of names. The counters never decrease, and the number of series is bounded.

use std::collections::{BTreeMap, BTreeSet};

use leno_bpf_abi::flow::{FlowOwner, FlowPair, FlowRole, FlowSums};

use crate::connection::{FlowPeer, IpProtocol, WorkloadNames, name_of, peer_of};

/// Most pairs that have separate series, which are about 20 for each. A Prometheus server can easily scrape that many
/// from one target. Further pairs are counted together, in pairs without names.
pub(crate) const MAX_PAIRS: usize = 1_000;

/// The key of a row: the connections that it counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionPair {
    /// The namespace, the workload and the peer; `None` for pairs beyond the bound.
    pub(crate) of: Option<(String, String, FlowPeer)>,
    pub(crate) role: FlowRole,
    pub(crate) owner: FlowOwner,
    pub(crate) protocol: &'static str,
}

/// The last published counters.
#[derive(Debug, Default)]
pub(crate) struct PublishedFlows {
    /// The pairs that have separate series, which are those that were seen first.
    shown: BTreeSet<ConnectionPair>,
    sums: BTreeMap<ConnectionPair, Sums>,
}

/// Counters in the order of `FlowSums`.
pub(crate) type Sums = [u64; 11 + 8];

impl PublishedFlows {
    /// Takes over the kernel's sums. A sum that is lower than before keeps its value. Returns how many pairs are
    /// counted without their names.
    pub(crate) fn take_in(
        &mut self,
        pairs: &[(FlowPair, FlowSums)],
        names: &WorkloadNames,
    ) -> usize {
        let mut now: BTreeMap<ConnectionPair, Sums> = BTreeMap::new();
        let mut folded = 0;
        for (key, sums) in pairs {
            let Some((role, owner)) = FlowRole::of(key.role).zip(FlowOwner::of(key.owner)) else {
                continue;
            };
            let protocol = IpProtocol::new(owner, key.protocol).name();
            let (namespace, workload) = name_of(names, key.workload);
            let of = (namespace, workload, peer_of(names, key.peer));
            // The kernel counts what does not fit into its table under the ID 0, which no workload has.
            let of = (key.workload != 0).then_some(of);
            let pair = self.within_budget(ConnectionPair { of, role, owner, protocol });
            folded += usize::from(pair.of.is_none() && key.workload != 0);
            let all = now.entry(pair).or_default();
            for (sum, more) in all.iter_mut().zip(values(sums)) {
                *sum = sum.wrapping_add(more);
            }
        }
        for (pair, sums) in now {
            let published = self.sums.entry(pair).or_default();
            for (old, new) in published.iter_mut().zip(sums) {
                *old = new.max(*old);
            }
        }
        folded
    }

    /// The pairs and their counters, except pairs whose counters are all zero.
    pub(crate) fn sums(&self) -> impl Iterator<Item = (&ConnectionPair, &Sums)> {
        self.sums.iter().filter(|(_, sums)| sums.iter().any(|sum| *sum > 0))
    }

    /// The pair itself if it has separate series, else the pair without names in which it is counted.
    fn within_budget(&mut self, pair: ConnectionPair) -> ConnectionPair {
        if self.shown.contains(&pair) {
            return pair;
        }
        if pair.of.is_some() && self.shown.len() < MAX_PAIRS {
            self.shown.insert(pair.clone());
            return pair;
        }
        ConnectionPair { of: None, ..pair }
    }
}

fn values(sums: &FlowSums) -> Sums {
    let mut all = [0; 19];
    let first = [
        sums.bytes_sent,
        sums.bytes_received,
        sums.segments_sent,
        sums.segments_received,
        sums.retransmits,
        sums.opened,
        sums.established,
        sums.handshake_us,
        sums.rtt_us,
        sums.rtt_samples,
        sums.duration_us,
    ];
    all[..11].copy_from_slice(&first);
    all[11..].copy_from_slice(&sums.ended);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(workload: u32, sent: u64) -> (FlowPair, FlowSums) {
        let zero = FlowSums::from_bytes(&[0; size_of::<FlowSums>()]).unwrap();
        let key = FlowPair { workload, peer: 0, role: 0, owner: 0, protocol: 0, reserved: 0 };
        (key, FlowSums { bytes_sent: sent, ..zero })
    }

    fn names(count: u32) -> WorkloadNames {
        (2..2 + count).map(|id| (id, ("shop".to_owned(), format!("w{id:05}")))).collect()
    }

    #[test]
    fn a_sum_never_goes_back() {
        let mut published = PublishedFlows::default();
        for sent in [10, 12, 11] {
            published.take_in(&[pair(2, sent)], &names(1));
        }
        assert_eq!(published.sums().next().unwrap().1[0], 12);
    }

    #[test]
    fn pairs_beyond_the_budget_are_added_up_and_keep_their_place() {
        let mut published = PublishedFlows::default();
        let names = names(1_100);
        let all: Vec<_> = (2..1_102).map(|id| pair(id, 1)).collect();
        assert_eq!(published.take_in(&all, &names), 100);
        // The same pairs keep their series even if the kernel lists them in another order.
        let turned: Vec<_> = all.into_iter().rev().collect();
        assert_eq!(published.take_in(&turned, &names), 100);
        assert_eq!(published.sums().count(), MAX_PAIRS + 1);
        let other = published.sums().find(|(pair, _)| pair.of.is_none()).unwrap().1[0];
        assert_eq!(other, 100);
    }

    #[test]
    fn pairs_that_share_a_name_share_a_row() {
        let mut published = PublishedFlows::default();
        let mut names = names(2);
        names.insert(3, names[&2].clone());
        published.take_in(&[pair(2, 5), pair(3, 7)], &names);
        let rows: Vec<u64> = published.sums().map(|(_, sums)| sums[0]).collect();
        assert_eq!(rows, [12]);
    }
}
