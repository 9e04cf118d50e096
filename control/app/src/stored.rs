//! The stored objects that the webhooks look at, as the watches read them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_admission::{AdmissionReview, PodContext, StoredObjects};
use leno_index::ObjectChange;
use leno_resources::Object;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Longest wait for a namespace that a review names and the watch has not delivered yet.
const WAIT: Duration = Duration::from_secs(2);

/// How long a pod that may not set what it sets waits for an exemption that was stored just before the pod.
const GRACE: Duration = Duration::from_millis(500);

/// The objects, shared by all reviews.
#[derive(Debug, Default)]
pub(crate) struct AdmissionObjects {
    stored: Mutex<StoredObjects>,
    changed: Notify,
}

impl AdmissionObjects {
    /// Takes note of changes.
    pub(crate) fn note(&self, changes: &[ObjectChange]) {
        let mut stored = self.stored();
        for change in changes {
            match change {
                ObjectChange::Upsert(object) => stored.put(object),
                ObjectChange::Delete(key) => stored.remove(key),
            }
        }
        drop(stored);
        self.changed.notify_waiters();
    }

    /// The objects that a judgement of this review looks at.
    pub(crate) fn neighbours(&self, review: &AdmissionReview) -> Vec<Arc<Object>> {
        self.stored().neighbours(review)
    }

    /// What is around the pod of a review. `None` if its namespace stays unknown for a while.
    pub(crate) async fn enclosing(&self, review: &AdmissionReview) -> Option<PodContext> {
        let enclosing = timeout(WAIT, self.found(review, |_| true)).await.ok()?;
        if enclosing.suits(&review.object) {
            return Some(enclosing);
        }
        let exempt = timeout(GRACE, self.found(review, |one| one.suits(&review.object))).await;
        Some(exempt.unwrap_or(enclosing))
    }

    /// Waits until what is around a pod is known and as wanted.
    async fn found(
        &self,
        review: &AdmissionReview,
        is_wanted: impl Fn(&PodContext) -> bool,
    ) -> PodContext {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enabled before the look-up, so that no change between the two is missed.
            changed.as_mut().enable();
            let enclosing = self.stored().enclosing(review);
            if let Some(enclosing) = enclosing.filter(&is_wanted) {
                return enclosing;
            }
            changed.await;
        }
    }

    fn stored(&self) -> MutexGuard<'_, StoredObjects> {
        // Whole entries only: what a panic left behind is still sound.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
