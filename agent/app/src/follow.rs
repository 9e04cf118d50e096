//! Follows the pods of the node with the API server.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod as Object};
use leno_kube::{Api, Client, Event, Reflection, WatchReport, WatchSelection, watch};
use tokio::sync::{mpsc, watch as tokio_watch};

use crate::metrics::{Metrics, lock};
use crate::pod::{NamespaceSettings, Pod};

/// The longest wait after a failed watch, without the random addition. It is long because the agents of all nodes
/// use one API server, and because the CNI plugin reports pods that start in the meantime.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// Most pods that are cached. A kubelet runs 110 by default, and a thousand at most.
const MAX_PODS: usize = 4096;
/// Longest wait for the API server when the CNI plugin reports a pod that is not cached yet.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// A namespace, and a name in it.
type Key = (String, String);

/// The pods of the node that the agent has cached.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    cached: Mutex<Reflection<Key, Pod>>,
    /// The namespaces with settings for their pods.
    namespaces: Mutex<Reflection<String, NamespaceSettings>>,
    /// Whether all namespaces were listed once.
    listed: tokio_watch::Sender<bool>,
}

impl Pods {
    /// All cached pods.
    pub(crate) fn all(&self) -> Vec<Pod> {
        let pods: Vec<Pod> = lock(&self.cached).values().values().cloned().collect();
        pods.into_iter().map(|pod| self.within(pod)).collect()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<Pod> {
        let key = (namespace.to_owned(), name.to_owned());
        let found = lock(&self.cached).values().get(&key).cloned();
        found.map(|pod| self.within(pod))
    }

    /// The pod, with the settings of its namespace applied.
    fn within(&self, pod: Pod) -> Pod {
        let namespaces = lock(&self.namespaces);
        let namespace = namespaces.values().get(&pod.namespace);
        pod.within(namespace)
    }

    /// Writes the names of the namespaces in node mode to a file, unless the file already has these names.
    fn note(&self, file: &Path) -> io::Result<()> {
        let text: String = {
            let namespaces = lock(&self.namespaces);
            let in_node_mode = namespaces.values().iter().filter(|(_, own)| own.is_node());
            in_node_mode.map(|(name, _)| format!("{name}\n")).collect()
        };
        if fs::read_to_string(file).is_ok_and(|noted| noted == text) {
            return Ok(());
        }
        let fresh = file.with_extension("new");
        fs::write(&fresh, text)?;
        fs::rename(fresh, file)
    }

    /// Applies an event of the watch.
    pub(crate) fn take(&self, event: Event<Pod>) {
        let mut cached = lock(&self.cached);
        if let Event::InitApply(pod) | Event::Apply(pod) = &event
            && !has_place(cached.values(), pod)
        {
            let (namespace, name) = (&pod.namespace, &pod.name);
            tracing::error!(pod = format!("{namespace}/{name}"), "not cached: too many pods");
            return;
        }
        cached.take(event, |pod| ((pod.namespace.clone(), pod.name.clone()), Some(pod)));
    }
}

fn has_place(cached: &BTreeMap<Key, Pod>, pod: &Pod) -> bool {
    cached.len() < MAX_PODS || cached.contains_key(&(pod.namespace.clone(), pod.name.clone()))
}

/// One change that the API server reported.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PodChange {
    /// A pod that is new or may have changed.
    Pod(Box<Pod>),
    /// All pods of the node were listed once.
    Listed,
}

/// The API server, as a source of pods.
#[derive(Clone)]
pub(crate) struct PodSource {
    pub(crate) client: Client,
    pub(crate) node: String,
    pub(crate) pods: Arc<Pods>,
    pub(crate) metrics: Arc<Metrics>,
}

impl PodSource {
    /// Finds a pod that is being started, in the cache or else with the API server. `None` if there is no such
    /// pod.
    ///
    /// # Errors
    /// When the API server does not answer in time.
    pub(crate) async fn pod(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<Option<Pod>, String> {
        let mut listed = self.pods.listed.subscribe();
        let waited = tokio::time::timeout(ASK_LIMIT, listed.wait_for(|listed| *listed)).await;
        // The inner result is never an error, because `self.pods` holds the sender.
        if !waited.is_ok_and(|waited| waited.is_ok()) {
            return Err(format!("the namespaces have not been listed for {ASK_LIMIT:?}"));
        }
        // Pods of a StatefulSet reuse names. A different uid means that it is another pod.
        if let Some(pod) = self.pods.find(namespace, name)
            && uid.is_none_or(|uid| uid == pod.uid)
        {
            return Ok(Some(pod));
        }
        let api = Api::<Object>::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(ASK_LIMIT, api.get_opt(name)).await {
            Ok(Ok(found)) => Ok(found.as_ref().map(|object| self.pods.within(Pod::new(object)))),
            Ok(Err(error)) => Err(leno_program::chain(&error)),
            Err(_late) => Err(format!("the API server has not answered for {ASK_LIMIT:?}")),
        }
    }

    /// Watches the namespaces until the receiver is dropped. When a namespace changes, its pods are sent to
    /// `changed`. The names of the namespaces in node mode are written to the file `note` for the CNI plugin.
    pub(crate) async fn follow_namespaces(self, changed: mpsc::Sender<PodChange>, note: PathBuf) {
        let selection = WatchSelection { longest_wait: LONGEST_WAIT, ..WatchSelection::default() };
        let mut reports = pin!(watch(Api::<Namespace>::all(self.client.clone()), selection));
        while let Some(report) = reports.next().await {
            let event = match report {
                WatchReport::Event(event) => event,
                WatchReport::Resumed => continue,
                WatchReport::Failed(error) => {
                    let error = leno_program::chain(&error);
                    tracing::warn!(error, "namespaces cannot be followed; tried again");
                    continue;
                }
            };
            let (name, listed) = match &event {
                Event::Apply(object) => (object.metadata.name.clone(), false),
                event => (None, matches!(event, Event::InitDone)),
            };
            lock(&self.pods.namespaces).take(event, |object| {
                let settings = NamespaceSettings::new(&object.metadata);
                (object.metadata.name.unwrap_or_default(), settings)
            });
            if listed {
                self.pods.listed.send_replace(true);
            }
            if *self.pods.listed.borrow()
                && let Err(error) = self.pods.note(&note)
            {
                tracing::warn!(%error, file = %note.display(), "cannot be written");
            }
            if name.is_none() && !listed {
                continue;
            }
            let concerns = |pod: &Pod| name.as_ref().is_none_or(|name| *name == pod.namespace);
            let pods = self.pods.all().into_iter().filter(concerns);
            for change in pods.filter_map(changes) {
                if changed.send(change).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Watches the node's pods until the receiver is dropped. Sends each meshed pod of an event. A full channel
    /// delays the watch.
    pub(crate) async fn follow(self, changed: mpsc::Sender<PodChange>) {
        let fields = format!("spec.nodeName={}", self.node);
        let selection =
            WatchSelection { fields, longest_wait: LONGEST_WAIT, ..WatchSelection::default() };
        let mut reports = pin!(watch(Api::<Object>::all(self.client.clone()), selection));
        while let Some(report) = reports.next().await {
            match report {
                WatchReport::Event(event) => {
                    if !self.take(event, &changed).await {
                        return;
                    }
                }
                WatchReport::Resumed => self.metrics.followed.store(true, Ordering::Relaxed),
                WatchReport::Failed(error) => {
                    self.metrics.followed.store(false, Ordering::Relaxed);
                    self.metrics.watch_failures.fetch_add(1, Ordering::Relaxed);
                    let error = leno_program::chain(&error);
                    tracing::warn!(error, "pods cannot be followed; tried again");
                }
            }
        }
    }

    /// Applies one event. Returns false if the receiver was dropped.
    async fn take(&self, event: Event<Object>, changed: &mpsc::Sender<PodChange>) -> bool {
        let (event, change) = match event {
            Event::Init => (Event::Init, None),
            Event::InitApply(object) => {
                let pod = Pod::new(&object);
                (Event::InitApply(pod.clone()), changes(self.pods.within(pod)))
            }
            Event::InitDone => (Event::InitDone, Some(PodChange::Listed)),
            Event::Apply(object) => {
                let pod = Pod::new(&object);
                (Event::Apply(pod.clone()), changes(self.pods.within(pod)))
            }
            Event::Delete(object) => (Event::Delete(Pod::new(&object)), None),
        };
        if !matches!(event, Event::Init | Event::InitApply(_)) {
            self.metrics.followed.store(true, Ordering::Relaxed);
        }
        self.pods.take(event);
        match change {
            Some(change) => changed.send(change).await.is_ok(),
            None => !changed.is_closed(),
        }
    }
}

/// The change to send for a pod, if any. Every event of a meshed pod is sent, even if no cached field differs,
/// because the pod's processes may have started since.
fn changes(pod: Pod) -> Option<PodChange> {
    pod.meshed.then(|| PodChange::Pod(Box::new(pod)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, uid: &str) -> Pod {
        let text = format!(r#"{{"metadata":{{"name":"{name}","namespace":"n","uid":"{uid}"}}}}"#);
        Pod::new(&serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn no_more_pods_are_kept_than_the_bound() {
        let pods = Pods::default();
        for number in 0..=MAX_PODS {
            pods.take(Event::Apply(pod(&format!("p{number}"), "u")));
        }
        assert_eq!(pods.all().len(), MAX_PODS);
        pods.take(Event::Apply(pod("p0", "another")));
        assert_eq!(pods.find("n", "p0").unwrap().uid, "another", "a cached pod is still replaced");
    }

    #[tokio::test]
    async fn listed_is_sent_after_all_pods() {
        let cluster = PodSource {
            client: leno_kube::connect_to("http://127.0.0.1:1".parse().unwrap()).unwrap(),
            node: "n1".to_owned(),
            pods: Arc::default(),
            metrics: Arc::default(),
        };
        let object: Object = serde_json::from_str(
            r#"{"metadata":{"name":"web","namespace":"n","uid":"u"},
                "spec":{"containers":[{"name":"leno-proxy"}]}}"#,
        )
        .unwrap();
        let (sender, mut changed) = mpsc::channel(2);
        for event in [Event::Init, Event::InitApply(object.clone()), Event::InitDone] {
            assert!(cluster.take(event, &sender).await);
        }
        assert_eq!(changed.recv().await, Some(PodChange::Pod(Box::new(Pod::new(&object)))));
        assert_eq!(changed.recv().await, Some(PodChange::Listed));
    }
}
