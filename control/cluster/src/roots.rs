//! What proxies check the control plane by, in every namespace, kept while this replica leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
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
/// Most writes of one round, over all namespaces: where somebody else keeps changing them, so do we, and
/// no faster than this.
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

/// What is there.
#[derive(Debug, Default)]
struct Found {
    namespaces: BTreeSet<String>,
    /// By namespace, whether it says what it should.
    maps: BTreeMap<String, bool>,
    /// Both were listed.
    listed: (bool, bool),
}

/// What has changed.
enum Event {
    Namespace(watcher::Event<Namespace>),
    Map(watcher::Event<ConfigMap>),
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
        let named = watcher::Config::default().fields(&format!("metadata.name={CONFIG_MAP}"));
        let namespaces = watcher(namespaces, watcher::Config::default()).default_backoff();
        let maps = watcher(maps, named).default_backoff();
        let events = stream::select(
            namespaces.map_ok(Event::Namespace).boxed(),
            maps.map_ok(Event::Map).boxed(),
        );
        let (mut events, mut found) = (events, Found::default());
        let (mut earliest, mut due) = (Instant::now(), None);
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Ok(event)) => found.take(event, &self.roots_pem),
                    Some(Err(error)) => {
                        let error: &dyn std::error::Error = &error;
                        tracing::warn!(error, "the ConfigMaps of roots cannot be followed; trying again");
                    }
                    None => return,
                },
                () = sleep_until(due.unwrap_or(earliest)), if due.is_some() => {
                    due = None;
                    earliest = Instant::now() + PAUSE;
                    self.write_all(&mut found).await;
                }
            }
            if due.is_none() && !found.due().is_empty() {
                due = Some(earliest.max(Instant::now() + GATHER));
            }
        }
    }

    async fn write_all(&self, found: &mut Found) {
        let round: Vec<String> = found.due().into_iter().take(A_ROUND).collect();
        let writes = round.into_iter().map(|namespace| self.write(namespace));
        let written: Vec<_> = stream::iter(writes).buffer_unordered(AT_ONCE).collect().await;
        for namespace in written.into_iter().flatten() {
            found.maps.insert(namespace, true);
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
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let patch = Patch::Apply(&map);
        let failure = match timeout(ANSWER, maps.patch(CONFIG_MAP, &params, &patch)).await {
            Ok(Ok(_)) => {
                self.written.fetch_add(1, Ordering::Relaxed);
                return Some(namespace);
            }
            // It ends, or is gone: the watch tells of it.
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        self.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(namespace, failure, "the roots cannot be written; trying again");
        None
    }
}

impl Found {
    fn take(&mut self, event: Event, roots_pem: &str) {
        match event {
            Event::Namespace(event) => match event {
                watcher::Event::Init => {
                    // What is not listed yet is not missing.
                    self.listed.0 = false;
                    self.namespaces.clear();
                }
                watcher::Event::InitApply(one) | watcher::Event::Apply(one) => self.namespace(&one),
                watcher::Event::Delete(one) => {
                    let name = one.metadata.name.unwrap_or_default();
                    self.namespaces.remove(&name);
                }
                watcher::Event::InitDone => self.listed.0 = true,
            },
            Event::Map(event) => match event {
                watcher::Event::Init => {
                    self.listed.1 = false;
                    self.maps.clear();
                }
                watcher::Event::InitApply(one) | watcher::Event::Apply(one) => {
                    let said = one.data.as_ref().and_then(|data| data.get(KEY));
                    let good = said.is_some_and(|said| said == roots_pem);
                    self.maps.insert(one.metadata.namespace.unwrap_or_default(), good);
                }
                watcher::Event::Delete(one) => {
                    self.maps.remove(&one.metadata.namespace.unwrap_or_default());
                }
                watcher::Event::InitDone => self.listed.1 = true,
            },
        }
    }

    /// One that ends takes nothing new.
    fn namespace(&mut self, one: &Namespace) {
        let name = one.metadata.name.clone().unwrap_or_default();
        if one.metadata.deletion_timestamp.is_some() {
            self.namespaces.remove(&name);
        } else {
            self.namespaces.insert(name);
        }
    }

    /// The namespaces without the roots, once it is known which those are.
    fn due(&self) -> Vec<String> {
        if self.listed != (true, true) {
            return Vec::new();
        }
        let good = |name: &&String| self.maps.get(*name) == Some(&true);
        self.namespaces.iter().filter(|name| !good(name)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    #[test]
    fn a_list_that_begins_anew_makes_nothing_due() {
        let mut found = Found::default();
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
            found.take(Event::Map(watcher::Event::Init), "roots");
            assert_eq!(found.due(), [""; 0], "the maps are being listed");
            if again {
                found.take(Event::Map(watcher::Event::InitApply(map.clone())), "roots");
            }
            found.take(Event::Map(watcher::Event::InitDone), "roots");
            found.take(Event::Namespace(watcher::Event::Init), "roots");
            found.take(Event::Namespace(watcher::Event::InitApply(namespace.clone())), "roots");
            assert_eq!(found.due(), [""; 0], "the namespaces are being listed");
            found.take(Event::Namespace(watcher::Event::InitDone), "roots");
            found.due()
        };
        assert_eq!(list(true), [""; 0]);
        assert_eq!(list(true), [""; 0]);
        assert_eq!(list(false), ["shop"]);
    }
}
