//! Writes the status of routes and policies, while this replica leads.
//!
//! A status consists of what the index has determined about an object, and of the replicas' reports about proxies
//! that do not enforce policies (`unenforced`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use leno_index::{Index, ObjectChange};
use leno_kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use leno_kube::{Api, Client, Reflection, WatchReport, WatchSelection};
use leno_resources::{Kind, Metadata, Object, ObjectKey};
use leno_serve::PlaneState;
use leno_status::OlderProxies;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, timeout};

use crate::counts;
use crate::reconcile::{Reconciler, while_leading};
use crate::unenforced::older_proxies;

/// The label of the control plane's pods, and its value.
const REPLICAS: (&str, &str) = ("app.kubernetes.io/name", "leno-controller");
/// The field manager of the written fields.
const FIELD_MANAGER: &str = "leno-controller";
/// How often the status of policies is computed again if only endpoints have changed. A large mesh has such
/// changes all the time.
const ENDPOINTS: Duration = Duration::from_secs(2);
/// How many writes are in progress at the same time.
const AT_ONCE: usize = 8;
/// The shortest time between the beginnings of two writes, which permits 100 writes per second. A new leader may
/// have to write thousands of statuses, and the API server also serves other clients.
const PACE: Duration = Duration::from_millis(10);
/// Longest wait for the answer to a write. A healthy API server answers much sooner.
const ANSWER: Duration = Duration::from_secs(10);
/// For how many objects a status is computed while the index is locked. Meanwhile the index accepts no change.
const JUDGED: usize = 256;

/// Follows the status of routes and policies, and writes it where it should be different.
pub struct StatusReconciler {
    client: Client,
    /// The namespace of the control plane.
    namespace: String,
    /// The routes and policies as last read, each with the version that a status replaces.
    objects: Mutex<BTreeMap<ObjectKey, JudgedObject>>,
    changes: Arc<Changes>,
    counts: Counts,
}

/// Changes of the index after which no status was computed yet.
#[derive(Debug, Default)]
struct Changes {
    /// Any status may depend on the changes.
    all: Notify,
    /// The changes concern endpoints, on which only the status of policies may depend.
    endpoints: AtomicBool,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    conflicts: AtomicU64,
    failed: AtomicU64,
}

/// A route or a policy and, if it cannot be parsed, the reason.
#[derive(Clone)]
struct JudgedObject {
    object: Object,
    misread: Option<String>,
    /// Whether the API server has rejected the status. It would reject the same status again until the object
    /// changes.
    refused: bool,
}

/// Which statuses changes may affect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct AffectedStatuses {
    /// All of them.
    all: bool,
    /// The statuses that depend on endpoints.
    endpoints: bool,
}

impl AffectedStatuses {
    /// The statuses that depend on fetched keys of token issuers, which may be any.
    pub const KEYS: Self = Self { all: true, endpoints: false };
}

/// A status that has to be written.
struct DueStatus {
    key: ObjectKey,
    api_version: String,
    /// The version of the object that it replaces.
    version: String,
    status: Value,
}

/// Which objects need their status computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JudgedKinds {
    /// The objects whose status depends on endpoints.
    Policies,
    All,
}

impl StatusReconciler {
    /// Creates the reconciler without any object. `namespace` is the control plane's.
    #[must_use]
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            objects: Mutex::default(),
            changes: Arc::default(),
            counts: Counts::default(),
        }
    }

    /// Records changes of objects. The caller calls this before it applies the changes to the index, and then
    /// passes the result to [`applied`](Self::applied).
    pub fn note(&self, changes: &[ObjectChange]) -> AffectedStatuses {
        let mut bearing = AffectedStatuses::default();
        let mut objects = self.objects();
        for change in changes {
            let kind = match change {
                ObjectChange::Upsert(object) => object.key().kind,
                ObjectChange::Delete(key) => key.kind,
            };
            let judged = is_judged(kind);
            let others = [Kind::Service, Kind::ReferenceGrant, Kind::ConfigMap, Kind::Secret];
            bearing.all |= judged || others.contains(&kind);
            bearing.endpoints |= matches!(kind, Kind::EndpointSlice | Kind::Workload);
            match change {
                ObjectChange::Upsert(object) if judged => {
                    let one =
                        JudgedObject { object: object.clone(), misread: None, refused: false };
                    objects.insert(object.key(), one);
                }
                ObjectChange::Delete(key) if judged => {
                    objects.remove(key);
                }
                _ => {}
            }
        }
        bearing
    }

    /// Records that the changes were applied to the index, so that statuses can be computed.
    pub fn applied(&self, bearing: AffectedStatuses) {
        if bearing.endpoints {
            self.changes.endpoints.store(true, Ordering::Relaxed);
        }
        if bearing.all {
            self.changes.all.notify_one();
        }
    }

    /// Records objects that cannot be parsed, each with the reason.
    pub fn misread(&self, misread: impl IntoIterator<Item = (Object, String)>) {
        let mut objects = self.objects();
        for (object, reason) in misread {
            let one = JudgedObject { object, misread: Some(reason), refused: false };
            objects.insert(one.object.key(), one);
        }
        drop(objects);
        self.changes.all.notify_one();
    }

    /// Writes while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, state: &PlaneState, leads: watch::Receiver<bool>) {
        // A new leader computes every status, because the previous leader may not have written all.
        while_leading(leads, || Observed {
            own: self,
            state,
            which: Some(JudgedKinds::All),
            replicas: Reflection::default(),
            older: None,
        })
        .await;
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let Counts { written, conflicts, failed } = &self.counts;
        let help = "Statuses of routes and policies written, by result.";
        let results = [("written", written), ("conflict", conflicts), ("failed", failed)];
        counts::render(text, ("status_writes_total", help), &results);
    }

    fn due(
        &self,
        state: &PlaneState,
        which: JudgedKinds,
        older: &BTreeMap<String, OlderProxies>,
    ) -> Vec<DueStatus> {
        let now = Time(Timestamp::now());
        let objects = self.objects();
        let wanted = |one: &&JudgedObject| {
            !one.refused && (which == JudgedKinds::All || one.object.key().kind.is_policy())
        };
        let all: Vec<JudgedObject> = objects.values().filter(wanted).cloned().collect();
        drop(objects);
        let judge = |index: &Index, some: &[JudgedObject]| -> Vec<DueStatus> {
            some.iter().filter_map(|one| due(index, one, older, &now)).collect()
        };
        all.chunks(JUDGED).flat_map(|some| state.look(|index| judge(index, some))).collect()
    }

    /// Writes statuses. Returns whether some of them have to be written again.
    async fn write(&self, due: Vec<DueStatus>) -> bool {
        let writes = paced(due).map(|due| self.write_one(due));
        let written = writes.buffer_unordered(AT_ONCE);
        written.fold(false, |left, again| async move { left || again }).await
    }

    async fn write_one(&self, due: DueStatus) -> bool {
        let DueStatus { key, api_version, version, status } = due;
        let (group, api) = api_version.split_once('/').unwrap_or(("", &api_version));
        let kind = GroupVersionKind::gvk(group, api, key.kind.as_str());
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        // To the API server, the list of conditions is one field. So the patch replaces the whole list, but only
        // in the version that was read, so that conditions that other clients have added meanwhile are not lost.
        let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
        let params =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let count = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        let patch = Patch::Merge(&patch);
        let write = api.patch_status(&key.name, &params, &patch);
        let Ok(written) = timeout(ANSWER, write).await else {
            count(&self.counts.failed);
            tracing::warn!(object = %key, "no response to a status update in {ANSWER:?}; retrying");
            return true;
        };
        match written {
            Ok(_) => {
                count(&self.counts.written);
                tracing::info!(object = %key, "status written");
                false
            }
            // The object has changed or was deleted, and the watch will report that.
            Err(leno_kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                count(&self.counts.conflicts);
                false
            }
            Err(leno_kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                count(&self.counts.failed);
                let reason = &status.message;
                tracing::warn!(object = %key, reason, "the API server rejects the status; it is \
                                                       written again when the object changes");
                self.refuse(&key, &version);
                false
            }
            Err(error) => {
                count(&self.counts.failed);
                let error: &dyn std::error::Error = &error;
                tracing::warn!(object = %key, error, "cannot write the status; retrying");
                true
            }
        }
    }

    /// Records that the status must not be written again for this version of the object.
    fn refuse(&self, key: &ObjectKey, version: &str) {
        if let Some(one) = self.objects().get_mut(key) {
            let read = written(&one.object);
            one.refused = read.is_some_and(|(_, read)| read == version);
        }
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, JudgedObject>> {
        // Poisoning is ignored, because entries are inserted and removed as a whole.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What this replica has observed while it leads.
struct Observed<'a> {
    own: &'a StatusReconciler,
    state: &'a PlaneState,
    /// Which statuses have to be computed; `None` if there is nothing to do.
    which: Option<JudgedKinds>,
    /// What each replica reports, by the name of its pod.
    replicas: Reflection<String, BTreeMap<String, OlderProxies>>,
    /// The union of these reports, by policy. `None` until the pods were listed or could not be listed. Without
    /// this distinction, a new leader would first write that all proxies enforce all policies.
    older: Option<BTreeMap<String, OlderProxies>>,
}

enum Observation {
    /// The status of these objects has to be computed.
    Changed(JudgedKinds),
    /// A replica's pod: its name and its report.
    Replica(WatchReport<(String, BTreeMap<String, OlderProxies>)>),
}

impl Observed<'_> {
    /// The union of the reports of all replicas.
    fn merge(&self) -> BTreeMap<String, OlderProxies> {
        let mut all: BTreeMap<String, OlderProxies> = BTreeMap::new();
        for (policy, older) in self.replicas.values().values().flatten() {
            all.entry(policy.clone()).or_default().merge(older.clone());
        }
        all
    }
}

impl Reconciler for Observed<'_> {
    type Observation = Observation;

    /// Longer than by default, because a rollout changes many things at once, and people read a status only
    /// afterwards.
    const GATHER: Duration = Duration::from_millis(100);
    const PAUSE: Duration = Duration::ZERO;
    const RETRY: Duration = Duration::from_secs(2);

    /// The objects themselves are not watched here. The index receives them, and its changes are recorded by
    /// [`note`](StatusReconciler::note).
    fn watches(&self) -> BoxStream<'static, Observation> {
        let all = stream::unfold(Arc::clone(&self.own.changes), |changes| async move {
            changes.all.notified().await;
            Some((JudgedKinds::All, changes))
        });
        let changed = stream::select(all, self.own.changes.of_endpoints());
        let pods: Api<Pod> = Api::namespaced(self.own.client.clone(), &self.own.namespace);
        let (label, value) = REPLICAS;
        let replicas = leno_kube::watch(pods, WatchSelection::labelled(label, value));
        let said = |pod: Pod| {
            let older = older_proxies(&pod);
            (pod.metadata.name.unwrap_or_default(), older)
        };
        let replicas = replicas.map(move |report| Observation::Replica(report.map(said)));
        stream::select(changed.map(Observation::Changed), replicas).boxed()
    }

    fn observe(&mut self, observation: Observation) {
        match observation {
            Observation::Changed(which) => self.which = self.which.max(Some(which)),
            Observation::Replica(WatchReport::Event(event)) => {
                self.replicas.take(event, |(name, older)| (name, Some(older)));
                if !self.replicas.is_complete() {
                    return;
                }
                let older = self.merge();
                if self.older.as_ref() != Some(&older) {
                    self.older = Some(older);
                    self.which = self.which.max(Some(JudgedKinds::Policies));
                }
            }
            Observation::Replica(WatchReport::Resumed) => {}
            Observation::Replica(WatchReport::Failed(error)) => {
                tracing::warn!(%error, "cannot read the control plane's pods; retrying");
                self.older.get_or_insert_default();
            }
        }
    }

    fn is_due(&self) -> bool {
        self.which.is_some() && self.older.is_some()
    }

    async fn reconcile(&mut self) -> bool {
        let (Some(which), Some(older)) = (self.which.take(), &self.older) else { return true };
        let left = self.own.write(self.own.due(self.state, which, older)).await;
        if left {
            self.which = Some(JudgedKinds::All);
        }
        !left
    }
}

impl Changes {
    /// Yields an item at the first tick after endpoints have changed.
    fn of_endpoints(self: &Arc<Self>) -> impl Stream<Item = JudgedKinds> + Send + use<> {
        let mut ticks = tokio::time::interval(ENDPOINTS);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        stream::unfold((Arc::clone(self), ticks), |(changes, mut ticks)| async move {
            loop {
                ticks.tick().await;
                if changes.endpoints.swap(false, Ordering::Relaxed) {
                    return Some((JudgedKinds::Policies, (changes, ticks)));
                }
            }
        })
    }
}

/// Yields the items at a bounded rate, one in each [`PACE`].
fn paced<T: Send>(items: Vec<T>) -> impl Stream<Item = T> + Send {
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    stream::unfold((items.into_iter(), pace), |(mut items, mut pace)| async move {
        let one = items.next()?;
        pace.tick().await;
        Some((one, (items, pace)))
    })
}

fn is_judged(kind: Kind) -> bool {
    kind.is_policy() || Kind::ROUTES.contains(&kind)
}

/// The status that an object should have; `None` if it has that status.
fn due(
    index: &Index,
    JudgedObject { object, misread, .. }: &JudgedObject,
    older: &BTreeMap<String, OlderProxies>,
    now: &Time,
) -> Option<DueStatus> {
    let key = object.key();
    // Proxies of an earlier release may not support all policies of this kind, so its status depends on them.
    let older = match key.kind {
        Kind::AuthorizationPolicy => older.get(&format!("{}/{}", key.namespace, key.name)),
        _ => None,
    };
    let status = match (key.kind.is_policy(), misread) {
        (false, None) => json!(leno_status::status(index, object, now)?),
        (false, Some(reason)) => json!(leno_status::refused(object, reason, now)?),
        (true, None) => json!(leno_status::policy_status(index, object, older, now)?),
        (true, Some(reason)) => json!(leno_status::refused_policy(object, reason, now)?),
    };
    let (api_version, version) = written(object)?;
    let (api_version, version) = (api_version.to_owned(), version.to_owned());
    Some(DueStatus { key, api_version, version, status })
}

/// The `apiVersion` in which the object was read, and the version that a new status replaces.
fn written(object: &Object) -> Option<(&str, &str)> {
    let (api_version, metadata) = match object {
        Object::HttpRoute(route) => (&route.api_version, &route.metadata),
        Object::GrpcRoute(route) => (&route.api_version, &route.metadata),
        Object::TlsRoute(route) => (&route.api_version, &route.metadata),
        Object::TcpRoute(route) => (&route.api_version, &route.metadata),
        Object::BackendTlsPolicy(policy) => (&policy.api_version, &policy.metadata),
        Object::TrafficPolicy(policy) => return own(Kind::TrafficPolicy, &policy.metadata),
        Object::RateLimitPolicy(policy) => return own(Kind::RateLimitPolicy, &policy.metadata),
        Object::AuthorizationPolicy(policy) => {
            return own(Kind::AuthorizationPolicy, &policy.metadata);
        }
        _ => return None,
    };
    Some((api_version, metadata.resource_version.as_deref()?))
}

fn own(kind: Kind, metadata: &Metadata) -> Option<(&'static str, &str)> {
    Some((kind.api_version(), metadata.resource_version.as_deref()?))
}

#[cfg(test)]
mod tests;
