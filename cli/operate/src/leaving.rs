//! Pods that have a proxy leave the mesh while they serve: step by step, each when all have taken the last.
//!
//! The control plane reads the step from an annotation of its own namespace and tells the proxies, who say
//! in `/config` which one they have taken. They are asked as by all commands, by a port-forward.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use leno_resources::REMOVAL_ANNOTATION;
use leno_sources::is_meshed;
use leno_types::Removal;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::Error;
use crate::objects::is_absent;
use crate::pods::{all, name, phase};
use crate::reach::{PodName, Reach};
use crate::removal::CONTROLLER;

/// Longest wait for all proxies to take a step: the control plane tells them within a second, and one that
/// has lost it connects again within a few.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two rounds: each lists all pods.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for the answer of one proxy.
const ANSWER: Duration = Duration::from_secs(3);
/// Proxies asked at a time, so that the API server has other things to do as well.
const AT_ONCE: usize = 32;

/// The pods of a cluster that have a proxy, on their way out of the mesh.
pub(crate) struct Leaving<'a> {
    client: &'a Client,
    /// Of the control plane.
    namespace: &'a str,
    reach: Reach,
    /// Those that have not taken a step in time: they are not waited for again.
    untold: BTreeSet<PodName>,
}

impl<'a> Leaving<'a> {
    pub(crate) fn new(client: &'a Client, namespace: &'a str) -> Self {
        Self { client, namespace, reach: Reach::new(client.clone()), untold: BTreeSet::new() }
    }

    /// Whether there is a control plane that can tell them. One that is there and not ready, as while it is
    /// replaced, is waited for.
    pub(crate) async fn can(&self) -> Result<bool, Error> {
        let all: Api<Deployment> = Api::namespaced(self.client.clone(), self.namespace);
        let begin = Instant::now();
        loop {
            let found = all.get_opt(CONTROLLER).await;
            let found = found.map_err(Error::api("get the control plane"))?;
            let Some(found) = found else { return Ok(false) };
            if found.status.is_some_and(|status| status.ready_replicas.unwrap_or_default() > 0) {
                return Ok(true);
            }
            let wanted = found.spec.and_then(|spec| spec.replicas);
            if wanted == Some(0) || begin.elapsed() > LIMIT {
                return Ok(false);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Has all pods take a step; those that do not in time, each said once. A removal that was interrupted
    /// goes on where it was: a step back would have some speak mTLS again to others without a capture.
    pub(crate) async fn take(&mut self, step: Removal) -> Result<Vec<PodName>, Error> {
        if self.said().await? < step {
            self.say(Some(step)).await?;
        }
        let begin = Instant::now();
        let mut taken = BTreeSet::new();
        loop {
            let mut left = self.pods().await?;
            left.retain(|pod| !taken.contains(pod) && !self.untold.contains(pod));
            let answers = stream::iter(&left).map(|pod| self.has_taken(pod, step));
            let answers: Vec<Result<bool, Error>> = answers.buffered(AT_ONCE).collect().await;
            let mut answers =
                answers.into_iter().collect::<Result<Vec<bool>, Error>>()?.into_iter();
            taken.extend(left.extract_if(.., |_| answers.next() == Some(true)));
            if left.is_empty() {
                return Ok(left);
            }
            if begin.elapsed() > LIMIT {
                self.untold.extend(left.iter().cloned());
                return Ok(left);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Takes the word back, in a namespace that stays.
    pub(crate) async fn unsay(&self) -> Result<(), Error> {
        self.say(None).await
    }

    /// How many pods of each namespace have a proxy.
    pub(crate) async fn left(&self) -> Result<BTreeMap<String, usize>, Error> {
        let mut left = BTreeMap::new();
        for pod in self.pods().await? {
            *left.entry(pod.namespace).or_default() += 1;
        }
        Ok(left)
    }

    /// The step that was said last.
    pub(crate) async fn said(&self) -> Result<Removal, Error> {
        Ok(leno_resources::removal(&notes(self.client, self.namespace).await?))
    }

    async fn say(&self, step: Option<Removal>) -> Result<(), Error> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let text = step.map(Removal::as_str);
        let patch = json!({"metadata": {"annotations": {REMOVAL_ANNOTATION: text}}});
        let said = all.patch(self.namespace, &PatchParams::default(), &Patch::Merge(&patch)).await;
        match said {
            Err(error) if !is_absent(&error) => {
                Err(Error::api(format!("annotate Namespace {}", self.namespace))(error))
            }
            _ => Ok(()),
        }
    }

    /// The running pods that have a proxy and a network of their own.
    async fn pods(&self) -> Result<Vec<PodName>, Error> {
        let pods = all(self.client, None).await?;
        Ok(pods.iter().filter(|pod| phase(pod) == "Running" && leaves(pod)).map(name).collect())
    }

    /// Whether the pod's proxy says so. One that does not answer has not, unless its pod ends: that is
    /// then in no list any more. That it may not be asked is an error: nobody would be told apart then.
    async fn has_taken(&self, pod: &PodName, step: Removal) -> Result<bool, Error> {
        match timeout(ANSWER, self.reach.get(pod, "/config")).await {
            Ok(Ok(reply)) => Ok(taken(&reply.body).is_some_and(|taken| taken >= step)),
            Ok(Err(error @ (Error::Forbidden { .. } | Error::Unknown(_)))) => Err(error),
            Ok(Err(_)) | Err(_) => Ok(false),
        }
    }
}

/// The annotations of a namespace; none where there is no such namespace.
pub(crate) async fn notes(
    client: &Client,
    namespace: &str,
) -> Result<BTreeMap<String, String>, Error> {
    let all: Api<Namespace> = Api::all(client.clone());
    let found = all.get_opt(namespace).await;
    let found = found.map_err(Error::api(format!("get Namespace {namespace}")))?;
    Ok(found.and_then(|found| found.metadata.annotations).unwrap_or_default())
}

/// The step that a proxy's `/config` names; none where it is one of a version that does not know any.
fn taken(config: &str) -> Option<Removal> {
    let config: Value = serde_json::from_str(config).ok()?;
    config.pointer("/policy/removal")?.as_str()?.parse().ok()
}

/// Whether a pod has a proxy through which its connections go: those of a node's network do not.
fn leaves(pod: &Pod) -> bool {
    let has_own_network = pod.spec.as_ref().is_some_and(|spec| spec.host_network != Some(true));
    is_meshed(pod) && has_own_network
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_says_which_step_it_has_taken() {
        assert_eq!(taken(r#"{"policy":{"removal":"plaintext"}}"#), Some(Removal::Plaintext));
        for other in [r#"{"policy":null}"#, r#"{"policy":{"removal":"half"}}"#, "no proxy"] {
            assert_eq!(taken(other), None, "{other}");
        }
    }

    #[test]
    fn only_pods_with_a_proxy_and_a_network_of_their_own_leave() {
        let pod = |spec: &str| serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
        let meshed = |spec: &str| leaves(&pod(spec));
        assert!(meshed(r#"{"containers":[],"initContainers":[{"name":"leno-proxy"}]}"#));
        assert!(meshed(r#"{"containers":[{"name":"leno-proxy"}]}"#));
        assert!(!meshed(r#"{"containers":[{"name":"web"}]}"#));
        assert!(!meshed(r#"{"containers":[{"name":"leno-proxy"}],"hostNetwork":true}"#));
    }
}
