//! Counts exchanges. The counters are kept in the kernel's table from one process to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_bpf_abi::flow::{FlowWireKey, FlowWireRequests, MAX_FLOW_WIRE_REQUESTS};
use leno_requests::Histogram;

use super::conversation::Exchange;
use super::conversations::ExchangePair;

/// Rows that are reserved for exchanges without a separate row: one for each protocol and role.
const RESERVED: usize = 32;
const MAX_ROWS: usize = MAX_FLOW_WIRE_REQUESTS as usize - RESERVED;
/// Most rows of one workload. Its further requests are summed by protocol and role, under [`PEER_OTHER`].
const MAX_OF_WORKLOAD: usize = 256;
/// From this number of rows on, the rows of workloads that no longer exist are dropped.
const MANY: usize = MAX_ROWS / 4 * 3;
/// Stands for all peers for which a workload has no row. It is not the ID of a workload.
pub(super) const PEER_OTHER: u32 = u32::MAX;

/// The counters of exchanges.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    all: BTreeMap<FlowWireKey, FlowWireRequests>,
    /// The number of rows of each workload.
    by_workload: BTreeMap<u32, usize>,
    changed: BTreeSet<FlowWireKey>,
    /// Rows that must still be removed from the kernel's table.
    gone: BTreeSet<FlowWireKey>,
    folded: u64,
}

impl Rows {
    /// Continues with the counters that an earlier process has left.
    pub(super) fn resume(rows: Vec<(FlowWireKey, FlowWireRequests)>) -> Self {
        let mut resumed = Self { all: rows.into_iter().collect(), ..Self::default() };
        for key in resumed.all.keys() {
            *resumed.by_workload.entry(key.workload).or_default() += 1;
        }
        resumed
    }

    pub(super) fn count(&mut self, pair: ExchangePair, exchange: Exchange) {
        let Exchange { protocol, kind, result, took_ns } = exchange;
        let mut key = FlowWireKey {
            workload: pair.workload,
            peer: pair.peer,
            role: pair.role,
            protocol: protocol as u8,
            reserved: [0; 6],
            kind: fixed(kind),
            result: fixed(result),
        };
        if !self.all.contains_key(&key) {
            key = self.within_bounds(key);
        }
        let row = self.all.entry(key).or_insert_with(|| {
            *self.by_workload.entry(key.workload).or_default() += 1;
            FlowWireRequests { requests: 0, duration_us: 0, durations: [0; 32] }
        });
        row.requests = row.requests.wrapping_add(1);
        if let Some(took_ns) = took_ns {
            let mut durations = durations_of(row);
            durations.count_one(Duration::from_nanos(took_ns));
            (row.durations, row.duration_us) = (durations.counts, durations.sum_us);
        }
        self.gone.remove(&key);
        self.changed.insert(key);
    }

    /// The key of a new row or, if there is no room for it, of the row in which it is counted.
    fn within_bounds(&mut self, key: FlowWireKey) -> FlowWireKey {
        let of_workload = self.by_workload.get(&key.workload).copied().unwrap_or_default();
        if of_workload < MAX_OF_WORKLOAD && self.all.len() < MAX_ROWS {
            return key;
        }
        self.folded += 1;
        let other = fixed("other");
        let of_workload = FlowWireKey { peer: PEER_OTHER, kind: other, result: other, ..key };
        if self.all.contains_key(&of_workload) || self.all.len() < MAX_ROWS {
            return of_workload;
        }
        FlowWireKey { workload: 0, peer: 0, ..of_workload }
    }

    /// If there are many rows, drops those of workloads that no longer exist, and returns them.
    pub(crate) fn forget(
        &mut self,
        is_there: impl Fn(u32) -> bool,
    ) -> Vec<(FlowWireKey, FlowWireRequests)> {
        if self.all.len() < MANY {
            return Vec::new();
        }
        let is_gone = |key: &FlowWireKey| key.workload != 0 && !is_there(key.workload);
        let gone: Vec<_> = self.all.extract_if(.., |key, _| is_gone(key)).collect();
        for (key, _) in &gone {
            self.by_workload.remove(&key.workload);
            self.changed.remove(key);
            self.gone.insert(*key);
        }
        gone
    }

    /// Calls `keep` with all changes since its last success. Dropped rows come first, and have no value.
    pub(super) fn keep<E>(
        &mut self,
        mut keep: impl FnMut(&FlowWireKey, Option<&FlowWireRequests>) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(key) = self.gone.first().copied() {
            keep(&key, None)?;
            self.gone.remove(&key);
        }
        while let Some(key) = self.changed.first().copied() {
            if let Some(row) = self.all.get(&key) {
                keep(&key, Some(row))?;
            }
            self.changed.remove(&key);
        }
        Ok(())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&FlowWireKey, &FlowWireRequests)> {
        self.all.iter()
    }

    /// How many requests are counted under `other` because there was no room for their row.
    pub(super) fn folded(&self) -> u64 {
        self.folded
    }
}

pub(super) fn durations_of(row: &FlowWireRequests) -> Histogram {
    Histogram { counts: row.durations, sum_us: row.duration_us }
}

/// A word, padded with zeroes. The words of parsers are shorter.
fn fixed(word: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (byte, of_word) in bytes.iter_mut().zip(word.bytes().take(15)) {
        *byte = of_word;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::protocol::Protocol;
    use super::*;

    #[test]
    fn rows_beyond_the_bound_are_added_up_and_what_changed_is_kept_once() {
        let mut rows = Rows::default();
        let exchange =
            |took_ns| Exchange { protocol: Protocol::Http1, kind: "GET", result: "2xx", took_ns };
        let pair = |peer| ExchangePair { workload: 3 + peer / 200, peer, role: 0 };
        for peer in 0..MAX_FLOW_WIRE_REQUESTS {
            rows.count(pair(peer), exchange(Some(1_000_000)));
        }
        assert_eq!(rows.folded(), RESERVED as u64);
        rows.count(pair(1), exchange(None));
        let mut kept = Vec::new();
        let mut keep = |key: &FlowWireKey, row: Option<&FlowWireRequests>| {
            let row = row.unwrap();
            kept.push((key.workload, row.requests, durations_of(row).count()));
            Ok::<_, ()>(())
        };
        rows.keep(&mut keep).unwrap();
        rows.keep(&mut keep).unwrap();
        assert_eq!(kept.len(), MAX_FLOW_WIRE_REQUESTS as usize - RESERVED + 1);
        assert!(kept.contains(&(0, 32, 32)) && kept.contains(&(3, 2, 1)));
        let resumed = Rows::resume(rows.all().map(|(key, row)| (*key, *row)).collect());
        assert_eq!(resumed.all().map(|(_, row)| row.requests).sum::<u64>(), 4097);
        assert_eq!((&resumed.all, &resumed.by_workload), (&rows.all, &rows.by_workload));
    }

    #[test]
    fn a_workload_has_a_bound_of_its_own_and_gone_ones_make_room() {
        let mut rows = Rows::default();
        let exchange =
            |kind| Exchange { protocol: Protocol::Http1, kind, result: "2xx", took_ns: None };
        let count = |rows: &mut Rows, workload, peer| {
            rows.count(ExchangePair { workload, peer, role: 0 }, exchange("GET"));
        };
        (0..1000).for_each(|peer| count(&mut rows, 3, peer));
        count(&mut rows, 4, 0);
        assert_eq!((rows.all.len(), rows.folded()), (MAX_OF_WORKLOAD + 2, 744));
        let other = rows.all().find(|(key, _)| key.peer == PEER_OTHER).unwrap();
        assert_eq!((other.0.workload, other.1.requests), (3, 744));
        // Nothing is dropped while there is room.
        assert!(rows.forget(|_| false).is_empty());
        for workload in 5..20 {
            (0..256).for_each(|peer| count(&mut rows, workload, peer));
        }
        rows.keep(|_, _| Ok::<_, ()>(())).unwrap();
        count(&mut rows, 3, 0);
        let gone = rows.forget(|id| id != 3);
        assert_eq!(gone.len(), MAX_OF_WORKLOAD + 1);
        assert_eq!(gone.iter().map(|(_, row)| row.requests).sum::<u64>(), 1001);
        // One of the dropped rows is used again before the kernel's table is updated.
        count(&mut rows, 3, 0);
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        let keep = |key: &FlowWireKey, row: Option<&FlowWireRequests>| {
            match row {
                None => removed.push(*key),
                Some(row) => kept.push((key.workload, key.peer, row.requests)),
            }
            Ok::<_, ()>(())
        };
        rows.keep(keep).unwrap();
        assert_eq!((removed.len(), kept), (MAX_OF_WORKLOAD, vec![(3, 0, 1)]));
    }
}
