//! Rate limits whose counts the workers of a proxy share.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use leno_resilience::{MAX_KEYS, Rate, WorkloadLimit};
use leno_types::traffic::{LimitKey, RateLimit};

/// The limits that the workers of a proxy share. It is locked when the policy changes, and not for each request.
#[derive(Clone, Debug, Default)]
pub struct LimitTable(Arc<Mutex<Vec<Entry>>>);

/// A limit, and its counts, which exist as long as a worker has them.
#[derive(Debug)]
struct Entry {
    limit: RateLimit,
    counts: Weak<WorkloadLimit>,
}

impl LimitTable {
    /// The counts of a limit: those that another worker already has, or new ones.
    pub(super) fn get(&self, limit: &RateLimit) -> Arc<WorkloadLimit> {
        // The list is consistent even if a thread panicked while it held the lock.
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
