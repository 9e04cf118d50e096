//! The limits that the workers of a proxy count against together.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use leno_resilience::{MAX_KEYS, Rate, WorkloadLimit};
use leno_types::traffic::{LimitKey, RateLimit};

/// What the workers of a proxy share of its limits. Locked when the policy changes, not for requests.
#[derive(Clone, Debug, Default)]
pub struct LimitTable(Arc<Mutex<Vec<Entry>>>);

/// A limit and its counts, as long as a worker has them.
#[derive(Debug)]
struct Entry {
    limit: RateLimit,
    counts: Weak<WorkloadLimit>,
}

impl LimitTable {
    /// The counts of a limit: those that another worker has of it, or new ones.
    pub(super) fn get(&self, limit: &RateLimit) -> Arc<WorkloadLimit> {
        // A holder that panicked has left a list that is whole.
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        limits.retain(|entry| entry.counts.strong_count() > 0);
        let known = limits.iter().find(|entry| entry.limit == *limit);
        if let Some(counts) = known.and_then(|entry| entry.counts.upgrade()) {
            return counts;
        }
        let rate = Rate::new(limit.requests, limit.per, limit.burst);
        let now = leno_transport::now();
        let counts = Arc::new(match limit.key {
            LimitKey::Workload => WorkloadLimit::single(rate, now),
            LimitKey::Client | LimitKey::Header(_) => WorkloadLimit::keyed(rate, MAX_KEYS, now),
        });
        limits.push(Entry { limit: limit.clone(), counts: Arc::downgrade(&counts) });
        counts
    }
}
