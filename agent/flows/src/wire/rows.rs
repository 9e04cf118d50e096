//! The sums of exchanges, as the kernel's table keeps them from one process to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leno_bpf_abi::flow::{FlowWireKey, FlowWireRequests, MAX_FLOW_WIRE_REQUESTS};
use leno_requests::Histogram;

use super::talk::Exchange;
use super::talks::Pair;

/// Rows that stay free for those of what finds no room: of each protocol and role.
const RESERVED: usize = 32;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    all: BTreeMap<FlowWireKey, FlowWireRequests>,
    changed: BTreeSet<FlowWireKey>,
    folded: u64,
}

impl Rows {
    /// Goes on with what an earlier process has counted.
    pub(super) fn resume(rows: Vec<(FlowWireKey, FlowWireRequests)>) -> Self {
        Self { all: rows.into_iter().collect(), ..Self::default() }
    }

    pub(super) fn count(&mut self, pair: Pair, exchange: Exchange) {
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
        if !self.all.contains_key(&key)
            && self.all.len() >= MAX_FLOW_WIRE_REQUESTS as usize - RESERVED
        {
            (key.workload, key.peer) = (0, 0);
            (key.kind, key.result) = (fixed("other"), fixed("other"));
            self.folded += 1;
        }
        let row = self.all.entry(key).or_insert_with(|| FlowWireRequests {
            requests: 0,
            duration_us: 0,
            durations: [0; 32],
        });
        row.requests = row.requests.wrapping_add(1);
        if let Some(took_ns) = took_ns {
            let mut durations = durations_of(row);
            durations.count_one(Duration::from_nanos(took_ns));
            (row.durations, row.duration_us) = (durations.counts, durations.sum_us);
        }
        self.changed.insert(key);
    }

    /// Calls `keep` with what has changed since that succeeded last.
    pub(super) fn keep<E>(
        &mut self,
        mut keep: impl FnMut(&FlowWireKey, &FlowWireRequests) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(key) = self.changed.first().copied() {
            if let Some(row) = self.all.get(&key) {
                keep(&key, row)?;
            }
            self.changed.remove(&key);
        }
        Ok(())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&FlowWireKey, &FlowWireRequests)> {
        self.all.iter()
    }

    /// Requests that are counted as `other` because there was no room for their row.
    pub(super) fn folded(&self) -> u64 {
        self.folded
    }
}

pub(super) fn durations_of(row: &FlowWireRequests) -> Histogram {
    Histogram { counts: row.durations, sum_us: row.duration_us }
}

/// A word with zeroes after it. Words of parsers are shorter.
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
        let pair = |peer| Pair { workload: 3, peer, role: 0 };
        for peer in 0..MAX_FLOW_WIRE_REQUESTS {
            rows.count(pair(peer), exchange(Some(1_000_000)));
        }
        assert_eq!(rows.folded(), RESERVED as u64);
        rows.count(pair(1), exchange(None));
        let mut kept = Vec::new();
        let mut keep = |key: &FlowWireKey, row: &FlowWireRequests| {
            kept.push((key.workload, row.requests, durations_of(row).count()));
            Ok::<_, ()>(())
        };
        rows.keep(&mut keep).unwrap();
        rows.keep(&mut keep).unwrap();
        assert_eq!(kept.len(), MAX_FLOW_WIRE_REQUESTS as usize - RESERVED + 1);
        assert!(kept.contains(&(0, 32, 32)) && kept.contains(&(3, 2, 1)));
        let resumed = Rows::resume(rows.all().map(|(key, row)| (*key, *row)).collect());
        assert_eq!(resumed.all().map(|(_, row)| row.requests).sum::<u64>(), 4097);
    }
}
