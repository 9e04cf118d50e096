//! Objects from a Kubernetes API server.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use leno_resources::gateway::only_authorities;
use leno_resources::{Kind, Object, ObjectKey};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

mod collector;
mod connect;
mod custom;
mod followed;
mod pod;
mod read;
mod watch;

use crate::Update;
pub use connect::{ConnectError, connect};
pub use followed::Followed;
pub use pod::{PROXY_CONTAINER, is_meshed, is_ready, owner};
pub use read::{Read, ReadError, Unread, read};

use collector::Collector;
use watch::{Event, KindEvents};

/// Events on their way from the watches; what comes while it is full waits in the API server.
const EVENTS: usize = 1024;
/// How long nothing must happen before what has happened becomes one update.
const QUIET: Duration = Duration::from_millis(10);
/// Longest wait for quiet: objects that change all the time are told of this often nonetheless.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// How often the log says what the first update still waits for.
const WAITING: Duration = Duration::from_secs(10);

/// Follows the objects of a cluster. Needs the verbs `list` and `watch` on every kind it follows: the
/// kinds that [`leno_resources`] reads, static proxies aside, and pods.
///
/// A pod appears as a [`leno_resources::Workload`] called `pod/` and its name, which no object of the
/// cluster can be called, with itself as the only instance, so that the index knows one kind of instance.
pub struct KubernetesSource {
    client: Client,
    followed: Arc<Followed>,
}

/// A watched kind of object: one watch each, in the order of this list.
pub(crate) const WATCHED: [Watched; 14] = [
    Watched::Core(Kind::Namespace),
    Watched::Core(Kind::Service),
    Watched::Core(Kind::EndpointSlice),
    Watched::Pods,
    Watched::Custom(Kind::HttpRoute),
    Watched::Custom(Kind::GrpcRoute),
    Watched::Custom(Kind::TlsRoute),
    Watched::Custom(Kind::TcpRoute),
    Watched::Custom(Kind::ReferenceGrant),
    Watched::Custom(Kind::BackendTlsPolicy),
    Watched::Core(Kind::ConfigMap),
    Watched::Custom(Kind::TrafficPolicy),
    Watched::Custom(Kind::RateLimitPolicy),
    Watched::Custom(Kind::Workload),
];

/// A watched kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// One that every cluster has.
    Core(Kind),
    /// Pods, which appear as workloads.
    Pods,
    /// One that a cluster has while its definition is installed.
    Custom(Kind),
}

impl Watched {
    /// The kind's name, as Kubernetes writes it.
    fn as_str(self) -> &'static str {
        match self {
            Self::Core(kind) | Self::Custom(kind) => kind.as_str(),
            Self::Pods => "Pod",
        }
    }

    /// Most objects that one page of a list has: the larger they may be the fewer, since a page is held
    /// as a whole. A `ConfigMap` may have 1 MiB.
    fn page(self) -> u32 {
        if self == Self::Core(Kind::ConfigMap) { 20 } else { 500 }
    }
}

impl KubernetesSource {
    /// The cluster of a client. Nothing is asked yet.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client, followed: Arc::default() }
    }

    /// How following goes, also once the source runs.
    #[must_use]
    pub fn followed(&self) -> Arc<Followed> {
        Arc::clone(&self.followed)
    }

    /// Tells of everything once all kinds were read, and then of every change. What cannot be read
    /// is tried again for ever, and the last good state holds meanwhile. Ends when nobody receives
    /// updates any more.
    pub async fn run(self, updates: mpsc::Sender<Update>) {
        let (sender, mut events) = mpsc::channel(EVENTS);
        for (nth, watched) in WATCHED.into_iter().enumerate() {
            let teller =
                KindEvents { nth, events: sender.clone(), followed: Arc::clone(&self.followed) };
            let client = self.client.clone();
            tokio::spawn(async move { watched.each(client, &Scope::All, teller).await });
        }
        drop(sender);
        let mut collector = Collector::default();
        let mut next_word = Instant::now() + WAITING;
        loop {
            let Ok(event) = timeout_at(next_word, events.recv()).await else {
                next_word += WAITING;
                let missing = collector.missing();
                if !missing.is_empty() {
                    let missing: Vec<_> = missing.into_iter().map(Watched::as_str).collect();
                    tracing::warn!(?missing, "the cluster's objects were not all read yet");
                }
                continue;
            };
            let Some((nth, event)) = event else { return };
            let begin = Instant::now();
            collector.take(nth, event);
            collect_until_quiet(&mut collector, &mut events, begin).await;
            // What a route said before it was misread is told of before that.
            if let Some(changes) = collector.changes() {
                (0..WATCHED.len()).for_each(|nth| self.followed.hold(nth, collector.count(nth)));
                if updates.send(Update::Changes(changes)).await.is_err() {
                    return;
                }
                self.followed.told(begin.elapsed());
            }
            let misread = collector.misread();
            if !misread.is_empty() && updates.send(Update::Misread(misread)).await.is_err() {
                return;
            }
        }
    }
}

/// Which objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Those of every namespace.
    All,
    /// Those of one.
    Namespace(String),
}

/// Something that is done with all objects of one kind.
pub(crate) trait Visit: Sized {
    /// What comes of it.
    type Output;

    /// Does it, in the first of the kind's versions that the cluster has. `make` says what an object of
    /// the cluster is to the mesh.
    fn visit<K>(
        self,
        versions: Vec<Api<K>>,
        make: impl Fn(K) -> Result<Object, NoObject> + Send + Sync,
    ) -> impl Future<Output = Self::Output> + Send
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static;
}

impl Watched {
    /// Does something with all objects of this kind.
    async fn each<V: Visit>(self, client: Client, scope: &Scope, visit: V) -> V::Output {
        match self {
            // A namespace is in none.
            Self::Core(Kind::Namespace) => {
                let make = |given| Ok(Object::Namespace(Box::new(given)));
                visit.visit(vec![Api::<Namespace>::all(client)], make).await
            }
            Self::Core(Kind::Service) => {
                let make = |given| Ok(Object::Service(Box::new(given)));
                visit.visit(vec![api::<Service>(client, scope)], make).await
            }
            Self::Core(Kind::EndpointSlice) => {
                let make = |given| Ok(Object::EndpointSlice(Box::new(given)));
                visit.visit(vec![api::<EndpointSlice>(client, scope)], make).await
            }
            Self::Core(Kind::ConfigMap) => {
                visit.visit(vec![api::<ConfigMap>(client, scope)], authorities).await
            }
            Self::Pods => {
                visit.visit(vec![api::<Pod>(client, scope)], |pod| pod::workload(&pod)).await
            }
            Self::Core(kind) | Self::Custom(kind) => {
                let make = move |given| custom::object(kind, given);
                visit.visit(custom::versions(&client, kind, scope), make).await
            }
        }
    }
}

/// The way to the objects of a kind.
fn api<K>(client: Client, scope: &Scope) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match scope {
        Scope::All => Api::all(client),
        Scope::Namespace(name) => Api::namespaced(client, name),
    }
}

/// Of all the texts of a cluster only certificates of authorities are kept; others are as if not there.
fn authorities(mut object: ConfigMap) -> Result<Object, NoObject> {
    only_authorities(&mut object);
    let object = Object::ConfigMap(Box::new(object));
    match &object {
        Object::ConfigMap(texts) if texts.data.as_ref().is_some_and(|texts| !texts.is_empty()) => {
            Ok(object)
        }
        _ => Err(NoObject::Absent(object.key())),
    }
}

/// Takes in what happens until nothing does.
async fn collect_until_quiet(
    collector: &mut Collector,
    events: &mut mpsc::Receiver<(usize, Event)>,
    begin: Instant,
) {
    let latest = begin + MAX_WAIT;
    while let Ok(Some((nth, event))) =
        timeout_at((Instant::now() + QUIET).min(latest), events.recv()).await
    {
        collector.take(nth, event);
    }
}

/// Why an object of the cluster is no object of the mesh.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NoObject {
    /// There is nothing to it, as of a pod that has ended.
    Absent(ObjectKey),
    /// It cannot be understood; the last good state of it holds.
    Bad {
        key: ObjectKey,
        reason: String,
        /// What a route's status is written by, where it is one.
        route: Option<Box<Object>>,
    },
}
