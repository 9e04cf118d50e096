//! Records workloads whose proxies lack a feature that their policies require.
//!
//! A proxy lists its features in its first request (`Node.features`). A proxy of an earlier release still serves,
//! without the policies that it does not support. This module records which policies that are, as long as the
//! proxy's stream is open.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_types::InstanceName;

use crate::metrics::{GaugeGuard, Metrics};

/// How many policies of a workload, and workloads of a policy, are named at most. Others are only counted.
const NAMED: usize = 8;

/// The policies that the proxy of a workload does not enforce.
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

/// The workloads whose proxies do not enforce one policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnenforcingWorkloads {
    /// The first of these workloads by name, at most eight.
    pub workloads: Vec<InstanceName>,
    /// How many workloads there are.
    pub count: usize,
}

/// The records by stream. A proxy that reconnects has two streams for a moment. There are at most as many records
/// as streams.
#[derive(Debug, Default)]
pub(crate) struct UnenforcedIndex(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    next: u64,
    by_number: BTreeMap<u64, Arc<Unenforced>>,
}

#[derive(Debug)]
struct Unenforced {
    instance: InstanceName,
    feature: &'static str,
    /// All policies, as `namespace/name`.
    policies: Vec<String>,
}

/// A record. Dropping this ends it.
pub(crate) struct UnenforcedRecord {
    index: Arc<UnenforcedIndex>,
    number: u64,
    _counted: GaugeGuard,
}

impl UnenforcedIndex {
    /// Records the policies that the proxy of a workload does not enforce.
    pub(crate) fn record(
        self: &Arc<Self>,
        metrics: &Arc<Metrics>,
        (instance, feature): (&InstanceName, &'static str),
        policies: impl Iterator<Item = String>,
    ) -> UnenforcedRecord {
        let unenforced =
            Unenforced { instance: instance.clone(), feature, policies: policies.collect() };
        let mut records = self.records();
        let number = records.next;
        records.next += 1;
        records.by_number.insert(number, Arc::new(unenforced));
        drop(records);
        let counted = GaugeGuard::new(metrics, |metrics| &metrics.unenforced_workloads);
        UnenforcedRecord { index: Arc::clone(self), number, _counted: counted }
    }

    /// The records by workload.
    pub(crate) fn by_workload(&self) -> Vec<UnenforcedPolicies> {
        let named = |one: &Arc<Unenforced>| UnenforcedPolicies {
            instance: one.instance.clone(),
            feature: one.feature,
            policies: one.policies.iter().take(NAMED).cloned().collect(),
            count: one.policies.len(),
        };
        self.latest().iter().map(named).collect()
    }

    /// The records by policy.
    pub(crate) fn by_policy(&self) -> BTreeMap<String, UnenforcingWorkloads> {
        let mut policies: BTreeMap<String, UnenforcingWorkloads> = BTreeMap::new();
        for one in self.latest() {
            for policy in &one.policies {
                let of = policies.entry(policy.clone()).or_default();
                if of.workloads.len() < NAMED {
                    of.workloads.push(one.instance.clone());
                }
                of.count += 1;
            }
        }
        policies
    }

    /// The latest record for each workload and feature, sorted by workload.
    fn latest(&self) -> Vec<Arc<Unenforced>> {
        let records = self.records();
        let by_workload =
            |one: &Arc<Unenforced>| ((one.instance.clone(), one.feature), one.clone());
        // If a workload has two streams, the later one counts, which has the higher number.
        let latest: BTreeMap<_, _> = records.by_number.values().map(by_workload).collect();
        drop(records);
        latest.into_values().collect()
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        // Poisoning is ignored, because entries are inserted and removed as a whole.
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
        let all = index.by_workload();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].count, all[0].policies.len()), (20, NAMED));
        assert_eq!(index.by_policy().len(), 20, "each policy is recorded");
        drop(second);
        assert_eq!(index.by_workload()[0].count, 1);
        drop(first);
        assert_eq!(index.by_workload(), []);
        assert_eq!(metrics.unenforced_workloads.get(), 0);
    }

    #[test]
    fn all_workloads_of_a_policy_are_counted_and_the_first_are_named() {
        let (index, metrics) = (Arc::new(UnenforcedIndex::default()), Arc::default());
        let record = |nth: usize, policies: &[&str]| {
            let instance = format!("shop/web-{nth:02}").parse().unwrap();
            let policies = policies.iter().map(ToString::to_string);
            index.record(&metrics, (&instance, "authorization"), policies)
        };
        let mut records: Vec<_> = (0..20).map(|nth| record(nth, &["shop/all"])).collect();
        records.push(record(3, &["shop/all", "shop/one"]));
        let policies = index.by_policy();
        let all = &policies["shop/all"];
        assert_eq!((all.count, all.workloads.len()), (20, NAMED), "two streams are one workload");
        assert_eq!(all.workloads[0].to_string(), "shop/web-00");
        assert_eq!(policies["shop/one"].count, 1);
        drop(records);
        assert_eq!(index.by_policy(), BTreeMap::new());
    }
}
