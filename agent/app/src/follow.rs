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
use tokio::time::{Instant, timeout_at};

use crate::metrics::{Metrics, lock};
use crate::pod::{NamespaceSettings, Pod};

/// The longest wait after a failed watch, without the random addition. It is long because the agents of all nodes
/// use one API server, and because the CNI plugin reports pods that start in the meantime.
const LONGEST_WAIT: Duration = Duration::from_secs(15);
/// Most pods that are cached. A kubelet runs 110 by default, and a thousand at most.
const MAX_PODS: usize = 4096;
/// Longest wait for the API server when the CNI plugin reports a pod that is not cached yet, or whose namespace is not.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// A namespace, and a name in it.
type Key = (String, String);

/// The pods of the node that the agent has cached.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    cached: Mutex<Reflection<Key, Pod>>,
    /// All namespaces with their settings for pods, `None` for those that set nothing.
    namespaces: tokio_watch::Sender<Reflection<String, Option<Box<NamespaceSettings>>>>,
}

impl Pods {
    /// All cached pods.
    pub(crate) fn all(&self) -> Vec<Pod> {
        let pods: Vec<Pod> = lock(&self.cached).values().values().cloned().collect();
        pods.into_iter().map(|pod| self.within(pod)).collect()
    }

    /// Waits until the namespaces were listed, without which the settings of pods are not known.
    pub(crate) async fn until_known(&self) {
        let mut namespaces = self.namespaces.subscribe();
        // Never an error, because `self` holds the sender.
        let _listed = namespaces.wait_for(Reflection::is_complete).await.is_ok();
    }

    /// The cached pod with this name, without the settings of its namespace.
    fn find(&self, namespace: &str, name: &str) -> Option<Pod> {
        let key = (namespace.to_owned(), name.to_owned());
        lock(&self.cached).values().get(&key).cloned()
    }

    /// The pod, with the settings of its namespace applied. While its namespace is not cached, a pod without a sidecar counts
    /// as unmeshed. Captured with the defaults, it would keep them, and datagrams that its namespace wants encrypted would be
    /// sent in plaintext. When a namespace is reported, its pods are sent again.
    fn within(&self, pod: Pod) -> Pod {
        match self.namespaces.borrow().values().get(&pod.namespace) {
            Some(settings) => pod.within(settings.as_deref()),
            None => pod,
        }
    }

    /// Applies an event of the watch of namespaces.
    fn take_namespace(&self, event: Event<Namespace>) {
        self.namespaces.send_modify(|namespaces| {
            namespaces.take(event, |object| {
                let settings = NamespaceSettings::new(&object.metadata).map(Box::new);
                (object.metadata.name.unwrap_or_default(), Some(settings))
            });
        });
    }

    /// Writes the names of the namespaces whose pods must not start without the agent to a file, unless the file already has
    /// these names.
    fn note(&self, file: &Path) -> io::Result<()> {
        let text: String = {
            let namespaces = self.namespaces.borrow();
            let needs = |own: &NamespaceSettings| own.needs_agent();
            let all = namespaces.values().iter();
            let noted = all.filter(|(_, own)| own.as_deref().is_some_and(needs));
            noted.map(|(name, _)| format!("{name}\n")).collect()
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
    /// Finds a pod that is being started, in the cache or else with the API server, and applies the settings of its
    /// namespace. `None` if there is no such pod.
    ///
    /// # Errors
    /// When the API server does not answer in time, or the namespace of a pod without a sidecar is not known in time.
    pub(crate) async fn pod(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<Option<Pod>, String> {
        let deadline = Instant::now() + ASK_LIMIT;
        // Pods of a StatefulSet reuse names. A different uid means that it is another pod.
        let cached = self.pods.find(namespace, name);
        let cached = cached.filter(|pod| uid.is_none_or(|uid| uid == pod.uid));
        let pod = match cached {
            Some(pod) => pod,
            None => {
                let api = Api::<Object>::namespaced(self.client.clone(), namespace);
                match timeout_at(deadline, api.get_opt(name)).await {
                    Ok(Ok(Some(object))) => Pod::new(&object),
                    Ok(Ok(None)) => return Ok(None),
                    Ok(Err(error)) => return Err(leno_program::chain(&error)),
                    Err(_late) => {
                        return Err(format!("the API server has not answered for {ASK_LIMIT:?}"));
                    }
                }
            }
        };
        if pod.mode.is_some() {
            let mut namespaces = self.pods.namespaces.subscribe();
            let is_cached = namespaces.wait_for(|all| all.values().contains_key(namespace));
            // The inner result is never an error, because `self.pods` holds the sender.
            if !timeout_at(deadline, is_cached).await.is_ok_and(|cached| cached.is_ok()) {
                return Err(format!(
                    "the settings of its namespace are not known after {ASK_LIMIT:?}"
                ));
            }
        }
        Ok(Some(self.pods.within(pod)))
    }

    /// Watches the namespaces until the receiver is dropped. When a namespace changes, its pods are sent to
    /// `changed`. The names of those whose pods must not start without the agent are written to the file `note` for the CNI plugin.
    pub(crate) async fn follow_namespaces(self, changed: mpsc::Sender<PodChange>, note: PathBuf) {
        let selection = WatchSelection { longest_wait: LONGEST_WAIT, ..WatchSelection::default() };
        let mut reports = pin!(watch(Api::<Namespace>::all(self.client.clone()), selection));
        while let Some(report) = reports.next().await {
            let event = match report {
                WatchReport::Event(event) => event,
                WatchReport::Resumed => continue,
                WatchReport::Failed(error) => {
                    let error = leno_program::chain(&error);
                    tracing::warn!(error, "cannot watch namespaces; retrying");
                    continue;
                }
            };
            let (name, listed) = match &event {
                Event::Apply(object) => (object.metadata.name.clone(), false),
                event => (None, matches!(event, Event::InitDone)),
            };
            self.pods.take_namespace(event);
            let is_complete = self.pods.namespaces.borrow().is_complete();
            if is_complete && let Err(error) = self.pods.note(&note) {
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
    /// delays the watch. The watch begins when the namespaces are listed, so that all pods of its list are sent with the
    /// settings of their namespaces before [`PodChange::Listed`].
    pub(crate) async fn follow(self, changed: mpsc::Sender<PodChange>) {
        self.pods.until_known().await;
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
                    tracing::warn!(error, "cannot watch pods; retrying");
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

    fn namespace(name: &str, annotations: &str) -> Namespace {
        let text = format!(r#"{{"metadata":{{"name":"{name}","annotations":{{{annotations}}}}}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    /// A pod that is in node mode by its own label and annotation.
    fn pod_in_node_mode() -> Pod {
        let text = r#"{"metadata":{"name":"web","namespace":"n","uid":"u","labels":{"leno.dev/inject":"enabled"},
            "annotations":{"leno.dev/mode":"node"}},"spec":{"containers":[{"name":"web"}]}}"#;
        Pod::new(&serde_json::from_str(text).unwrap())
    }

    const SETTINGS: &str =
        r#""leno.dev/udp":"enabled","leno.dev/capture":"ebpf","leno.dev/share":"workload""#;

    /// Regression: it was captured with the defaults, without datagrams, and kept that.
    #[test]
    fn a_pod_in_node_mode_is_unmeshed_until_the_settings_of_its_namespace_are_known() {
        let pods = Pods::default();
        pods.take(Event::Apply(pod_in_node_mode()));
        let own = || pods.all().remove(0);
        assert!(!own().meshed && changes(own()).is_none());
        // The namespace was created after the list.
        for event in [Event::Init, Event::InitApply(namespace("other", "")), Event::InitDone] {
            pods.take_namespace(event);
        }
        assert!(!own().meshed);
        pods.take_namespace(Event::Apply(namespace("n", SETTINGS)));
        let known = own();
        assert!(known.meshed);
        assert_eq!(known.group.as_deref(), Some("workload.n.web"));
        assert_eq!(known.datagrams, Some(Ok(leno_types::Datagrams::Enabled)));
        assert!(known.capture.is_some());
        // While the list is repeated, the namespaces of before are still known.
        pods.take_namespace(Event::Init);
        assert_eq!(own(), known);
        pods.take_namespace(Event::InitApply(namespace("n", "")));
        pods.take_namespace(Event::InitDone);
        assert!(own().meshed && own().datagrams.is_none(), "the namespace sets nothing now");
    }

    #[test]
    fn pods_of_namespaces_that_ask_for_a_capture_need_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("note");
        let pods = Pods::default();
        for (name, annotations) in [
            ("all", r#""leno.dev/udp":"all""#),
            ("ebpf", r#""leno.dev/capture":"ebpf""#),
            ("misspelt", r#""leno.dev/udp":"al""#),
            ("node", r#""leno.dev/mode":"node""#),
            ("off", r#""leno.dev/udp":"off","leno.dev/share":"node""#),
            ("plain", ""),
        ] {
            let mut namespace = namespace(name, annotations);
            let labels = [("leno.dev/inject".to_owned(), "enabled".to_owned())];
            namespace.metadata.labels = (name == "node").then(|| labels.into());
            pods.take_namespace(Event::Apply(namespace));
        }
        pods.note(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "all\nebpf\nmisspelt\nnode\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_starting_pod_waits_for_the_settings_of_its_namespace() {
        let cluster = crate::run::tests::cluster();
        cluster.pods.take(Event::Apply(pod_in_node_mode()));
        let ask = async || cluster.pod("n", "web", Some("u")).await;
        assert!(ask().await.unwrap_err().contains("the settings of its namespace are not known"));
        let (starts, ()) = tokio::join!(ask(), async {
            tokio::time::sleep(ASK_LIMIT / 2).await;
            cluster.pods.take_namespace(Event::Apply(namespace("n", SETTINGS)));
        });
        let pod = starts.unwrap().unwrap();
        assert_eq!(pod.datagrams, Some(Ok(leno_types::Datagrams::Enabled)));
    }

    #[tokio::test]
    async fn listed_is_sent_after_all_pods() {
        let cluster = crate::run::tests::cluster();
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
