//! The stored objects that the webhooks use, from the watches.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_admission::{AdmissionReview, PodContext, StoredObjects};
use leno_index::ObjectChange;
use leno_resources::Object;
use tokio::sync::Notify;
use tokio::time::timeout;

/// How long to wait for the namespace in a review if the watch has not reported it yet.
const WAIT: Duration = Duration::from_secs(2);

/// How long a pod with a forbidden setting waits for an exemption, which may have been stored just before the pod.
const GRACE: Duration = Duration::from_millis(500);

/// The stored objects. All reviews share them.
#[derive(Debug, Default)]
pub(crate) struct AdmissionObjects {
    stored: Mutex<StoredObjects>,
    /// Wakes reviews that wait for an object.
    changed: Notify,
}

impl AdmissionObjects {
    /// Applies changes that watches have reported.
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

    /// The objects for the check of this review.
    pub(crate) fn neighbours(&self, review: &AdmissionReview) -> Vec<Arc<Object>> {
        self.stored().neighbours(review)
    }

    /// The context of the pod in a review; `None` if its namespace is still unknown after [`WAIT`].
    pub(crate) async fn enclosing(&self, review: &AdmissionReview) -> Option<PodContext> {
        let enclosing = timeout(WAIT, self.found(review, |_| true)).await.ok()?;
        if enclosing.suits(&review.object) {
            return Some(enclosing);
        }
        let exempt = timeout(GRACE, self.found(review, |one| one.suits(&review.object))).await;
        Some(exempt.unwrap_or(enclosing))
    }

    /// Waits until the context of a pod is known and satisfies `enough`, or the time is over.
    async fn found(
        &self,
        review: &AdmissionReview,
        is_wanted: impl Fn(&PodContext) -> bool,
    ) -> PodContext {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Enabled before the objects are read, so that no change is missed.
            changed.as_mut().enable();
            let enclosing = self.stored().enclosing(review);
            if let Some(enclosing) = enclosing.filter(&is_wanted) {
                return enclosing;
            }
            changed.await;
        }
    }

    fn stored(&self) -> MutexGuard<'_, StoredObjects> {
        // Poisoning is ignored, because entries are inserted and removed as a whole.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
