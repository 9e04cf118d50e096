//! The state that all streams share: the index, the encodings of its values, and the subscriptions.
//!
//! ```text
//!   apply(changes) ──► index ──► ChangedNames ──► Subscriptions ──► the subscribed streams
//!                                                                 │ resolve: a short look
//!                                                                 ▼
//!                                                   Encodings: once a version, shared bytes
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use leno_index::{ChangedNames, Index, ObjectChange};
use leno_types::mesh::{Resolution, ServerPolicy, Subject};
use leno_types::{Identity, InstanceName, Removal};
use leno_wire::names;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::encodings::Encodings;
use crate::metrics::Metrics;
use crate::service_uses::ServiceUses;
use crate::subscriptions::Subscriptions;
use crate::trust::{PublishedTrust, TrustTable};
use crate::unenforced::{UnenforcedIndex, UnenforcedPolicies, UnenforcingWorkloads};
use crate::unknown_keys::UnknownKeys;

/// The state that a control plane serves. It has one writer and any number of streams.
#[derive(Debug)]
pub struct PlaneState {
    /// Streams lock the index only for look-ups. Nothing is encoded or sent under the lock.
    index: RwLock<Index>,
    /// How many times the index has changed.
    version: watch::Sender<u64>,
    pub(crate) encodings: Encodings,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) uses: ServiceUses,
    pub(crate) unenforced: Arc<UnenforcedIndex>,
    /// The trust bundle that proxies get.
    pub(crate) trust: RwLock<Option<PublishedTrust>>,
    pub(crate) trusting: TrustTable,
    pub(crate) unknown_keys: UnknownKeys,
    pub(crate) metrics: Arc<Metrics>,
}

impl PlaneState {
    /// Creates a state that serves the content of `index`.
    #[must_use]
    pub fn new(index: Index) -> Arc<Self> {
        let metrics = Arc::<Metrics>::default();
        Arc::new(Self {
            index: RwLock::new(index),
            version: watch::Sender::new(0),
            encodings: Encodings::new(Arc::clone(&metrics)),
            subscriptions: Subscriptions::default(),
            uses: ServiceUses::default(),
            unenforced: Arc::default(),
            trust: RwLock::default(),
            trusting: TrustTable::default(),
            unknown_keys: UnknownKeys::default(),
            metrics,
        })
    }

    /// Adds objects of a first list that is not complete yet. Streams only see them after the next
    /// [`apply`](Self::apply).
    pub fn preload(&self, changes: Vec<ObjectChange>) {
        self.index.write().unwrap_or_else(PoisonError::into_inner).preload(changes);
    }

    /// Applies changes atomically: no stream sees a part of them.
    pub fn apply(&self, changes: Vec<ObjectChange>) {
        self.change(|index| index.apply_all(changes));
    }

    /// From now on, a pod in node mode counts as served only if the agent of its node reports it.
    pub fn follow_reports(&self) {
        self.change(Index::follow_reports);
    }

    fn change(&self, change: impl FnOnce(&mut Index) -> ChangedNames) {
        let since = Instant::now();
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        let before = index.removal();
        let mut changed = change(&mut index);
        self.tell_of_removal(before, index.removal());
        if changed.is_empty() {
            return;
        }
        if self.metrics.cached_resources.get() > 0 {
            self.forget_unneeded(&index, &changed);
        }
        // If a service has changed only for the clients of one namespace, which has its own routes for it, the index
        // does not report the addresses of the service as changed. So they are added here.
        for service in changed.services.iter().filter_map(|name| index.service(name)) {
            changed.addresses.extend(&service.vips);
        }
        drop(index);
        self.version.send_modify(|version| *version += 1);
        self.metrics.index_version.set(self.version());
        // Published after the index has changed, so that woken streams find the change.
        let woken = self.subscriptions.publish(&changed, since);
        self.metrics.wakeups.add(woken);
    }

    fn tell_of_removal(&self, before: Removal, now: Removal) {
        if before == now {
            return;
        }
        self.metrics.removal.set(now.number().into());
        match now {
            Removal::None => tracing::info!(%before, "the mesh stays: its removal was cancelled"),
            step => {
                tracing::warn!(%step, "the mesh is being removed: leno uninstall has begun a step")
            }
        }
    }

    /// Drops the encodings of changed values that no stream is subscribed to.
    fn forget_unneeded(&self, index: &Index, changed: &ChangedNames) {
        for name in &changed.services {
            let is_needed = index.service(name).is_some_and(|service| {
                self.subscriptions.has(&Subject::Service(name.clone()))
                    || service.vips.iter().any(|ip| self.subscriptions.has(&Subject::Address(*ip)))
            });
            if !is_needed {
                self.encodings.forget(&names::of_service(name));
            }
        }
        for name in &changed.workloads {
            let is_needed = index.workload(name).is_some_and(|workload| {
                let mut ips = workload.addresses.iter();
                ips.any(|ip| self.subscriptions.has(&Subject::Address(*ip)))
            });
            if !is_needed {
                self.encodings.forget(&names::of_workload(name));
            }
        }
        for name in &changed.policies {
            if index.server_policy(name).is_none() || !self.subscriptions.has_policy(name) {
                self.encodings.forget(&name.to_string());
            }
        }
    }

    /// The policies that connected proxies of earlier releases do not enforce, by workload. Only proxies that are
    /// connected to this control plane are included.
    #[must_use]
    pub fn unenforced(&self) -> Vec<UnenforcedPolicies> {
        self.unenforced.by_workload()
    }

    /// As [`unenforced`](Self::unenforced), but by policy (`namespace/name`).
    #[must_use]
    pub fn unenforced_by_policy(&self) -> BTreeMap<String, UnenforcingWorkloads> {
        self.unenforced.by_policy()
    }

    /// Appends the metrics, as Prometheus text (`leno_control_*`).
    pub fn render_metrics(&self, text: &mut String) {
        self.metrics.subscriptions.set(self.subscriptions.count());
        self.metrics.render(text);
    }

    /// Calls `look` with the index, which is locked meanwhile. `look` must be short, because no change can be
    /// applied during the call.
    pub fn look<T>(&self, look: impl FnOnce(&Index) -> T) -> T {
        look(&self.index())
    }

    /// How many times the index has changed.
    #[must_use]
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// The answer for each subject, for a proxy in the namespace `client` or of the waypoint `client`. All answers
    /// are from the same version of the index.
    pub(crate) fn resolve(
        &self,
        subjects: impl Iterator<Item = Subject>,
        client: &str,
    ) -> Vec<(Subject, Resolution)> {
        let index = self.index();
        let resolve = |subject| {
            let resolution = index.resolve(&subject, client);
            (subject, resolution)
        };
        subjects.map(resolve).collect()
    }

    /// The identity of an instance according to the index.
    pub(crate) fn identity_of(&self, instance: &InstanceName) -> Option<Identity> {
        self.index().identity_of(instance).cloned()
    }

    /// The policy that a workload enforces.
    pub(crate) fn server_policy(&self, instance: &InstanceName) -> Option<Arc<ServerPolicy>> {
        self.index().server_policy(instance)
    }

    fn index(&self) -> RwLockReadGuard<'_, Index> {
        // Poisoning is ignored. Changes of the index do not panic; if one did, the rest of the index could still
        // be served.
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }
}
