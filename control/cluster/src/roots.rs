//! What proxies check the control plane by, in every namespace, kept while this replica leads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use leno_kube::{Api, Client, Event, Reflection, Report, Selection, apply, is_status, watch};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::counts;

/// The ConfigMap's name, in every namespace.
pub const CONFIG_MAP: &str = "leno-roots";
/// Its field.
const KEY: &str = "roots.pem";
/// Whose its field is, for the API server.
const FIELD_MANAGER: &str = "leno-controller";
/// Writes at once.
const AT_ONCE: usize = 8;
/// Most writes of one round, over all namespaces: if another client keeps changing them, this
/// is how fast they are changed back.
const A_ROUND: usize = 100;
/// Longest wait for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(5);
/// From one round of writes to the next.
const PAUSE: Duration = Duration::from_secs(1);
/// How long changes are gathered: a namespace and what is in it come at once.
const GATHER: Duration = Duration::from_millis(20);

/// Keeps the roots in a ConfigMap of every namespace.
pub struct Roots {
    client: Client,
    roots_pem: String,
    written: AtomicU64,
    failed: AtomicU64,
}

/// The namespaces and their ConfigMaps.
#[derive(Debug, Default)]
struct Observed {
    /// By name; one that is being deleted is left out, since it takes no new object.
    namespaces: Reflection<String, ()>,
    /// By namespace, whether the ConfigMap has the roots.
    maps: Reflection<String, bool>,
}

/// A report of one of the two watches.
enum Observation {
    Namespace(Report<Namespace>),
    Map(Report<ConfigMap>),
}

impl Roots {
    /// Of these roots, in PEM.
    #[must_use]
    pub fn new(client: Client, roots_pem: &str) -> Self {
        let (written, failed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { client, roots_pem: roots_pem.to_owned(), written, failed }
    }

    /// Watches, and writes while `leads` says so, until its sender ends. Watches that fail are tried
    /// again for ever.
    pub async fn run(&self, mut leads: watch::Receiver<bool>) {
        while leads.wait_for(|leads| *leads).await.is_ok() {
            tokio::select! {
                () = self.keep() => {}
                ended = leads.wait_for(|leads| !*leads) => if ended.is_err() { return },
            }
        }
    }

    /// Appends what was counted, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "ConfigMaps of roots written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("roots_writes_total", help), &results);
    }

    async fn keep(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let maps: Api<ConfigMap> = Api::all(self.client.clone());
        // By name, which is also what the right to it is given by.
        let maps = watch(maps, Selection::named(CONFIG_MAP));
        let namespaces = watch(namespaces, Selection::default());
        let mut observations = stream::select(
            namespaces.map(Observation::Namespace).boxed(),
            maps.map(Observation::Map).boxed(),
        );
        let mut observed = Observed::default();
        let (mut earliest, mut due) = (Instant::now(), None);
        loop {
            tokio::select! {
                observation = observations.next() => match observation {
                    Some(observation) => observed.take(observation, &self.roots_pem),
                    None => return,
                },
                () = sleep_until(due.unwrap_or(earliest)), if due.is_some() => {
                    due = None;
                    earliest = Instant::now() + PAUSE;
                    self.write_all(&mut observed).await;
                }
            }
            if due.is_none() && !observed.due().is_empty() {
                due = Some(earliest.max(Instant::now() + GATHER));
            }
        }
    }

    async fn write_all(&self, observed: &mut Observed) {
        let round: Vec<String> = observed.due().into_iter().take(A_ROUND).collect();
        let writes = round.into_iter().map(|namespace| self.write(namespace));
        let written: Vec<_> = stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
        for namespace in written.into_iter().flatten() {
            observed.maps.insert(namespace, true);
        }
    }

    /// The namespace, where it has the roots now.
    async fn write(&self, namespace: String) -> Option<String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &namespace);
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": CONFIG_MAP, "labels": {"app.kubernetes.io/part-of": "leno"}},
            "data": {KEY: self.roots_pem},
        });
        // Applied, it is made where there is none, by the right to this name alone.
        let written = apply(&maps, FIELD_MANAGER, CONFIG_MAP, &map);
        let failure = match timeout(ANSWER, written).await {
            Ok(Ok(_)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                return Some(namespace);
            }
            // It ends, or is gone: the watch tells of it.
            Ok(Err(error)) if is_status(&error, 404) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(namespace, failure, "the roots cannot be written; trying again");
        None
    }
}

impl Observed {
    fn take(&mut self, observation: Observation, roots_pem: &str) {
        let failed = match observation {
            Observation::Namespace(Report::Event(event)) => {
                return self.namespaces.take(event, |one| {
                    let ending = one.metadata.deletion_timestamp.is_some();
                    (one.metadata.name.unwrap_or_default(), (!ending).then_some(()))
                });
            }
            Observation::Map(Report::Event(event)) => {
                return self.maps.take(event, |one| {
                    let pem = one.data.as_ref().and_then(|data| data.get(KEY));
                    let current = pem.is_some_and(|pem| pem == roots_pem);
                    (one.metadata.namespace.unwrap_or_default(), Some(current))
                });
            }
            Observation::Namespace(Report::Failed(error))
            | Observation::Map(Report::Failed(error)) => error,
            Observation::Namespace(Report::Resumed) | Observation::Map(Report::Resumed) => return,
        };
        let error: &dyn std::error::Error = &failed;
        tracing::warn!(error, "the ConfigMaps of roots cannot be followed; trying again");
    }

    /// The namespaces without the roots, once both are listed.
    fn due(&self) -> Vec<String> {
        if !self.namespaces.is_complete() || !self.maps.is_complete() {
            return Vec::new();
        }
        let current = |name: &&String| self.maps.values().get(*name) == Some(&true);
        self.namespaces.values().keys().filter(|name| !current(name)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    #[test]
    fn a_list_that_begins_again_makes_nothing_due_before_its_end() {
        let mut observed = Observed::default();
        let map = ConfigMap {
            metadata: ObjectMeta { namespace: Some("shop".to_owned()), ..ObjectMeta::default() },
            data: Some(BTreeMap::from([(KEY.to_owned(), "roots".to_owned())])),
            ..ConfigMap::default()
        };
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some("shop".to_owned()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        let mut list = |again: bool| {
            let mut take = |observation| {
                observed.take(observation, "roots");
                observed.due()
            };
            let map_event = |event| Observation::Map(Report::Event(event));
            let namespace_event = |event| Observation::Namespace(Report::Event(event));
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
        assert_eq!(list(false), ["shop"]);
    }
}
