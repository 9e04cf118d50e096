//! Removes an installation in this order: first the webhooks that pods depend on, then pods leave the mesh, then
//! the agents' traces on the nodes, then the rest. Nothing is deleted before all rights are checked. If a user
//! installs the mesh at the same time, nothing more is deleted from then on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use leno_charts::{INSTALLED, Values, WorkloadApiVolume, render};
use leno_kube::api::{DeleteParams, ListParams};
use leno_kube::{Api, Client, RequiredRight, ResourceExt as _};
use leno_types::Removal as Step;

use crate::objects::{self, ObjectReference, named};
use crate::pods::{has_run, unstartable};
use crate::processes::SUPERVISORS;
use crate::proxy_removal::ProxyRemoval;
use crate::{AGENTS, Error, PodName, installed, unmet};

mod needs;
mod nodes;
mod placement;

/// The name of the agents' DaemonSet.
const AGENT: &str = "leno-agent";
/// The ConfigMap with the root certificates that a running control plane keeps in every namespace.
const ROOTS: &str = "leno-roots";
/// The name of the control plane's Deployment.
pub(crate) const CONTROLLER: &str = "leno-controller";
/// The label of a namespace that was created for Leno.
const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "leno");
/// The label of the pods that clean nodes, and the prefix of their names; the rest of the name is the node's.
const CLEANUP: (&str, &str) = ("leno.dev/task", "cleanup");
const CLEANS: &str = "leno-cleanup-";
/// Longest wait for one step on all nodes: a kubelet stops and starts a pod within seconds.
const NODE_LIMIT: Duration = Duration::from_secs(60);
/// Longest wait for the supervisors of node proxies. They end at once on nodes that are clean. On others, they continue
/// to serve for two minutes after their agents have ended.
const SUPERVISOR_LIMIT: Duration = Duration::from_secs(150);
/// Pause between two queries.
const LOOK: Duration = Duration::from_millis(300);

/// A progress report of the removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalReport {
    /// An object was deleted.
    Object(String),
    /// A node's kernel, CNI configuration and folders contain nothing of the mesh any more.
    Node(String),
    /// A node did not report that it is clean; the second text is the reason.
    NodeLeft(String, String),
    /// There is no control plane that could tell the proxies of the removal. Requests between pods may fail until
    /// the pods are restarted.
    Unannounced,
    /// A pod did not apply a step of the removal. Requests from the pod or to it may fail until it is restarted.
    Untold(PodName),
    /// How many pods still have a proxy, by namespace. These pods keep their proxies until they are restarted.
    Proxies(BTreeMap<String, usize>),
    /// The namespace is kept, because it was not created for Leno.
    NamespaceKept(String),
}

/// Removes an installation.
pub struct MeshRemoval {
    client: Client,
    namespace: String,
    /// Whether Leno's CustomResourceDefinitions are kept, and with them all users' policies.
    keep_definitions: bool,
    /// Whether agents may have run.
    had_agents: bool,
    /// Whether the present pods of agents are the only ones that have ever run on the nodes.
    fresh: bool,
}

impl MeshRemoval {
    /// Removes the installation in `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: &str, keep_definitions: bool) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            keep_definitions,
            had_agents: true,
            fresh: false,
        }
    }

    /// For an installation that was abandoned before its agents were created. The nodes are not cleaned, unless
    /// agents exist after all.
    #[must_use]
    pub fn without_agents(self) -> Self {
        Self { had_agents: false, ..self }
    }

    /// For an installation that the caller itself has just created and whose agents have not become ready. A node
    /// whose agent has never started then needs no cleaning. Do not call this for any other installation: an
    /// agent's pod that cannot start may have replaced one that ran, for example after an upgrade to an image that
    /// does not exist.
    #[must_use]
    pub fn fresh(self) -> Self {
        Self { fresh: true, ..self }
    }

    /// The rights that the user lacks to apply these documents in the namespace and to remove their objects again,
    /// in words.
    ///
    /// # Errors
    /// The API server does not answer, or the text is not YAML.
    pub async fn lacking_with(&self, documents: &str) -> Result<Vec<String>, Error> {
        let all = named(documents)?;
        let mut needs = needs::applied(all.iter());
        needs.extend(needs::all(&self.namespace, all.iter()));
        let mut lacking = unmet(&self.client, needs).await?;
        lacking.sort();
        lacking.dedup();
        Ok(lacking)
    }

    /// Removes everything, and reports each step. Objects that no longer exist are skipped. The
    /// record of the installation is deleted last, so that an interrupted removal can be repeated.
    ///
    /// # Errors
    /// Nothing is installed in the namespace; the API server rejects a request; an object is not gone in time; or
    /// a user installs the mesh meanwhile. If the user lacks a right, the error comes before anything is changed.
    /// A node that cannot be cleaned is reported, and is not an error.
    pub async fn run(&self, mut say: impl FnMut(RemovalReport)) -> Result<(), Error> {
        let there = installed(&self.client, &self.namespace).await?;
        let there = there.ok_or_else(|| Error::Nothing(self.namespace.clone()))?;
        let values =
            Values::load(&[("the settings of the installation".to_owned(), there.values)], &[]);
        // The record of another version may have values that this version does not know.
        let values = with_all_parts(values.unwrap_or_else(|_| Values::defaults()));
        let text = render(&values, &self.namespace)?;
        let mut all = named(&text)?;
        all.reverse();
        let (webhooks, mut rest): (Vec<ObjectReference>, Vec<ObjectReference>) =
            all.into_iter().partition(|one| one.kind.ends_with("WebhookConfiguration"));
        rest.retain(|one| {
            let kept = self.keep_definitions && one.kind == "CustomResourceDefinition";
            !kept && one.kind != "Namespace" && one.name != INSTALLED
        });
        let lacking = unmet(&self.client, self.needs(webhooks.iter().chain(&rest)).await?).await?;
        if !lacking.is_empty() {
            return Err(Error::Lacking(lacking));
        }
        for one in &webhooks {
            self.delete(one, &mut say).await?;
        }
        let mut proxies = ProxyRemoval::new(&self.client, &self.namespace);
        let can_leave = proxies.can().await?;
        let before: &[Step] = if can_leave { &[Step::Permissive, Step::Plaintext] } else { &[] };
        if !can_leave {
            if proxies.said().await? < Step::Released {
                say(RemovalReport::Unannounced);
            }
            proxies.begin().await?;
        }
        for step in before {
            proxies.take(*step).await?.into_iter().for_each(|pod| say(RemovalReport::Untold(pod)));
        }
        proxies.holds().await?;
        self.nodes(&text, &proxies, &mut say).await?;
        if can_leave {
            let untold = proxies.take(Step::Released).await?;
            untold.into_iter().for_each(|pod| say(RemovalReport::Untold(pod)));
        }
        proxies.holds().await?;
        // The control plane is deleted before the roots, because its leader would create them again.
        self.delete(&self.ours("apps", "Deployment", CONTROLLER), &mut say).await?;
        self.controllers_end().await?;
        self.roots(&mut say).await?;
        // Deletes the webhooks once more, because no control plane would answer webhooks that were created in the
        // last moment.
        for one in webhooks.iter().chain(&rest) {
            self.delete(one, &mut say).await?;
        }
        self.supervisors_end().await?;
        say(RemovalReport::Proxies(proxies.left().await?));
        // If another removal has started meanwhile, that removal still needs its annotations and the record of the
        // installation.
        proxies.is_latest().await?;
        proxies.unsay().await?;
        self.delete(&self.ours("", "ConfigMap", INSTALLED), &mut say).await?;
        self.namespace(&mut say).await
    }

    fn ours(&self, group: &str, kind: &str, name: &str) -> ObjectReference {
        ObjectReference {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: kind.to_owned(),
            namespace: Some(self.namespace.clone()),
            name: name.to_owned(),
        }
    }

    async fn delete(
        &self,
        one: &ObjectReference,
        say: &mut impl FnMut(RemovalReport),
    ) -> Result<(), Error> {
        if objects::delete(&self.client, one).await? {
            say(RemovalReport::Object(one.said()));
        }
        Ok(())
    }

    /// Deletes the agents, then cleans each node; stops if a user installs the mesh at the same
    /// time.
    async fn nodes(
        &self,
        text: &str,
        proxies: &ProxyRemoval<'_>,
        say: &mut impl FnMut(RemovalReport),
    ) -> Result<(), Error> {
        let agents: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let there = agents.get_opt(AGENT).await;
        let there = there.map_err(Error::api(format!("get DaemonSet {AGENT}")))?;
        if there.is_none() && !self.had_agents {
            return Ok(());
        }
        let idle = if self.fresh { self.never_begun().await? } else { BTreeSet::new() };
        // After an interrupted removal the DaemonSet may be gone already, but the nodes not clean.
        let agent = there.or_else(|| objects::find(text, "DaemonSet", AGENT));
        let Some(spec) = agent.and_then(|agent| agent.spec?.template.spec) else { return Ok(()) };
        self.delete(&self.ours("apps", "DaemonSet", AGENT), say).await?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?;
        let nodes: Vec<Node> =
            nodes.items.into_iter().filter(|node| placement::may_run(&spec, node)).collect();
        // Pods of an interrupted removal may have cleaned the nodes before a new installation began, so they do
        // not count.
        let cleanup = format!("{}={}", CLEANUP.0, CLEANUP.1);
        proxies.is_latest().await?;
        self.forget(&cleanup).await?;
        let earlier = ListParams::default().labels(&cleanup);
        self.none_left(&earlier, "a pod that cleaned earlier", NODE_LIMIT).await?;
        // Skips the nodes whose agent is known never to have started.
        let (untouched, nodes): (Vec<Node>, Vec<Node>) =
            nodes.into_iter().partition(|node| idle.contains(&node.name_any()));
        untouched.iter().for_each(|node| say(RemovalReport::Node(node.name_any())));
        let on_nodes = nodes::ClusterNodes { removal: self, agent: &spec, proxies };
        let cleaned = nodes::clean(&nodes, &on_nodes, say);
        match cleaned.await {
            // The cleaning pods now belong to the other removal.
            Err(error @ Error::Another(_)) => return Err(error),
            cleaned => {
                proxies.is_latest().await?;
                self.forget(&cleanup).await?;
                cleaned?;
            }
        }
        self.forget(AGENTS).await
    }

    /// The nodes whose agent's pod cannot start and never has, for example because its image does not exist. Such
    /// a node has nothing to clean, unless other agent pods ran on it before.
    async fn never_begun(&self) -> Result<BTreeSet<String>, Error> {
        let pods = self.pods().list(&ListParams::default().labels(AGENTS)).await;
        let pods = pods.map_err(Error::api("list the agents"))?;
        let (mut idle, mut ran) = (BTreeSet::new(), BTreeSet::new());
        for pod in pods {
            let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
                continue;
            };
            let never = unstartable(&pod).is_some() && !has_run(&pod);
            if never { &mut idle } else { &mut ran }.insert(node);
        }
        Ok(&idle - &ran)
    }

    /// Deletes pods immediately, even on nodes that do not answer.
    async fn forget(&self, label: &str) -> Result<(), Error> {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let which = ListParams::default().labels(label);
        let done = self.pods().delete_collection(&at_once, &which).await;
        done.map_err(Error::api(format!("delete the pods of {label}")))?;
        Ok(())
    }

    /// Waits until the control plane's pods have ended. Waits only for a limited time for a pod on a node that
    /// does not answer, because such a pod cannot change anything in the cluster.
    async fn controllers_end(&self) -> Result<(), Error> {
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={CONTROLLER}"));
        match self.none_left(&ours, "the control plane", NODE_LIMIT).await {
            Err(Error::Late(..)) => Ok(()),
            ended => ended,
        }
    }

    /// Waits until the supervisors of node proxies have ended, and kills those that have not. Otherwise the deletion of
    /// the namespace would be slow: while pods remain, Kubernetes checks the namespace again only after half of the
    /// pods' grace period (`node.drainSeconds` of the chart, by default a day), or after five minutes.
    async fn supervisors_end(&self) -> Result<(), Error> {
        let ours = ListParams::default().labels(SUPERVISORS);
        match self.none_left(&ours, "a supervisor of node proxies", SUPERVISOR_LIMIT).await {
            Err(Error::Late(..)) => self.forget(SUPERVISORS).await,
            ended => ended,
        }
    }

    /// Waits until the namespace has no pods with this label.
    async fn none_left(
        &self,
        which: &ListParams,
        what: &str,
        limit: Duration,
    ) -> Result<(), Error> {
        let pods = self.pods();
        let begin = Instant::now();
        while !pods.list(which).await.map_err(Error::api(format!("list {what}")))?.items.is_empty()
        {
            pause(begin, limit, || format!("{what} has not ended")).await?;
        }
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn roots(&self, say: &mut impl FnMut(RemovalReport)) -> Result<(), Error> {
        let everywhere: Api<ConfigMap> = Api::all(self.client.clone());
        let ours = ListParams::default().fields(&format!("metadata.name={ROOTS}"));
        let maps = everywhere.list(&ours).await;
        for map in maps.map_err(Error::api(format!("list ConfigMaps {ROOTS}")))? {
            let mut one = self.ours("", "ConfigMap", ROOTS);
            one.namespace = map.namespace();
            self.delete(&one, say).await?;
        }
        Ok(())
    }

    /// The rights to delete these objects, and the rights for the other actions of a removal.
    async fn needs<'a>(
        &self,
        gone: impl Iterator<Item = &'a ObjectReference>,
    ) -> Result<Vec<RequiredRight>, Error> {
        let mut needs = needs::all(&self.namespace, gone);
        if self.there().await?.as_ref().is_some_and(is_ours) {
            needs.push(RequiredRight::new("delete", "", "namespaces").named(&self.namespace));
        }
        Ok(needs)
    }

    async fn there(&self) -> Result<Option<Namespace>, Error> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let found = all.get_opt(&self.namespace).await;
        found.map_err(Error::api(format!("get Namespace {}", self.namespace)))
    }

    /// Deletes the namespace if it was created for Leno.
    async fn namespace(&self, say: &mut impl FnMut(RemovalReport)) -> Result<(), Error> {
        let Some(there) = self.there().await? else { return Ok(()) };
        if !is_ours(&there) {
            say(RemovalReport::NamespaceKept(self.namespace.clone()));
            return Ok(());
        }
        let one =
            ObjectReference { namespace: None, ..self.ours("", "Namespace", &self.namespace) };
        let uid = there.uid().unwrap_or_default();
        if objects::delete_exactly(&self.client, &one, &uid).await? {
            say(RemovalReport::Object(one.said()));
        }
        Ok(())
    }
}

/// The given values with all optional objects enabled: the observer and its readers, the rights to publish roots
/// and to sign certificates of pods, and the admission policies. An earlier installation may have had these
/// objects, and `kubectl apply` keeps objects that newer values lack. An unused right is still a right, and an
/// admission policy still rejects objects.
fn with_all_parts(mut values: Values) -> Values {
    values.observer.enabled = true;
    values.identity.cluster_trust_bundle = true;
    values.identity.pod_certificates = true;
    values.waypoints.enabled = true;
    values.node.report_served = true;
    values.identity.workload_api.volume = WorkloadApiVolume::HostPath;
    if values.observer.readers.is_empty() {
        // Only the name of the role binding matters here, so an empty reader is enough.
        values.observer.readers.push(serde_json::Map::new());
    }
    values
}

/// Whether a namespace was created for Leno.
fn is_ours(namespace: &Namespace) -> bool {
    namespace.labels().get(PART_OF.0).map(String::as_str) == Some(PART_OF.1)
}

/// Waits until the next query is due; an error once the limit has passed.
async fn pause(
    begin: Instant,
    limit: Duration,
    what: impl FnOnce() -> String,
) -> Result<(), Error> {
    if begin.elapsed() > limit {
        return Err(Error::Late(what(), limit.as_secs()));
    }
    tokio::time::sleep(LOOK).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_upgrade_has_left_is_removed() {
        let settings =
            ["observer.enabled=false", "identity.workloadApi.volume=csi"].map(str::to_owned);
        let values = with_all_parts(Values::load(&[], &settings).unwrap());
        let all = named(&render(&values, "leno-system").unwrap()).unwrap();
        let has =
            |kind: &str, name: &str| all.iter().any(|one| one.kind == kind && one.name == name);
        for kind in ["ClusterRole", "ClusterRoleBinding", "StatefulSet", "NetworkPolicy"] {
            assert!(has(kind, "leno-observer"), "{kind}");
        }
        assert!(has("RoleBinding", "leno-observer-reader"));
        assert!(has("ClusterRole", "leno-trust-bundle"));
        assert!(has("ClusterRole", "leno-pod-certificates"));
        for kind in ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"] {
            for name in ["leno-workload-api", "leno-pod-certificates-v2", "leno-agent"] {
                assert!(has(kind, name), "{kind} {name}");
            }
        }
        assert!(has("ClusterRole", "leno-agent-reports"));
        assert!(has("ServiceAccount", "observer"));
    }
}
