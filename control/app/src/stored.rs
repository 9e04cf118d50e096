//! The stored objects that the webhooks look at, as the watches read them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_admission::{Review, StoredObjects};
use leno_index::Change;
use leno_resources::Object;
use tokio::sync::Notify;
use tokio::time::timeout;

/// Longest wait for a namespace that a review names and the watch has not delivered yet.
const WAIT: Duration = Duration::from_secs(2);

/// The objects, shared by all reviews.
#[derive(Debug, Default)]
pub(crate) struct AdmissionObjects {
    stored: Mutex<StoredObjects>,
    changed: Notify,
}

impl AdmissionObjects {
    /// Takes note of changes.
    pub(crate) fn note(&self, changes: &[Change]) {
        let mut stored = self.stored();
        for change in changes {
            match change {
                Change::Upsert(object) => stored.put(object),
                Change::Delete(key) => stored.remove(key),
            }
        }
        drop(stored);
        self.changed.notify_waiters();
    }

    /// The objects that a judgement of this review looks at.
    pub(crate) fn neighbours(&self, review: &Review) -> Vec<Arc<Object>> {
        self.stored().neighbours(review)
    }

    /// What a namespace says of `leno.dev/capture`. `None` if the namespace stays unknown for a while.
    pub(crate) async fn capture(&self, namespace: &str) -> Option<Option<String>> {
        let found = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // From here on, so that no change is missed between the look-up and the wait.
                changed.as_mut().enable();
                let capture = self.stored().capture(namespace);
                if let Some(capture) = capture {
                    return capture;
                }
                changed.await;
            }
        };
        timeout(WAIT, found).await.ok()
    }

    fn stored(&self) -> MutexGuard<'_, StoredObjects> {
        // Whole entries only: what a panic left behind is still sound.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
