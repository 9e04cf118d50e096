//! Updates the rows of the kernel's table from what proxies have counted.

use std::collections::{BTreeMap, BTreeSet};

use leno_bpf::Error;
use leno_bpf::flows::Flows;
use leno_bpf_abi::flow::{FlowRequestKey, FlowRequests, MAX_FLOW_REQUESTS};
use leno_requests::{CLASSES, GRPC_STATUSES, Histogram, Labels, RequestCounts};

use super::metrics::{add_all, labels_of};
use super::proxies::{ProxyCgroup, ProxyWorkers};

/// Most rows of ended workers. Further ones are added to the row `other`.
const MAX_ENDED: usize = 4_096;

/// The table that holds the rows.
pub(super) trait RequestTable {
    fn set(&self, key: &FlowRequestKey, row: &FlowRequests) -> Result<(), Error>;
    fn remove(&self, key: &FlowRequestKey) -> Result<(), Error>;
}

impl RequestTable for Flows {
    fn set(&self, key: &FlowRequestKey, row: &FlowRequests) -> Result<(), Error> {
        self.set_requests(key, row)
    }

    fn remove(&self, key: &FlowRequestKey) -> Result<(), Error> {
        self.remove_requests(key)
    }
}

/// All rows of the table.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    proxies: ProxyWorkers,
    rows: BTreeMap<FlowRequestKey, FlowRequests>,
    /// The memory of running workers.
    running: BTreeSet<u64>,
    /// Whether all workers were found, so that a row whose memory was not found belongs to a worker that has
    /// ended.
    all_are_known: bool,
    /// How many rows could not be stored.
    left_out: u64,
}

impl Requests {
    /// Starts with the rows that an earlier process has left.
    pub(crate) fn resume(flows: &Flows) -> Result<Self, Error> {
        let mut requests =
            Self { rows: flows.requests()?.into_iter().collect(), ..Self::default() };
        requests.finish_interrupted(flows)?;
        Ok(requests)
    }

    /// Records that all workers were found. From now on, a row whose memory is not found in a round belongs to a
    /// worker that has ended.
    pub(crate) fn know_all(&mut self) {
        self.all_are_known = true;
    }

    /// How many rows did not fit in the last round.
    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &FlowRequests> {
        self.rows.values()
    }

    /// Reads the rows of all workers once.
    ///
    /// # Errors
    /// If the kernel refuses a row; the next round tries again.
    pub(crate) fn take_in(
        &mut self,
        flows: &Flows,
        places: &BTreeSet<ProxyCgroup>,
    ) -> Result<(), Error> {
        let mut proxies = std::mem::take(&mut self.proxies);
        proxies.look(places);
        self.left_out = 0;
        self.running.clear();
        let taken = proxies.for_each(|worker, has_ended| {
            self.running.insert(worker.identity);
            // The worker was changing labels at that moment. The next round reads the same or higher numbers.
            let Some(counted) = worker.memory.read_rows() else { return Ok(()) };
            self.take_in_worker(flows, worker.identity, &counted)?;
            if has_ended { self.end_worker(flows, worker.identity) } else { Ok(()) }
        });
        self.proxies = proxies;
        taken?;
        if self.all_are_known {
            let is_over = |memory: u64| memory != 0 && !self.running.contains(&memory);
            let over: BTreeSet<u64> =
                self.rows.keys().map(|key| key.memory).filter(|memory| is_over(*memory)).collect();
            over.into_iter().try_for_each(|memory| self.end_worker(flows, memory))?;
        }
        Ok(())
    }

    /// Updates the rows of a worker, and ends the rows that it has freed.
    fn take_in_worker(
        &mut self,
        table: &impl RequestTable,
        memory: u64,
        counted: &[RequestCounts],
    ) -> Result<(), Error> {
        let claims: BTreeSet<u64> = counted.iter().map(|row| row.claim).collect();
        let freed: Vec<FlowRequestKey> = self.rows_of(memory);
        for key in freed.iter().filter(|key| !claims.contains(&key.claim)) {
            self.end(table, key)?;
        }
        for row in counted {
            let key = FlowRequestKey { memory, claim: row.claim };
            let is_full = self.rows.len() >= MAX_FLOW_REQUESTS as usize - MAX_ENDED;
            let is_known = self.rows.contains_key(&key);
            if Labels::of_text(&row.labels).is_none() || (is_full && !is_known) {
                self.left_out += 1;
                continue;
            }
            let now = row_of(row);
            if self.rows.get(&key) != Some(&now) {
                table.set(&key, &now)?;
                self.rows.insert(key, now);
            }
        }
        Ok(())
    }

    fn end_worker(&mut self, table: &impl RequestTable, memory: u64) -> Result<(), Error> {
        self.rows_of(memory).iter().try_for_each(|key| self.end(table, key))
    }

    /// Adds a row to the sum of ended rows, and removes it.
    fn end(&mut self, table: &impl RequestTable, key: &FlowRequestKey) -> Result<(), Error> {
        let Some(row) = self.rows.get(key) else { return Ok(()) };
        let (ended, mut sum) = self.ended(row);
        add(&mut sum, row);
        (sum.folded_memory, sum.folded_claim) = (key.memory, key.claim);
        table.set(&ended, &sum)?;
        self.rows.insert(ended, sum);
        table.remove(key)?;
        self.rows.remove(key);
        Ok(())
    }

    /// The sum to which a row is added when it ends.
    fn ended(&self, row: &FlowRequests) -> (FlowRequestKey, FlowRequests) {
        let of = |labels: [u8; 512]| {
            let mut claim = number_of(&labels);
            loop {
                let key = FlowRequestKey { memory: 0, claim };
                match self.rows.get(&key) {
                    Some(other) if other.labels != labels => claim = claim.wrapping_add(1),
                    found => break (key, found.copied()),
                }
            }
        };
        let (key, found) = of(row.labels);
        if let Some(sum) = found {
            return (key, sum);
        }
        let first = FlowRequestKey { memory: 0, claim: 0 };
        let last = FlowRequestKey { memory: 0, claim: u64::MAX };
        let labels = match self.rows.range(first..=last).count() < MAX_ENDED {
            true => row.labels,
            false => other(row),
        };
        let (key, found) = of(labels);
        (key, found.unwrap_or_else(|| none(labels)))
    }

    /// Completes an interrupted [`Requests::end`], because an earlier process may have been killed between its two
    /// steps.
    fn finish_interrupted(&mut self, table: &impl RequestTable) -> Result<(), Error> {
        let folded = |row: &FlowRequests| FlowRequestKey {
            memory: row.folded_memory,
            claim: row.folded_claim,
        };
        let ended = self.rows.iter().filter(|(key, _)| key.memory == 0);
        let done: Vec<FlowRequestKey> = ended.map(|(_, row)| folded(row)).collect();
        for key in done {
            if key.memory != 0 && self.rows.remove(&key).is_some() {
                table.remove(&key)?;
            }
        }
        Ok(())
    }

    fn rows_of(&self, memory: u64) -> Vec<FlowRequestKey> {
        let first = FlowRequestKey { memory, claim: 0 };
        let last = FlowRequestKey { memory, claim: u64::MAX };
        self.rows.range(first..=last).map(|(key, _)| *key).collect()
    }
}

/// The FNV-1a hash.
fn number_of(labels: &[u8]) -> u64 {
    labels.iter().fold(0xcbf2_9ce4_8422_2325, |number, byte| {
        (number ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The row for a worker's counts.
fn row_of(counted: &RequestCounts) -> FlowRequests {
    FlowRequests {
        labels: padded(&counted.labels),
        classes: counted.classes,
        grpc: counted.grpc,
        duration_us: counted.durations.sum_us,
        durations: counted.durations.counts,
        folded_memory: 0,
        folded_claim: 0,
    }
}

fn none(labels: [u8; 512]) -> FlowRequests {
    let zero = RequestCounts {
        claim: 0,
        labels: String::new(),
        classes: [0; CLASSES],
        grpc: [0; GRPC_STATUSES],
        durations: Histogram::default(),
    };
    FlowRequests { labels, ..row_of(&zero) }
}

fn add(sum: &mut FlowRequests, row: &FlowRequests) {
    add_all(&mut sum.classes, &row.classes);
    add_all(&mut sum.grpc, &row.grpc);
    add_all(&mut sum.durations, &row.durations);
    sum.duration_us = sum.duration_us.wrapping_add(row.duration_us);
}

/// The labels of rows beyond the bound, which are only the direction and the encryption.
fn other(row: &FlowRequests) -> [u8; 512] {
    let text = labels_of(row).and_then(|labels| labels.other().to_text());
    text.map_or(row.labels, |text| padded(&text))
}

/// The bytes of labels, padded with zeroes.
fn padded(text: &str) -> [u8; 512] {
    let mut bytes = [0; 512];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests;
