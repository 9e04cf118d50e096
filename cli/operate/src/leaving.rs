//! Pods that have a proxy leave the mesh while they serve: step by step, each when all have taken the last.
//!
//! The control plane reads the step from an annotation of its own namespace and tells the proxies, who say
//! in `/config` which one they have taken. They are asked by way of the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, Namespace, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use leno_resources::REMOVAL_ANNOTATION;
use leno_sources::PROXY_CONTAINER;
use leno_types::{Removal, ports};
use serde_json::{Value, json};

use crate::Error;
use crate::objects::is_absent;
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
    /// Those that have not taken a step in time, by `namespace/name`: they are not waited for again.
    untold: BTreeSet<String>,
}

impl<'a> Leaving<'a> {
    pub(crate) fn new(client: &'a Client, namespace: &'a str) -> Self {
        Self { client, namespace, untold: BTreeSet::new() }
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
    pub(crate) async fn take(&mut self, step: Removal) -> Result<Vec<String>, Error> {
        if self.said().await? < step {
            self.say(Some(step)).await?;
        }
        let begin = Instant::now();
        let mut taken = BTreeSet::new();
        loop {
            let asked: Vec<Pod> = self
                .pods()
                .await?
                .into_iter()
                .filter(|pod| {
                    let name = full_name(pod);
                    !taken.contains(&name) && !self.untold.contains(&name)
                })
                .collect();
            let names: Vec<String> = asked.iter().map(full_name).collect();
            let answers = stream::iter(asked).map(|pod| self.has_taken(pod, step));
            let answers: Vec<Result<bool, Error>> = answers.buffered(AT_ONCE).collect().await;
            let answers = answers.into_iter().collect::<Result<Vec<bool>, Error>>()?;
            let (done, left): (Vec<_>, Vec<_>) =
                names.into_iter().zip(answers).partition(|(_, has_taken)| *has_taken);
            taken.extend(done.into_iter().map(|(name, _)| name));
            let left: Vec<String> = left.into_iter().map(|(name, _)| name).collect();
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
            *left.entry(pod.namespace().unwrap_or_default()).or_default() += 1;
        }
        Ok(left)
    }

    /// The step that was said last.
    pub(crate) async fn said(&self) -> Result<Removal, Error> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let what = format!("get Namespace {}", self.namespace);
        let found = all.get_opt(self.namespace).await.map_err(Error::api(what))?;
        let said =
            found.and_then(|found| found.annotations().get(REMOVAL_ANNOTATION)?.parse().ok());
        Ok(said.unwrap_or_default())
    }

    async fn say(&self, step: Option<Removal>) -> Result<(), Error> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let text = step.map(Removal::as_str);
        let patch = json!({"metadata": {"annotations": {REMOVAL_ANNOTATION: text}}});
        let said = all.patch(self.namespace, &PatchParams::default(), &Patch::Merge(&patch)).await;
        match said {
            Err(error) if !is_absent(&error) => {
                Err(Error::Api(format!("annotate Namespace {}", self.namespace), error))
            }
            _ => Ok(()),
        }
    }

    /// The running pods that have a proxy and a network of their own.
    async fn pods(&self) -> Result<Vec<Pod>, Error> {
        let all: Api<Pod> = Api::all(self.client.clone());
        let running = ListParams::default().fields("status.phase=Running");
        let pods = all.list(&running).await.map_err(Error::api("list pods"))?;
        Ok(pods.items.into_iter().filter(is_meshed).collect())
    }

    /// Whether the pod's proxy says so. One that does not answer has not, unless its pod ends: that is
    /// then in no list any more. That it may not be asked is an error: nobody would be told apart then.
    async fn has_taken(&self, pod: Pod, step: Removal) -> Result<bool, Error> {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let port = ports::ADMIN;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/config");
        let Ok(request) = http::Request::get(path).body(Vec::new()) else { return Ok(false) };
        match tokio::time::timeout(ANSWER, self.client.request_text(request)).await {
            Ok(Ok(text)) => Ok(taken(&text).is_some_and(|taken| taken >= step)),
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 401 | 403) => {
                let what = format!("get pods/proxy of {namespace}/{name}");
                Err(Error::Api(what, kube::Error::Api(status)))
            }
            Ok(Err(_)) | Err(_) => Ok(false),
        }
    }
}

/// The step that a proxy's `/config` names; none where it is one of a version that does not know any.
fn taken(config: &str) -> Option<Removal> {
    let config: Value = serde_json::from_str(config).ok()?;
    config.pointer("/policy/removal")?.as_str()?.parse().ok()
}

fn is_meshed(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let is_proxy = |container: &Container| container.name == PROXY_CONTAINER;
    let has_proxy =
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(is_proxy);
    has_proxy && spec.host_network != Some(true)
}

fn full_name(pod: &Pod) -> String {
    format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())
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
        let meshed = |spec: &str| is_meshed(&pod(spec));
        assert!(meshed(r#"{"containers":[],"initContainers":[{"name":"leno-proxy"}]}"#));
        assert!(meshed(r#"{"containers":[{"name":"leno-proxy"}]}"#));
        assert!(!meshed(r#"{"containers":[{"name":"web"}]}"#));
        assert!(!meshed(r#"{"containers":[{"name":"leno-proxy"}],"hostNetwork":true}"#));
    }
}
