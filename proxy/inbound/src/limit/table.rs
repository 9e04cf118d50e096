//! Rate limits whose counts the workers of a proxy share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use leno_discovery::{Asker, Lease, Leases};
use leno_resilience::lease::{Ask, Grant, Holder};
use leno_resilience::{MAX_KEYS, Rate, Verdict, WorkloadLimit};
use leno_telemetry::{Counter, Registry};
use leno_types::InstanceName;
use leno_types::traffic::{LimitKey, RateLimit};

/// The limits that the workers of a proxy share. It is locked when the policy changes, and not for each request.
#[derive(Clone, Debug, Default)]
pub struct LimitTable(Arc<Mutex<Limits>>);

/// A limit lives as long as a worker holds it.
#[derive(Debug, Default)]
struct Limits {
    own: Vec<Entry>,
    leased: Vec<Weak<LeasedLimit>>,
}

/// A limit of this proxy alone, and its counts. They are those of one workload: a waypoint has the limits of several
/// services, which may be equal.
#[derive(Debug)]
struct Entry {
    workload: InstanceName,
    limit: RateLimit,
    counts: Weak<WorkloadLimit>,
}

/// A limit that all proxies share: the control plane grants tokens to each proxy. While it does not answer, the proxy
/// permits its own part of the limit. Both count proxies and not threads, so the workers of this proxy, and its
/// guests on other workloads' threads, spend the same tokens.
#[derive(Debug)]
pub(super) struct LeasedLimit {
    /// The name of the limit, which is the same in all proxies.
    name: Arc<str>,
    tokens: Mutex<Tokens>,
}

#[derive(Debug)]
struct Tokens {
    holder: Holder,
    /// Requests tokens from the control plane, and receives them.
    asker: Asker,
}

impl LeasedLimit {
    fn new(limit: &RateLimit, leases: &Leases) -> Self {
        let holder = Holder::new(limit.requests, limit.per);
        let tokens = Mutex::new(Tokens { holder, asker: leases.asker() });
        Self { name: limit.shared_name().into(), tokens }
    }

    /// Counts a request. Takes the tokens that arrived since the last one, and requests more if that is due.
    pub(super) fn check(&self, registry: &Registry, now: Instant) -> Verdict {
        // The tokens are consistent even if a thread panicked while it held the lock.
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let Tokens { holder, asker } = &mut *tokens;
        while let Some(Lease { tokens, holders, .. }) = asker.take() {
            // Without holders, the control plane does not have the limit yet, or no longer has it.
            if holders > 0 {
                holder.granted(Grant { tokens, holders });
            }
        }
        let verdict = holder.check(now);
        if holder.is_alone(now) {
            registry.count(Counter::RateLimitAlone);
        }
        if let Some(Ask { wanted }) = holder.ask(now) {
            asker.ask(&self.name, wanted);
        }
        verdict
    }
}

impl LimitTable {
    fn lock(&self) -> MutexGuard<'_, Limits> {
        // The lists are consistent even if a thread panicked while it held the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tokens of a limit that all proxies share: those that another worker or another port already holds, or none
    /// yet.
    pub(super) fn leased(&self, limit: &RateLimit, leases: &Leases) -> Arc<LeasedLimit> {
        let limits = &mut self.lock().leased;
        limits.retain(|leased| leased.strong_count() > 0);
        let name = limit.shared_name();
        let mut held = limits.iter().filter_map(Weak::upgrade);
        if let Some(known) = held.find(|held| *held.name == *name) {
            return known;
        }
        let leased = Arc::new(LeasedLimit::new(limit, leases));
        limits.push(Arc::downgrade(&leased));
        leased
    }

    /// The counts of a limit of a workload: those that another worker already holds, or new ones.
    pub(super) fn get(&self, workload: &InstanceName, limit: &RateLimit) -> Arc<WorkloadLimit> {
        let limits = &mut self.lock().own;
        limits.retain(|entry| entry.counts.strong_count() > 0);
        let is_it = |entry: &&Entry| entry.workload == *workload && entry.limit == *limit;
        let known = limits.iter().find(is_it);
        if let Some(counts) = known.and_then(|entry| entry.counts.upgrade()) {
            return counts;
        }
        let rate = Rate::new(limit.requests, limit.per, limit.burst);
        let now = leno_transport::now();
        let counts = Arc::new(match limit.key {
            LimitKey::Workload => WorkloadLimit::single(rate, now),
            LimitKey::Client | LimitKey::Header(_) => WorkloadLimit::keyed(rate, MAX_KEYS, now),
        });
        let (workload, limit) = (workload.clone(), limit.clone());
        limits.push(Entry { workload, limit, counts: Arc::downgrade(&counts) });
        counts
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_types::traffic::PolicySource;

    use super::*;

    #[test]
    fn workers_share_the_counts_of_a_limit_and_workloads_do_not() {
        let table = LimitTable::default();
        let limit = RateLimit {
            requests: 5,
            per: Duration::from_secs(60),
            burst: 5,
            key: LimitKey::Workload,
            port: Some(80),
            is_global: false,
            source: PolicySource { created: 0, namespace: "shop".into(), name: "five".into() },
        };
        let workload = |name: &str| InstanceName { namespace: "shop".into(), name: name.into() };
        let counts = table.get(&workload("web"), &limit);
        assert!(Arc::ptr_eq(&counts, &table.get(&workload("web"), &limit)));
        assert!(!Arc::ptr_eq(&counts, &table.get(&workload("cart"), &limit)));
    }
}
