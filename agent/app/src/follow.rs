//! The pods of the node, as the API server reports them.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::Pod as Object;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::mpsc;

use crate::metrics::{Metrics, lock};
use crate::pod::Pod;

/// Wait after a failed watch: this long after the API server is back, the agent notices.
const PAUSE: Duration = Duration::from_secs(1);
/// Most pods that are kept. A kubelet runs 110 unless configured otherwise, and a thousand at most.
const MAX_PODS: usize = 4096;
/// Longest wait for the API server when the CNI plugin reports a pod that is not cached yet.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// The pods of the node that the agent has cached.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    known: Mutex<HashMap<(String, String), Pod>>,
}

impl Pods {
    /// All cached pods.
    pub(crate) fn all(&self) -> Vec<Pod> {
        lock(&self.known).values().cloned().collect()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<Pod> {
        lock(&self.known).get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Adds or replaces a pod; whether it is new or differs from the cached one.
    pub(crate) fn put(&self, pod: Pod) -> bool {
        let mut known = lock(&self.known);
        let key = (pod.namespace.clone(), pod.name.clone());
        if known.len() >= MAX_PODS && !known.contains_key(&key) {
            tracing::error!(pod = format!("{}/{}", key.0, key.1), "more pods than are followed");
            return false;
        }
        known.insert(key, pod.clone()).as_ref() != Some(&pod)
    }

    fn remove(&self, pod: &Pod) {
        lock(&self.known).remove(&(pod.namespace.clone(), pod.name.clone()));
    }
}

/// One change that the API server reported.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A pod that is new, or that may have changed.
    Pod(Box<Pod>),
    /// The watch has sent all pods of the node once.
    Listed,
}

/// The API server, as a source of pods.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) node: String,
    pub(crate) pods: Arc<Pods>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Cluster {
    /// A pod that is being started: the cached one, else the one that the API server returns.
    /// `None` if there is no such pod.
    ///
    /// # Errors
    /// When the API server does not answer in time.
    pub(crate) async fn pod(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<Option<Pod>, String> {
        // Pods of a StatefulSet reuse their names; another uid means another pod.
        if let Some(pod) = self.pods.find(namespace, name)
            && uid.is_none_or(|uid| uid == pod.uid)
        {
            return Ok(Some(pod));
        }
        let api = Api::<Object>::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(ASK_LIMIT, api.get_opt(name)).await {
            Ok(Ok(found)) => Ok(found.as_ref().map(Pod::new)),
            Ok(Err(error)) => Err(crate::keeper::chain(&error)),
            Err(_late) => Err(format!("the API server has not answered for {ASK_LIMIT:?}")),
        }
    }

    /// Follows the node's pods until the receiver is dropped. Each pod that is new or different is
    /// sent; a full channel delays the watch.
    pub(crate) async fn follow(self, changed: mpsc::Sender<Change>) {
        let api = Api::<Object>::all(self.client.clone());
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.node));
        while !changed.is_closed() {
            let mut events = pin!(watcher::watcher(api.clone(), config.clone()));
            let mut listed = Vec::new();
            loop {
                match events.try_next().await {
                    Ok(Some(event)) => {
                        if !self.take(event, &mut listed, &changed).await {
                            return;
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        self.metrics.followed.store(false, Ordering::Relaxed);
                        self.metrics.watch_failures.fetch_add(1, Ordering::Relaxed);
                        let error = crate::keeper::chain(&error);
                        tracing::warn!(error, "pods cannot be followed; tried again");
                        break;
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Applies one event; false once the receiver is dropped.
    async fn take(
        &self,
        event: Event<Object>,
        listed: &mut Vec<(String, String)>,
        changed: &mpsc::Sender<Change>,
    ) -> bool {
        let pod = match event {
            Event::Init => {
                listed.clear();
                return true;
            }
            Event::InitApply(object) => {
                let pod = Pod::new(&object);
                listed.push((pod.namespace.clone(), pod.name.clone()));
                pod
            }
            Event::InitDone => {
                lock(&self.pods.known).retain(|key, _| listed.contains(key));
                self.metrics.followed.store(true, Ordering::Relaxed);
                return changed.send(Change::Listed).await.is_ok();
            }
            Event::Apply(object) => Pod::new(&object),
            Event::Delete(object) => {
                self.pods.remove(&Pod::new(&object));
                return true;
            }
        };
        self.pods.put(pod.clone());
        // Sent even if no field that is kept here differs: its processes may have started since.
        !pod.meshed || changed.send(Change::Pod(Box::new(pod))).await.is_ok()
    }
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
            pods.put(pod(&format!("p{number}"), "u"));
        }
        assert_eq!(pods.all().len(), MAX_PODS);
        assert!(pods.put(pod("p0", "another")), "one that is known is still replaced");
        assert_eq!(pods.find("n", "p0").unwrap().uid, "another");
        assert!(!pods.put(pod("p0", "another")));
    }

    #[tokio::test]
    async fn that_all_pods_were_told_of_comes_after_all_of_them() {
        let nowhere = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let cluster = Cluster {
            client: Client::try_from(nowhere).unwrap(),
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
        let mut listed = Vec::new();
        for event in [Event::Init, Event::InitApply(object.clone()), Event::InitDone] {
            assert!(cluster.take(event, &mut listed, &sender).await);
        }
        assert_eq!(changed.recv().await, Some(Change::Pod(Box::new(Pod::new(&object)))));
        assert_eq!(changed.recv().await, Some(Change::Listed));
    }
}
