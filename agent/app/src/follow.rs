//! The pods of the node, as the API server tells of them.

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

/// Wait after a watch has failed: an API server that is back is noticed that soon.
const PAUSE: Duration = Duration::from_secs(1);
/// Most pods that are kept; a kubelet runs 110 unless told otherwise, and a thousand at the most.
const MAX_PODS: usize = 4096;
/// Longest wait for the API server where a pod that is being started is not known yet.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// What is known.
#[derive(Debug, Default)]
pub(crate) struct Pods {
    known: Mutex<HashMap<(String, String), Pod>>,
}

impl Pods {
    /// All that are known.
    pub(crate) fn all(&self) -> Vec<Pod> {
        lock(&self.known).values().cloned().collect()
    }

    fn find(&self, namespace: &str, name: &str) -> Option<Pod> {
        lock(&self.known).get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// Whether it is another than was known.
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

/// What the API server tells of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A pod that is new or different, or that may be.
    Pod(Box<Pod>),
    /// All pods of the node were told of.
    Listed,
}

/// The cluster, asked for pods.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) node: String,
    pub(crate) pods: Arc<Pods>,
    pub(crate) metrics: Arc<Metrics>,
}

impl Cluster {
    /// A pod that is being started: as it is known, else as the API server has it. None where there is
    /// no such pod.
    ///
    /// # Errors
    /// When the API server does not answer in time.
    pub(crate) async fn pod(
        &self,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
    ) -> Result<Option<Pod>, String> {
        // A pod of a StatefulSet has its name again and again; another uid is another pod.
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

    /// Follows until nobody listens. Each pod that is new or different is told of; a full channel waits.
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

    /// Whether somebody listens.
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
        // Told of also where nothing differs that is kept here: its processes may be there now.
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
