//! Keeps a ConfigMap with the mesh's roots in every namespace, while this replica leads. Proxies verify the
//! control plane with these roots.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use leno_identity::Authority;
use leno_kube::{Api, Client, Reflection, WatchReport, WatchSelection, apply, is_status};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::counts;
use crate::reconcile::{Reconciler, while_leading};

/// The name of the ConfigMap, which is the same in every namespace.
pub const CONFIG_MAP: &str = "leno-roots";
/// The field of the ConfigMap with the roots.
const KEY: &str = "roots.pem";
/// The field manager of this key.
const FIELD_MANAGER: &str = "leno-controller";
/// How many namespaces are written at the same time.
const AT_ONCE: usize = 8;
/// Most writes of one round, over all namespaces.
const A_ROUND: usize = 100;
/// Longest wait for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(5);

/// Keeps the roots in a ConfigMap of every namespace.
pub struct RootsReconciler {
    client: Client,
    authority: Arc<Authority>,
    /// Hashes roots. The hash is keyed with a random key, because tenants can write the ConfigMaps as well and
    /// could otherwise forge a collision.
    hashes: RandomState,
    /// The hash of the roots that all namespaces have. While some namespace has other roots, a different value.
    settled: AtomicU64,
    written: AtomicU64,
    failed: AtomicU64,
}

/// The namespaces and their ConfigMaps.
struct Observed<'a> {
    own: &'a RootsReconciler,
    /// The namespaces, by name. A namespace that is being deleted is left out, because no object can be created in
    /// it.
    namespaces: Reflection<String, ()>,
    /// The hash of the roots in the ConfigMap, by namespace.
    maps: Reflection<String, u64>,
}

/// A report of one of the two watches.
enum Observation {
    Namespace(WatchReport<Namespace>),
    Map(WatchReport<ConfigMap>),
    /// The authority has changed its roots.
    Roots,
}

impl RootsReconciler {
    /// Creates the reconciler, which publishes the roots that the authority has at each moment.
    #[must_use]
    pub fn new(client: Client, authority: Arc<Authority>) -> Self {
        let [settled, written, failed] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { client, authority, hashes: RandomState::new(), settled, written, failed }
    }

    /// Whether all namespaces have the authority's current roots, as far as this replica has observed while it
    /// led.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed) == self.wanted()
    }

    /// The hash of the authority's current roots.
    fn wanted(&self) -> u64 {
        self.hashes.hash_one(self.authority.trust().roots_pem())
    }

    /// Watches, and writes while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, leads: watch::Receiver<bool>) {
        while_leading(leads, || Observed::new(self)).await;
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "ConfigMaps of roots written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("roots_writes_total", help), &results);
    }

    /// Writes the roots into a namespace. Returns the namespace and the hash of its roots if that succeeded.
    async fn write(&self, namespace: String) -> Option<(String, u64)> {
        let trust = self.authority.trust();
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &namespace);
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "labels": {"app.kubernetes.io/part-of": "leno"}},
            "data": {KEY: trust.roots_pem()},
        });
        // Server-side apply creates the ConfigMap if it does not exist. The control plane needs only the right to
        // objects of this name.
        let written = apply(&maps, FIELD_MANAGER, CONFIG_MAP, &map);
        let failure = match timeout(ANSWER, written).await {
            Ok(Ok(_)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                return Some((namespace, self.hashes.hash_one(trust.roots_pem())));
            }
            // The namespace is being deleted or is gone, which the watch will report.
            Ok(Err(error)) if is_status(&error, 404) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(namespace, failure, "cannot write the roots; retrying");
        None
    }
}

impl<'a> Observed<'a> {
    fn new(own: &'a RootsReconciler) -> Self {
        Self { own, namespaces: Reflection::default(), maps: Reflection::default() }
    }

    /// The namespaces whose ConfigMap does not have the roots; empty until both kinds are listed.
    fn due(&self) -> Vec<String> {
        if !self.namespaces.is_complete() || !self.maps.is_complete() {
            return Vec::new();
        }
        let wanted = self.own.wanted();
        let current = |name: &&String| self.maps.values().get(*name) == Some(&wanted);
        let due: Vec<String> =
            self.namespaces.values().keys().filter(|name| !current(name)).cloned().collect();
        let settled = if due.is_empty() { wanted } else { !wanted };
        self.own.settled.store(settled, Ordering::Relaxed);
        due
    }
}

impl Reconciler for Observed<'_> {
    type Observation = Observation;

    fn watches(&self) -> BoxStream<'static, Observation> {
        let namespaces: Api<Namespace> = Api::all(self.own.client.clone());
        let maps: Api<ConfigMap> = Api::all(self.own.client.clone());
        let namespaces = leno_kube::watch(namespaces, WatchSelection::default());
        // The watch selects by name, because the right to read ConfigMaps is limited to this name.
        let maps = leno_kube::watch(maps, WatchSelection::named(CONFIG_MAP));
        let objects =
            stream::select(namespaces.map(Observation::Namespace), maps.map(Observation::Map));
        stream::select(objects, changes(&self.own.authority).map(|()| Observation::Roots)).boxed()
    }

    fn observe(&mut self, observation: Observation) {
        let failed = match observation {
            Observation::Namespace(WatchReport::Event(event)) => {
                return self.namespaces.take(event, |one| {
                    let ending = one.metadata.deletion_timestamp.is_some();
                    (one.metadata.name.unwrap_or_default(), (!ending).then_some(()))
                });
            }
            Observation::Map(WatchReport::Event(event)) => {
                return self.maps.take(event, |one| {
                    let pem = one.data.as_ref().and_then(|data| data.get(KEY));
                    let hash = pem.map(|pem| self.own.hashes.hash_one(pem.as_str()));
                    (one.metadata.namespace.unwrap_or_default(), hash)
                });
            }
            Observation::Namespace(WatchReport::Failed(error))
            | Observation::Map(WatchReport::Failed(error)) => error,
            Observation::Namespace(WatchReport::Resumed)
            | Observation::Map(WatchReport::Resumed)
            | Observation::Roots => return,
        };
        let error: &dyn std::error::Error = &failed;
        tracing::warn!(error, "cannot watch the ConfigMaps of roots; retrying");
    }

    fn is_due(&self) -> bool {
        !self.due().is_empty()
    }

    async fn reconcile(&mut self) -> bool {
        let round: Vec<String> = self.due().into_iter().take(A_ROUND).collect();
        let writes = round.into_iter().map(|namespace| self.own.write(namespace));
        let written: Vec<_> = stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
        let all = written.iter().all(Option::is_some);
        for (namespace, hash) in written.into_iter().flatten() {
            self.maps.insert(namespace, hash);
        }
        all
    }
}

/// Yields an item for each change of the authority.
pub(crate) fn changes(authority: &Authority) -> BoxStream<'static, ()> {
    stream::unfold(authority.changes(), |mut changes| async move {
        // The sender is only dropped when the process ends.
        changes.changed().await.ok().map(|()| ((), changes))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use leno_identity::AuthorityState;
    use leno_kube::Event;
    use leno_types::TrustDomain;

    use super::*;

    #[tokio::test]
    async fn a_list_that_begins_again_makes_nothing_due_before_its_end() {
        let client = leno_kube::connect_to("http://127.0.0.1:1".parse().unwrap()).unwrap();
        let authority = Arc::new(Authority::ephemeral(&TrustDomain::default()).unwrap());
        let roots = authority.trust().roots_pem().to_owned();
        let own = RootsReconciler::new(client, authority);
        let mut observed = Observed::new(&own);
        let map = ConfigMap {
            metadata: ObjectMeta { namespace: Some("shop".to_owned()), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([(KEY.to_owned(), roots)])),
            ..ConfigMap::default()
        };
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some("shop".to_owned()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        let mut list = |again: bool| {
            let mut take = |observation| {
                observed.observe(observation);
                observed.due()
            };
            let map_event = |event| Observation::Map(WatchReport::Event(event));
            let namespace_event = |event| Observation::Namespace(WatchReport::Event(event));
            take(namespace_event(Event::Init));
            take(namespace_event(Event::InitApply(namespace.clone())));
            take(namespace_event(Event::InitDone));
            assert_eq!(take(map_event(Event::Init)), [""; 0], "the maps are being listed");
            if again {
                take(map_event(Event::InitApply(map.clone())));
            }
            take(map_event(Event::InitDone))
        };
        assert_eq!(list(true), [""; 0]);
        assert_eq!(list(true), [""; 0]);
        assert!(own.is_settled(), "all have the roots");
        assert_eq!(list(false), ["shop"]);
        assert!(!own.is_settled(), "a namespace lacks them");
        let state =
            AuthorityState::stable(Authority::new_root(&TrustDomain::default()).unwrap(), 1);
        own.authority.apply(std::path::Path::new("test"), state).unwrap();
        assert!(!own.is_settled(), "there are other roots");
    }
}
