//! Workloads whose proxies lack a feature that their policies require.
//!
//! A proxy names its features in its first request (`Node.features`). One of an earlier release serves on without the
//! policies that it does not know; what it does not enforce is recorded here for as long as its stream lives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_types::InstanceName;

use crate::metrics::{Held, Metrics};

/// Policies that are named of one workload; the others are counted.
const NAMED: usize = 8;

/// What the proxy of a workload does not enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnenforcedPolicies {
    /// The workload.
    pub instance: InstanceName,
    /// The feature that its proxy lacks.
    pub feature: &'static str,
    /// Names of the policies, at most eight.
    pub policies: Vec<String>,
    /// How many policies there are.
    pub count: usize,
}

/// The records, by a number of their own: while a proxy connects again it has two streams. There are at most as many as
/// streams.
#[derive(Debug, Default)]
pub(crate) struct UnenforcedIndex(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    next: u64,
    by_number: BTreeMap<u64, UnenforcedPolicies>,
}

/// A record, until it is dropped.
pub(crate) struct UnenforcedRecord {
    index: Arc<UnenforcedIndex>,
    number: u64,
    _counted: Held,
}

impl UnenforcedIndex {
    /// Records the policies that the proxy of a workload does not enforce.
    pub(crate) fn record(
        self: &Arc<Self>,
        metrics: &Arc<Metrics>,
        (instance, feature): (&InstanceName, &'static str),
        policies: impl Iterator<Item = String>,
    ) -> UnenforcedRecord {
        let mut policies: Vec<String> = policies.collect();
        let count = policies.len();
        policies.truncate(NAMED);
        let instance = instance.clone();
        let mut records = self.records();
        let number = records.next;
        records.next += 1;
        records.by_number.insert(number, UnenforcedPolicies { instance, feature, policies, count });
        drop(records);
        let counted = Held::new(metrics, |metrics| &metrics.unenforced_workloads);
        UnenforcedRecord { index: Arc::clone(self), number, _counted: counted }
    }

    /// What is recorded, by workload.
    pub(crate) fn all(&self) -> Vec<UnenforcedPolicies> {
        let mut all: Vec<_> = self.records().by_number.values().cloned().collect();
        all.sort_by(|one, other| one.instance.cmp(&other.instance));
        // Of two streams of one workload the later one holds.
        all.reverse();
        all.dedup_by(|later, kept| {
            later.instance == kept.instance && later.feature == kept.feature
        });
        all.reverse();
        all
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        // Whole entries only: what a panic left behind is still sound.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnenforcedRecord {
    fn drop(&mut self) {
        self.index.records().by_number.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_with_two_streams_is_named_once_and_until_both_have_ended() {
        let (index, metrics) = (Arc::new(UnenforcedIndex::default()), Arc::default());
        let web: InstanceName = "shop/web-0".parse().unwrap();
        let record = |policies: usize| {
            let names = (0..policies).map(|nth| format!("shop/p{nth}"));
            index.record(&metrics, (&web, "authorization"), names)
        };
        let first = record(1);
        let second = record(20);
        assert_eq!(index.all().len(), 1);
        let all = index.all();
        assert_eq!((all[0].count, all[0].policies.len()), (20, NAMED));
        drop(second);
        assert_eq!(index.all()[0].count, 1);
        drop(first);
        assert_eq!(index.all(), []);
        assert_eq!(metrics.unenforced_workloads.get(), 0);
    }
}
