//! Pods that have a proxy leave the mesh while they serve: step by step, each when all have taken the last.
//!
//! The control plane reads the step from an annotation of its own namespace and tells the proxies, who say
//! in `/config` which one they have taken. They are asked as by all commands, by a port-forward.
//!
//! Whoever installs the mesh meanwhile has the control plane take the step back, which it does where it finds
//! the webhooks: both are looked at in each round, and before what cannot be taken back.
//!
//! Of several removals at a time the one that began last goes on, for one that was killed must not keep anybody
//! from it; those before it end at their next look. Each writes the number of its run, and by that they know.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt as _};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use leno_resources::{REMOVAL_ANNOTATION, REMOVAL_RUN_ANNOTATION};
use leno_sources::is_meshed;
use leno_types::Removal;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use crate::Error;
use crate::pods::{all, name, phase};
use crate::reach::{PodName, Reach};
use crate::removal::CONTROLLER;

/// The webhooks that put proxies into pods: what a removal deletes first.
pub(crate) const INJECTOR: &str = "leno-injector";
/// Longest wait for all proxies to take a step: the control plane tells them within a second, and one that
/// has lost it connects again within a few.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two rounds: each lists all pods.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for the answer of one proxy.
const ANSWER: Duration = Duration::from_secs(3);
/// Proxies asked at a time, so that the API server has other things to do as well.
const AT_ONCE: usize = 32;
/// Times that a step is written before it is an error: as often somebody else has changed the namespace in
/// between.
const TRIES: usize = 5;

/// The pods of a cluster that have a proxy, on their way out of the mesh.
pub(crate) struct Leaving<'a> {
    client: &'a Client,
    /// Of the control plane.
    namespace: &'a str,
    reach: Reach,
    /// What tells this run from others.
    run: String,
    /// Whether that is written.
    begun: bool,
    /// What was said last by it.
    step: Removal,
    /// Those that have not taken a step in time: they are not waited for again.
    untold: BTreeSet<PodName>,
}

impl<'a> Leaving<'a> {
    pub(crate) fn new(client: &'a Client, namespace: &'a str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            client,
            namespace,
            reach: Reach::new(client.clone()),
            run: format!("{}-{}", std::process::id(), now.as_nanos()),
            begun: false,
            step: Removal::None,
            untold: BTreeSet::new(),
        }
    }

    /// Whether there is a control plane that can tell them. One that is there and not ready, as while it is
    /// replaced, is waited for.
    pub(crate) async fn can(&self) -> Result<bool, Error> {
        let begin = Instant::now();
        loop {
            let Some(found) = self.controller().await? else { return Ok(false) };
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

    async fn controller(&self) -> Result<Option<Deployment>, Error> {
        let all: Api<Deployment> = Api::namespaced(self.client.clone(), self.namespace);
        all.get_opt(CONTROLLER).await.map_err(Error::api("get the control plane"))
    }

    /// Has all pods take a step; those that do not in time, each said once. A removal that was interrupted
    /// goes on where it was: a step back would have some speak mTLS again to others without a capture.
    pub(crate) async fn take(&mut self, step: Removal) -> Result<Vec<PodName>, Error> {
        self.say(step).await?;
        let list = async || {
            self.holds().await?;
            let mut pods = with_proxy(self.client).await?;
            pods.retain(|pod| !self.untold.contains(pod));
            Ok(pods)
        };
        let left = all_take(list, async |pod: &PodName| self.has_taken(pod, step).await).await?;
        self.untold.extend(left.iter().cloned());
        Ok(left)
    }

    /// Begins this run where there is no control plane that could tell anybody of a step.
    pub(crate) async fn begin(&mut self) -> Result<(), Error> {
        self.say(Removal::None).await
    }

    /// That nobody has installed the mesh again, the control plane has not taken the removal back, and no other
    /// removal has begun since.
    ///
    /// # Errors
    /// Where somebody has, or it did, or one has.
    pub(crate) async fn holds(&self) -> Result<(), Error> {
        if is_injected(self.client).await? {
            let what = format!("MutatingWebhookConfiguration {INJECTOR} is there again");
            return Err(Error::Installed(what));
        }
        let notes = self.is_latest().await?;
        let said = leno_resources::removal(&notes);
        if said < self.step {
            let Self { namespace, step, .. } = self;
            let what = format!("step {step} was taken back to {said} in Namespace {namespace}");
            return Err(Error::Installed(what));
        }
        Ok(())
    }

    /// That no other removal has begun since this one, or has ended it; with what the namespace says.
    ///
    /// # Errors
    /// Where one has.
    pub(crate) async fn is_latest(&self) -> Result<BTreeMap<String, String>, Error> {
        let notes = notes(self.client, self.namespace).await?;
        match notes.get(REMOVAL_RUN_ANNOTATION) {
            Some(run) if *run != self.run => Err(Error::Another("goes on with this removal")),
            // A control plane that is there has taken the last step back, and its number with it.
            None if self.controller().await?.is_none() => {
                Err(Error::Another("has ended this removal"))
            }
            _ => Ok(notes),
        }
    }

    /// Takes the word back, in a namespace that stays.
    pub(crate) async fn unsay(&self) -> Result<(), Error> {
        let nothing = json!({REMOVAL_ANNOTATION: null, REMOVAL_RUN_ANNOTATION: null});
        let patch = json!({"metadata": {"annotations": nothing}});
        let all: Api<Namespace> = Api::all(self.client.clone());
        let done = all.patch(self.namespace, &PatchParams::default(), &Patch::Merge(&patch)).await;
        done.map(drop).map_err(Error::api(format!("annotate Namespace {}", self.namespace)))
    }

    /// How many pods of each namespace have a proxy.
    pub(crate) async fn left(&self) -> Result<BTreeMap<String, usize>, Error> {
        let mut left = BTreeMap::new();
        for pod in with_proxy(self.client).await? {
            *left.entry(pod.namespace).or_default() += 1;
        }
        Ok(left)
    }

    /// The step that was said last.
    pub(crate) async fn said(&self) -> Result<Removal, Error> {
        Ok(leno_resources::removal(&notes(self.client, self.namespace).await?))
    }

    /// Says a step, or a later one again that was said already. Written it is in any case, and only over what
    /// was read: the control plane may just now be about to take back what it has read before, and another removal
    /// may have begun.
    async fn say(&mut self, step: Removal) -> Result<(), Error> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let what = || format!("annotate Namespace {}", self.namespace);
        let mut tries = 1;
        loop {
            let found = all.get(self.namespace).await.map_err(Error::api(what()))?;
            let notes = found.metadata.annotations.unwrap_or_default();
            if self.begun && notes.get(REMOVAL_RUN_ANNOTATION) != Some(&self.run) {
                self.holds().await?;
            }
            let step = step.max(leno_resources::removal(&notes));
            let said = match step {
                Removal::None => json!({REMOVAL_RUN_ANNOTATION: self.run}),
                step => {
                    json!({REMOVAL_ANNOTATION: step.as_str(), REMOVAL_RUN_ANNOTATION: self.run})
                }
            };
            let version = found.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version, "annotations": said}});
            let params = PatchParams::default();
            match all.patch(self.namespace, &params, &Patch::Merge(&patch)).await {
                Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => tries += 1,
                Err(error) => return Err(Error::api(what())(error)),
                Ok(_) => {
                    (self.begun, self.step) = (true, step);
                    return Ok(());
                }
            }
        }
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

/// Asks those that are listed, again and again, until all have taken a step or [`LIMIT`] is over: those that
/// are not known to have by then.
async fn all_take(
    list: impl AsyncFn() -> Result<Vec<PodName>, Error>,
    ask: impl AsyncFn(&PodName) -> Result<bool, Error>,
) -> Result<Vec<PodName>, Error> {
    let end = Instant::now() + LIMIT;
    let (mut taken, mut left) = (BTreeSet::new(), None);
    // The list is as bounded as the answers are.
    while let Ok(listed) = timeout_at(end, list()).await {
        let asked: Vec<PodName> = listed?.into_iter().filter(|pod| !taken.contains(pod)).collect();
        let mut now: BTreeSet<PodName> = asked.iter().cloned().collect();
        let ask = &ask;
        let answers = asked.into_iter().map(|pod| async move { (ask(&pod).await, pod) });
        let mut answers = pin!(stream::iter(answers).buffer_unordered(AT_ONCE));
        while let Ok(Some((answer, pod))) = timeout_at(end, answers.next()).await {
            if answer? {
                now.remove(&pod);
                taken.insert(pod);
            }
        }
        let all_have = now.is_empty();
        left = Some(now.into_iter().collect());
        if all_have || Instant::now() >= end {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    left.ok_or_else(|| Error::Late("list pods of all namespaces".to_owned(), LIMIT.as_secs()))
}

/// The running pods that have a proxy and a network of their own.
pub(crate) async fn with_proxy(client: &Client) -> Result<Vec<PodName>, Error> {
    let pods = all(client, None).await?;
    Ok(pods.iter().filter(|pod| phase(pod) == "Running" && leaves(pod)).map(name).collect())
}

/// Whether the webhooks that put proxies into pods are there.
pub(crate) async fn is_injected(client: &Client) -> Result<bool, Error> {
    let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let found = all.get_metadata_opt(INJECTOR).await;
    Ok(found.map_err(Error::api(format!("get {INJECTOR}")))?.is_some())
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
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_proxy_says_which_step_it_has_taken() {
        assert_eq!(taken(r#"{"policy":{"removal":"plaintext"}}"#), Some(Removal::Plaintext));
        for other in [r#"{"policy":null}"#, r#"{"policy":{"removal":"half"}}"#, "no proxy"] {
            assert_eq!(taken(other), None, "{other}");
        }
    }

    fn pods(count: usize) -> Vec<PodName> {
        let pod = |number| PodName { namespace: "shop".into(), name: format!("web-{number}") };
        (0..count).map(pod).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn many_silent_proxies_make_a_step_no_longer() {
        let begin = Instant::now();
        let slow = async |_: &PodName| {
            tokio::time::sleep(ANSWER).await;
            Ok(false)
        };
        let left = all_take(async || Ok(pods(2_000)), slow).await.unwrap();
        assert_eq!(left.len(), 2_000);
        assert_eq!(begin.elapsed(), LIMIT);
        let never = all_take(std::future::pending, slow).await;
        assert!(matches!(never, Err(Error::Late(..))), "nobody knows who is left");
        assert_eq!(begin.elapsed(), LIMIT * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_takes_a_step_late_has_taken_it_and_whoever_ends_is_not_waited_for() {
        let round = Cell::new(0);
        let list = async || {
            round.set(round.get() + 1);
            Ok(if round.get() < 3 { pods(3) } else { pods(2) })
        };
        // One at once, one in the second round, one never.
        let ask = async |pod: &PodName| {
            Ok(pod.name == "web-0" || (pod.name == "web-1" && round.get() > 1))
        };
        assert_eq!(all_take(list, ask).await.unwrap(), []);
        assert_eq!(round.get(), 3);
        let refused = async |_: &PodName| Err(Error::Unknown("ask".to_owned()));
        assert!(
            all_take(async || Ok(pods(1)), refused).await.is_err(),
            "nobody would be told apart"
        );
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
