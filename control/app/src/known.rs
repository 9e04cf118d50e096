//! The objects that the webhooks ask about.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_index::Change;
use leno_resources::{CAPTURE_ANNOTATION, Kind, Object, ObjectKey};
use tokio::sync::Notify;
use tokio::time::timeout;

/// Longest wait for a namespace that a review names and the watch has not told of yet.
const WAIT: Duration = Duration::from_secs(2);

/// All objects but endpoints and pods, which are many, and which no check asks for.
#[derive(Debug, Default)]
pub(crate) struct Known {
    objects: Mutex<BTreeMap<ObjectKey, Object>>,
    changed: Notify,
}

impl Known {
    /// Takes note of changes.
    pub(crate) fn note(&self, changes: &[Change]) {
        let mut objects = self.objects();
        for change in changes {
            match change {
                Change::Upsert(object) if is_asked_for(&object.key()) => {
                    objects.insert(object.key(), object.clone());
                }
                Change::Delete(key) => {
                    objects.remove(key);
                }
                Change::Upsert(_) => {}
            }
        }
        drop(objects);
        self.changed.notify_waiters();
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Object> {
        self.objects().values().cloned().collect()
    }

    /// What a namespace says of `leno.dev/capture`; nothing where it is not known after a while.
    pub(crate) async fn capture(&self, namespace: &str) -> Option<Option<String>> {
        let told = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                // From here on, so that no change is missed between the look and the wait.
                changed.as_mut().enable();
                if let Some(capture) = self.look(namespace) {
                    return capture;
                }
                changed.await;
            }
        };
        timeout(WAIT, told).await.ok()
    }

    fn look(&self, namespace: &str) -> Option<Option<String>> {
        let objects = self.objects();
        let key = |of: &str| ObjectKey {
            kind: Kind::Namespace,
            namespace: of.to_owned(),
            name: namespace.to_owned(),
        };
        let Object::Namespace(found) = objects.get(&key(""))? else { return None };
        let maps = [&found.metadata.labels, &found.metadata.annotations];
        Some(maps.into_iter().flatten().find_map(|map| map.get(CAPTURE_ANNOTATION).cloned()))
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Object>> {
        // Whole entries only: what a panic left behind is still sound.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pods appear as workloads whose names no object can have.
fn is_asked_for(key: &ObjectKey) -> bool {
    key.kind != Kind::EndpointSlice && !(key.kind == Kind::Workload && key.name.contains('/'))
}
