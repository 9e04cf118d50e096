//! Reads and follows objects from a Kubernetes API server.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use leno_kube::core::NamespaceResourceScope;
use leno_kube::{Api, Client, Resource};
use leno_resources::gateway::only_used;
use leno_resources::{Kind, Object, ObjectKey};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

mod collector;
mod custom;
mod followed;
mod pod;
mod read;
mod reduced;
mod watch;

use crate::SourceUpdate;
pub use followed::{UnfollowedKind, WatchStates};
pub use pod::{PROXY_CONTAINER, has_proxy, is_meshed, is_ready, is_served, owner};
pub use read::{ReadError, SourceObjects, UnreadObject, read};

use collector::Collector;
use reduced::ReducedObject;
use watch::{KindEvent, KindEvents};

/// Most events between the watches and the collector. While the queue is full, further events wait in the API
/// server.
const EVENTS: usize = 1024;
/// How long no event must arrive before the collected events become one update. The events of a pod and of its
/// slice arrive close together.
const QUIET: Duration = Duration::from_millis(5);
/// The longest wait for such a pause. Even if objects change all the time, updates are sent this often. After
/// that, a change may wait up to 50 ms on a stream (`leno-serve`). The goal is that 99 of 100 changes arrive at
/// proxies within 100 ms.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// How often the log lists the kinds for which the first update still waits.
const WAITING: Duration = Duration::from_secs(10);

/// Watches the objects of a cluster. Needs the right to `list` and `watch` every kind that it follows: pods, and
/// the kinds that [`leno_resources`] reads except static proxies.
///
/// A pod becomes a [`leno_resources::Workload`] with itself as the only instance, so that the index
/// has one kind of instance. The workload's name is `pod/` and the pod's name; no object of the
/// cluster can have such a name.
pub struct KubernetesSource {
    client: Client,
    followed: Arc<WatchStates>,
}

/// The kinds that are watched, each by a separate watch. Other tables have the same order as this list.
pub(crate) const WATCHED: [WatchedKind; 16] = [
    WatchedKind::Core(Kind::Namespace),
    WatchedKind::Core(Kind::Service),
    WatchedKind::Core(Kind::EndpointSlice),
    WatchedKind::Pods,
    WatchedKind::Custom(Kind::HttpRoute),
    WatchedKind::Custom(Kind::GrpcRoute),
    WatchedKind::Custom(Kind::TlsRoute),
    WatchedKind::Custom(Kind::TcpRoute),
    WatchedKind::Custom(Kind::ReferenceGrant),
    WatchedKind::Custom(Kind::BackendTlsPolicy),
    WatchedKind::Core(Kind::ConfigMap),
    WatchedKind::Custom(Kind::TrafficPolicy),
    WatchedKind::Custom(Kind::RateLimitPolicy),
    WatchedKind::Custom(Kind::AuthorizationPolicy),
    WatchedKind::Custom(Kind::PodExemption),
    WatchedKind::Custom(Kind::Workload),
];

/// A watched kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchedKind {
    /// A kind that every cluster has.
    Core(Kind),
    /// Pods, which are converted to workloads.
    Pods,
    /// A kind that a cluster has while its CustomResourceDefinition is installed.
    Custom(Kind),
}

impl WatchedKind {
    /// The kind's name in Kubernetes.
    fn as_str(self) -> &'static str {
        match self {
            Self::Core(kind) | Self::Custom(kind) => kind.as_str(),
            Self::Pods => "Pod",
        }
    }

    /// How many objects one page of a list has at most. A whole page is held in memory, so kinds with large
    /// objects have smaller pages. A `ConfigMap` may have 1 MiB.
    fn page(self) -> u32 {
        if self == Self::Core(Kind::ConfigMap) { 20 } else { 500 }
    }
}

impl KubernetesSource {
    /// Creates a source for the cluster of this client, without sending a request.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, followed: Arc::default() }
    }

    /// The state of the watches. It stays up to date while the source runs.
    #[must_use]
    pub fn followed(&self) -> Arc<WatchStates> {
        Arc::clone(&self.followed)
    }

    /// Sends all objects once all kinds have been listed, and afterwards every change. Objects of kinds that
    /// usually have many are sent before that. A list or watch that fails is retried without end, and meanwhile
    /// the last valid state stays in effect. Ends when the receiver is dropped.
    pub async fn run(self, updates: mpsc::Sender<SourceUpdate>) {
        let (sender, mut events) = mpsc::channel(EVENTS);
        for (nth, watched) in WATCHED.into_iter().enumerate() {
            let events = sender.clone();
            let reporter = KindEvents { nth, events, followed: Arc::clone(&self.followed) };
            let client = self.client.clone();
            tokio::spawn(async move { watched.each(client, &ObjectScope::All, reporter).await });
        }
        drop(sender);
        let mut collector = Collector::default();
        let mut next_word = Instant::now() + WAITING;
        loop {
            let Ok(event) = timeout_at(next_word, events.recv()).await else {
                next_word += WAITING;
                let missing = collector.missing();
                if !missing.is_empty() {
                    let missing: Vec<_> = missing.into_iter().map(WatchedKind::as_str).collect();
                    tracing::warn!(?missing, "the cluster's objects were not all read yet");
                }
                continue;
            };
            let Some((nth, event)) = event else { return };
            let begin = Instant::now();
            collector.take(nth, event);
            collect_until_quiet(&mut collector, &mut events, begin).await;
            let early = collector.early();
            if !early.is_empty() && updates.send(SourceUpdate::Early(early)).await.is_err() {
                return;
            }
            // A route may have changed before it became invalid, so its change is sent first.
            if let Some(changes) = collector.changes() {
                (0..WATCHED.len()).for_each(|nth| self.followed.hold(nth, collector.count(nth)));
                if updates.send(SourceUpdate::Changes(changes)).await.is_err() {
                    return;
                }
                self.followed.told(begin.elapsed());
            }
            let misread = collector.misread();
            if !misread.is_empty() && updates.send(SourceUpdate::Misread(misread)).await.is_err() {
                return;
            }
        }
    }
}

/// Selects objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectScope {
    /// The objects of all namespaces.
    All,
    /// The objects of one namespace.
    Namespace(String),
}

/// An operation on all objects of one kind, whose Rust type differs between kinds.
pub(crate) trait KindOperation: Sized {
    /// Its result.
    type Output;

    /// Runs the operation for the first version of the kind that the cluster has. `make` converts an object of the
    /// cluster to an object of the mesh.
    fn run<K>(
        self,
        versions: Vec<Api<K>>,
        make: impl Fn(K) -> Result<Object, SkippedObject> + Send + Sync,
    ) -> impl Future<Output = Self::Output> + Send
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static;
}

impl WatchedKind {
    /// Runs an operation on all objects of this kind.
    async fn each<V: KindOperation>(
        self,
        client: Client,
        scope: &ObjectScope,
        operation: V,
    ) -> V::Output {
        match self {
            // Namespaces do not belong to a namespace.
            Self::Core(Kind::Namespace) => {
                let make = |given| Ok(Object::Namespace(Box::new(given)));
                operation.run(vec![Api::<Namespace>::all(client)], make).await
            }
            Self::Core(Kind::Service) => {
                let make = |ReducedObject(given)| Ok(Object::Service(Box::new(given)));
                operation.run(vec![api::<ReducedObject<Service>>(client, scope)], make).await
            }
            Self::Core(Kind::EndpointSlice) => {
                let make = |ReducedObject(given)| Ok(Object::EndpointSlice(Box::new(given)));
                operation.run(vec![api::<ReducedObject<EndpointSlice>>(client, scope)], make).await
            }
            Self::Core(Kind::ConfigMap) => {
                operation.run(vec![api::<ConfigMap>(client, scope)], config_map).await
            }
            Self::Pods => {
                let make = |ReducedObject(pod)| pod::workload(&pod);
                operation.run(vec![api::<ReducedObject<Pod>>(client, scope)], make).await
            }
            Self::Core(kind) | Self::Custom(kind) => {
                let make = move |given| custom::object(kind, given);
                operation.run(custom::versions(&client, kind, scope), make).await
            }
        }
    }
}

/// The API client for objects of a kind.
fn api<K>(client: Client, scope: &ObjectScope) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match scope {
        ObjectScope::All => Api::all(client),
        ObjectScope::Namespace(name) => Api::namespaced(client, name),
    }
}

/// Reduces a `ConfigMap` to the entries that the mesh uses: certificates of authorities, and key sets that verify
/// tokens. A `ConfigMap` that has neither counts as absent.
fn config_map(mut object: ConfigMap) -> Result<Object, SkippedObject> {
    only_used(&mut object);
    let object = Object::ConfigMap(Box::new(object));
    match &object {
        Object::ConfigMap(texts) if texts.data.as_ref().is_some_and(|texts| !texts.is_empty()) => {
            Ok(object)
        }
        _ => Err(SkippedObject::Absent(object.key())),
    }
}

/// Collects events until none arrives for a while.
async fn collect_until_quiet(
    collector: &mut Collector,
    events: &mut mpsc::Receiver<(usize, KindEvent)>,
    begin: Instant,
) {
    let latest = begin + MAX_WAIT;
    while let Ok(Some((nth, event))) =
        timeout_at((Instant::now() + QUIET).min(latest), events.recv()).await
    {
        collector.take(nth, event);
    }
}

/// Why an object of the cluster is not converted to an object of the mesh.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SkippedObject {
    /// The mesh does not use it, for example a pod that has ended.
    Absent(ObjectKey),
    /// The object is invalid. Its last valid state stays in effect.
    Bad {
        key: ObjectKey,
        reason: String,
        /// For a route or a policy: its names and targets, so that its status can report the mistake.
        outline: Option<Box<Object>>,
    },
}
