//! Removes pods with a proxy from the mesh while they serve, in the steps of [`Removal`]. Each step begins only after
//! all proxies have applied the step before, or have had enough time for it.
//!
//! The command writes the step to an annotation of the control plane's namespace. The control plane
//! reads it and sends it to the proxies. Each proxy reports in `/config` which step it has applied;
//! as in all commands, the query uses a port-forward.
//!
//! If a user installs the mesh meanwhile, that creates new webhooks, and the control plane cancels the step as
//! soon as it finds them. The removal checks for new webhooks and for a cancelled step in each round, and before
//! each action that cannot be undone.
//!
//! If several removals run at the same time, the one that started last wins; otherwise a killed removal would
//! block all later ones. Each removal writes an identifier of its run to an annotation, and stops when it finds
//! the identifier of another run.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::{self, StreamExt as _};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use leno_kube::api::{Patch, PatchParams};
use leno_kube::{Api, Client};
use leno_resources::{REMOVAL_ANNOTATION, REMOVAL_RUN_ANNOTATION};
use leno_sources::is_meshed;
use leno_types::Removal;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use crate::Error;
use crate::namespaces::NamespaceModes;
use crate::pod_admin::{PodAdminClient, PodName};
use crate::pods::{all, name, phase};
use crate::removal::CONTROLLER;

/// The webhooks that inject proxies into pods; a removal deletes them first.
pub(crate) const INJECTOR: &str = "leno-injector";
/// How long proxies have to apply a step. The control plane sends the step within a second, and a disconnected
/// proxy reconnects within a few seconds. [`limit`] adds the time to query all proxies.
const BASE: Duration = Duration::from_secs(30);
/// Pause between two rounds; each round lists all pods.
const LOOK: Duration = Duration::from_secs(1);
/// Longest wait for the answer of one proxy.
const ANSWER: Duration = Duration::from_secs(3);
/// Proxies queried at the same time; bounded to limit the load on the API server.
const AT_ONCE: usize = 32;
/// How many times writing a step is tried before a conflict counts as an error. A conflict means that another
/// client changed the namespace between read and write.
const TRIES: usize = 5;

/// The pods of a cluster that have a proxy, during their removal from the mesh.
pub(crate) struct ProxyRemoval<'a> {
    client: &'a Client,
    /// The control plane's namespace.
    namespace: &'a str,
    reach: PodAdminClient,
    /// Identifies this run.
    run: String,
    /// Whether the identifier has been written.
    begun: bool,
    /// The last step that this run has written.
    step: Removal,
    /// Pods that did not apply a step in time. Later steps do not wait for these pods.
    untold: BTreeSet<PodName>,
}

impl<'a> ProxyRemoval<'a> {
    pub(crate) fn new(client: &'a Client, namespace: &'a str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            client,
            namespace,
            reach: PodAdminClient::new(client.clone()),
            run: format!("{}-{}", std::process::id(), now.as_nanos()),
            begun: false,
            step: Removal::None,
            untold: BTreeSet::new(),
        }
    }

    /// Whether there is a control plane that can send steps to proxies. Waits for a control plane that exists but
    /// is not ready, for example because it is being replaced.
    pub(crate) async fn can(&self) -> Result<bool, Error> {
        let begin = Instant::now();
        loop {
            let Some(found) = self.controller().await? else { return Ok(false) };
            if found.status.is_some_and(|status| status.ready_replicas.unwrap_or_default() > 0) {
                return Ok(true);
            }
            let wanted = found.spec.and_then(|spec| spec.replicas);
            if wanted == Some(0) || begin.elapsed() > BASE {
                return Ok(false);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn controller(&self) -> Result<Option<Deployment>, Error> {
        let all: Api<Deployment> = Api::namespaced(self.client.clone(), self.namespace);
        all.get_opt(CONTROLLER).await.map_err(Error::api("get the control plane"))
    }

    /// Makes all pods apply a step; returns those that do not apply it in time. Each pod is returned only once.
    /// After an interrupted removal, earlier steps are skipped: a step back would make some proxies use mTLS again
    /// with servers that are no longer captured.
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

    /// Starts this run without a step, for a cluster without a control plane that could send one.
    pub(crate) async fn begin(&mut self) -> Result<(), Error> {
        self.say(Removal::None).await
    }

    /// Checks that the mesh was not installed again, that the control plane has not cancelled the removal, and
    /// that no other removal has started since this one did.
    ///
    /// # Errors
    /// One of the three has happened.
    pub(crate) async fn holds(&self) -> Result<(), Error> {
        if is_injected(self.client).await? {
            let what = format!("MutatingWebhookConfiguration {INJECTOR} exists again");
            return Err(Error::Installed(what));
        }
        let notes = self.is_latest().await?;
        let said = leno_resources::removal(&notes);
        if said < self.step {
            let Self { namespace, step, .. } = self;
            let what =
                format!("Namespace {namespace} was set from step {step} back to step {said}");
            return Err(Error::Installed(what));
        }
        Ok(())
    }

    /// Checks that no other removal has started or finished since this one started; returns the namespace's
    /// annotations.
    ///
    /// # Errors
    /// Another removal has started or finished.
    pub(crate) async fn is_latest(&self) -> Result<BTreeMap<String, String>, Error> {
        let notes = notes(self.client, self.namespace).await?;
        match notes.get(REMOVAL_RUN_ANNOTATION) {
            Some(run) if *run != self.run => Err(Error::Another("has continued this removal")),
            // If the control plane still exists, it has itself removed the annotations to cancel the removal.
            None if self.controller().await?.is_none() => {
                Err(Error::Another("has finished this removal"))
            }
            _ => Ok(notes),
        }
    }

    /// Removes the annotations from the namespace, if the namespace is kept.
    pub(crate) async fn unsay(&self) -> Result<(), Error> {
        let nothing = json!({REMOVAL_ANNOTATION: null, REMOVAL_RUN_ANNOTATION: null});
        let patch = json!({"metadata": {"annotations": nothing}});
        let all: Api<Namespace> = Api::all(self.client.clone());
        let done = all.patch(self.namespace, &PatchParams::default(), &Patch::Merge(&patch)).await;
        done.map(drop).map_err(Error::api(format!("annotate Namespace {}", self.namespace)))
    }

    /// The number of pods with a proxy in each namespace.
    pub(crate) async fn left(&self) -> Result<BTreeMap<String, usize>, Error> {
        let mut left = BTreeMap::new();
        let pods = all(self.client, None).await?;
        // Pods in node mode have no proxy any more once the proxy of their node is gone.
        let keeps = |pod: &&Pod| phase(pod) == "Running" && has_own_network(pod) && is_meshed(pod);
        for pod in pods.iter().filter(keeps) {
            *left.entry(name(pod).namespace).or_default() += 1;
        }
        Ok(left)
    }

    /// The last step that any run has written.
    pub(crate) async fn said(&self) -> Result<Removal, Error> {
        Ok(leno_resources::removal(&notes(self.client, self.namespace).await?))
    }

    /// Writes a step, or keeps a later step that was already written. The step is written even if it is unchanged,
    /// and only over the version of the namespace that was read: the control plane may be about to cancel the step
    /// because of an earlier version, and another removal may have started.
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
                Err(leno_kube::Error::Api(status)) if status.code == 409 && tries < TRIES => {
                    tries += 1
                }
                Err(error) => return Err(Error::api(what())(error)),
                Ok(_) => {
                    (self.begun, self.step) = (true, step);
                    return Ok(());
                }
            }
        }
    }

    /// Whether the pod's proxy reports the step. `false` if the proxy does not answer; if its pod is terminating,
    /// the next list does not contain it any more. Lacking the right to query it is an error, because then the
    /// state of no proxy can be found out.
    async fn has_taken(&self, pod: &PodName, step: Removal) -> Result<bool, Error> {
        match timeout(ANSWER, self.reach.get(pod, "/config")).await {
            Ok(Ok(reply)) => Ok(taken(&reply.body).is_some_and(|taken| taken >= step)),
            Ok(Err(error @ (Error::Forbidden { .. } | Error::Unknown(_)))) => Err(error),
            Ok(Err(_)) | Err(_) => Ok(false),
        }
    }
}

/// Longest wait until this many proxies have applied a step. After [`BASE`], there is time to query each of them
/// once more, even if all that are queried before it do not answer. A proxy of a large mesh is therefore not given
/// up because others do not answer.
fn limit(proxies: usize) -> Duration {
    BASE.saturating_add(round(proxies))
}

/// Longest time to query this many proxies once.
fn round(proxies: usize) -> Duration {
    let rounds = u32::try_from(proxies.div_ceil(AT_ONCE)).unwrap_or(u32::MAX);
    ANSWER.saturating_mul(rounds)
}

/// Queries the listed pods repeatedly, until all have applied a step or the [`limit`] for the first list has
/// passed. Returns the pods that are not known to have applied it.
async fn all_take(
    list: impl AsyncFn() -> Result<Vec<PodName>, Error>,
    ask: impl AsyncFn(&PodName) -> Result<bool, Error>,
) -> Result<Vec<PodName>, Error> {
    let begin = Instant::now();
    let mut end = begin + limit(0);
    let (mut taken, mut left) = (BTreeSet::new(), None);
    // Listing the pods is subject to the same time limit as querying them.
    while let Ok(listed) = timeout_at(end, list()).await {
        let listed = listed?;
        if left.is_none() {
            end = begin + limit(listed.len());
        }
        let asked: Vec<PodName> = listed.into_iter().filter(|pod| !taken.contains(pod)).collect();
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
        // The fewer proxies have not answered, the sooner the wait ends: it is enough to query each of them once more.
        end = end.min((begin + BASE).max(Instant::now()) + round(now.len()));
        let all_have = now.is_empty();
        left = Some(now.into_iter().collect());
        if all_have || Instant::now() >= end {
            break;
        }
        tokio::time::sleep(LOOK).await;
    }
    left.ok_or_else(|| Error::Late("list pods of all namespaces".to_owned(), BASE.as_secs()))
}

/// The running pods that have their own network, and their own proxy or one of their node.
pub(crate) async fn with_proxy(client: &Client) -> Result<Vec<PodName>, Error> {
    let pods = all(client, None).await?;
    let modes = NamespaceModes::read(client, None).await?;
    let leaves =
        |pod: &Pod| phase(pod) == "Running" && has_own_network(pod) && modes.has_proxy(pod);
    Ok(pods.iter().filter(|pod| leaves(pod)).map(name).collect())
}

/// Whether the webhooks that inject proxies into pods exist.
pub(crate) async fn is_injected(client: &Client) -> Result<bool, Error> {
    let all: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let found = all.get_metadata_opt(INJECTOR).await;
    Ok(found.map_err(Error::api(format!("get {INJECTOR}")))?.is_some())
}

/// The annotations of a namespace; empty if it does not exist.
pub(crate) async fn notes(
    client: &Client,
    namespace: &str,
) -> Result<BTreeMap<String, String>, Error> {
    let all: Api<Namespace> = Api::all(client.clone());
    let found = all.get_opt(namespace).await;
    let found = found.map_err(Error::api(format!("get Namespace {namespace}")))?;
    Ok(found.and_then(|found| found.metadata.annotations).unwrap_or_default())
}

/// The step in the response of a proxy's `/config`; `None` if the proxy's version does not report one.
fn taken(config: &str) -> Option<Removal> {
    let config: Value = serde_json::from_str(config).ok()?;
    config.pointer("/policy/removal")?.as_str()?.parse().ok()
}

/// Whether a pod has its own network. Connections of a pod in its node's network do not pass its proxy.
fn has_own_network(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.host_network != Some(true))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

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
    async fn the_bound_of_a_step_grows_with_the_mesh_and_each_proxy_is_asked_within_it() {
        let begin = Instant::now();
        let asked = RefCell::new(BTreeSet::new());
        let slow = async |pod: &PodName| {
            asked.borrow_mut().insert(pod.clone());
            tokio::time::sleep(ANSWER).await;
            Ok(false)
        };
        let left = all_take(async || Ok(pods(2_000)), slow).await.unwrap();
        assert_eq!((left.len(), asked.borrow().len()), (2_000, 2_000));
        assert_eq!(begin.elapsed(), limit(2_000));
        assert!(limit(2_000) < Duration::from_secs(240), "{:?}", limit(2_000));
        let now = Instant::now();
        let never = all_take(std::future::pending, slow).await;
        assert!(matches!(never, Err(Error::Late(..))), "who is left is not known");
        assert_eq!(now.elapsed(), BASE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_silent_proxies_of_a_large_mesh_take_the_time_of_a_few() {
        let begin = Instant::now();
        let ask = async |pod: &PodName| {
            if pod.name.len() > "web-2".len() {
                return Ok(true);
            }
            tokio::time::sleep(ANSWER).await;
            Ok(false)
        };
        let left = all_take(async || Ok(pods(2_000)), ask).await.unwrap();
        assert_eq!(left.len(), 10);
        assert_eq!(begin.elapsed(), limit(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_behind_many_silent_ones_is_not_left_untold() {
        let last = |pod: &PodName| pod.name == "web-1999";
        let ask = async |pod: &PodName| {
            if last(pod) {
                return Ok(true);
            }
            tokio::time::sleep(ANSWER).await;
            Ok(false)
        };
        let left = all_take(async || Ok(pods(2_000)), ask).await.unwrap();
        assert_eq!(left.len(), 1_999);
        assert!(!left.iter().any(last), "it has taken the step");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_steps_late_counts_and_one_that_ends_is_not_waited_for() {
        let round = Cell::new(0);
        let list = async || {
            round.set(round.get() + 1);
            Ok(if round.get() < 3 { pods(3) } else { pods(2) })
        };
        // One pod applies the step at once, one in the second round, and one never.
        let ask = async |pod: &PodName| {
            Ok(pod.name == "web-0" || (pod.name == "web-1" && round.get() > 1))
        };
        assert_eq!(all_take(list, ask).await.unwrap(), []);
        assert_eq!(round.get(), 3);
        let refused = async |_: &PodName| Err(Error::Unknown("ask".to_owned()));
        assert!(
            all_take(async || Ok(pods(1)), refused).await.is_err(),
            "the pods could not be told apart"
        );
    }

    #[test]
    fn only_pods_with_a_proxy_and_a_network_of_their_own_leave() {
        let pod = |spec: &str| serde_json::from_str(&format!(r#"{{"spec":{spec}}}"#)).unwrap();
        let modes = NamespaceModes::default();
        let leaves = |spec: &str| has_own_network(&pod(spec)) && modes.has_proxy(&pod(spec));
        assert!(leaves(r#"{"containers":[],"initContainers":[{"name":"leno-proxy"}]}"#));
        assert!(leaves(r#"{"containers":[{"name":"leno-proxy"}]}"#));
        assert!(!leaves(r#"{"containers":[{"name":"web"}]}"#));
        assert!(!leaves(r#"{"containers":[{"name":"leno-proxy"}],"hostNetwork":true}"#));
    }
}
