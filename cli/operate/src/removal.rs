//! An installation goes: first what stands in the way of pods, then pods leave the mesh, then what is in the
//! nodes goes, then the rest. Nothing goes before all of it is allowed, and nothing more once somebody
//! installs the mesh beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod};
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Client, ResourceExt as _};
use leno_charts::{INSTALLED, Values, render};
use leno_types::Removal as Step;

use crate::leaving::Leaving;
use crate::objects::{self, Named, named};
use crate::pods::{has_run, unstartable};
use crate::rights::{Need, unmet};
use crate::{AGENTS, Error, PodName, installed};

mod needs;
mod nodes;

/// The agents.
const AGENT: &str = "leno-agent";
/// The ConfigMap of roots that the control plane keeps in every namespace while it runs.
const ROOTS: &str = "leno-roots";
/// What the control plane runs as.
pub(crate) const CONTROLLER: &str = "leno-controller";
/// The label by which a namespace says that it was made for Leno.
const PART_OF: (&str, &str) = ("app.kubernetes.io/part-of", "leno");
/// The label of the pods that clean, and how their names begin: a node's follows.
const CLEANUP: (&str, &str) = ("leno.dev/task", "cleanup");
const CLEANS: &str = "leno-cleanup-";
/// Longest wait for one step on all nodes: its kubelet ends and starts a pod within seconds.
const NODE_LIMIT: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(300);

/// What is said while it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// An object is gone.
    Object(String),
    /// Nothing of the mesh is left in the kernel, the CNI configuration and the folders of a node.
    Node(String),
    /// A node did not say that it is clean, and why.
    NodeLeft(String, String),
    /// There is no control plane that could tell the pods that the mesh goes: requests between them may fail
    /// until they are restarted.
    Unannounced,
    /// A pod has not been told that the mesh goes: requests that it sends or gets meanwhile may fail.
    Untold(PodName),
    /// Pods that still have a proxy, which goes with them, by their namespaces.
    Proxies(BTreeMap<String, usize>),
    /// The namespace stays: it was not made for Leno.
    NamespaceKept(String),
}

/// Takes an installation away.
pub struct Removal {
    client: Client,
    namespace: String,
    /// Whether our definitions stay, and with them everybody's policies.
    keep_definitions: bool,
    /// Whether agents may have run.
    had_agents: bool,
    /// Whether the pods of the agents that are there now are all that there ever were.
    fresh: bool,
}

impl Removal {
    /// Of what is installed in `namespace`.
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

    /// Of an installation that was given up before its agents were made: nothing of it is in any node, unless
    /// there are agents all the same.
    #[must_use]
    pub fn without_agents(self) -> Self {
        Self { had_agents: false, ..self }
    }

    /// Of an installation that whoever asks has made a moment ago and whose agents have not become ready: nothing
    /// is in the nodes where none has begun. Of any other nobody can say so: an agent's pod that cannot begin
    /// may be in the place of one that ran, as after an upgrade to an image that is nowhere.
    #[must_use]
    pub fn fresh(self) -> Self {
        Self { fresh: true, ..self }
    }

    /// What whoever asks may not do of all that it takes to apply these documents in the namespace, and to take them
    /// away again, in words.
    ///
    /// # Errors
    /// When the API server does not answer, or the text is no documents.
    pub async fn lacking_with(&self, documents: &str) -> Result<Vec<String>, Error> {
        let all = named(documents)?;
        let mut needs = needs::applied(all.iter());
        needs.extend(needs::all(&self.namespace, all.iter()));
        let mut lacking = unmet(&self.client, needs).await?;
        lacking.sort();
        lacking.dedup();
        Ok(lacking)
    }

    /// Removes everything, and says each step. What is not there any more is passed over, and what says
    /// that something is installed goes last, so that it can be done again after it was interrupted.
    ///
    /// # Errors
    /// Where nothing is installed in the namespace, when the API server does not do it, when something does
    /// not go in time, and when somebody installs the mesh meanwhile. Where a right is missing, before anything
    /// is changed. A node that cannot be cleaned is said, and is no error.
    pub async fn run(&self, mut say: impl FnMut(Removed)) -> Result<(), Error> {
        let there = installed(&self.client, &self.namespace).await?;
        let there = there.ok_or_else(|| Error::Nothing(self.namespace.clone()))?;
        let values = Values::load(&[("what was told".to_owned(), there.values)], &[]);
        // One of another version may have told what is not known here.
        let text = render(&values.unwrap_or_else(|_| Values::defaults()), &self.namespace)?;
        let mut all = named(&text)?;
        all.reverse();
        let (webhooks, mut rest): (Vec<Named>, Vec<Named>) =
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
        let mut leaving = Leaving::new(&self.client, &self.namespace);
        let can_leave = leaving.can().await?;
        let before: &[Step] = if can_leave { &[Step::Permissive, Step::Plaintext] } else { &[] };
        if !can_leave {
            if leaving.said().await? < Step::Released {
                say(Removed::Unannounced);
            }
            leaving.begin().await?;
        }
        for step in before {
            leaving.take(*step).await?.into_iter().for_each(|pod| say(Removed::Untold(pod)));
        }
        leaving.holds().await?;
        self.nodes(&text, &leaving, &mut say).await?;
        if can_leave {
            let untold = leaving.take(Step::Released).await?;
            untold.into_iter().for_each(|pod| say(Removed::Untold(pod)));
        }
        leaving.holds().await?;
        // Its leader puts back what goes next.
        self.delete(&self.ours("apps", "Deployment", CONTROLLER), &mut say).await?;
        self.controllers_end().await?;
        self.roots(&mut say).await?;
        // The webhooks once more: those that came in the last moment would be asked of nobody.
        for one in webhooks.iter().chain(&rest) {
            self.delete(one, &mut say).await?;
        }
        say(Removed::Proxies(leaving.left().await?));
        // Another that has begun meanwhile finds what says so, and that something is installed.
        leaving.is_latest().await?;
        leaving.unsay().await?;
        self.delete(&self.ours("", "ConfigMap", INSTALLED), &mut say).await?;
        self.namespace(&mut say).await
    }

    fn ours(&self, group: &str, kind: &str, name: &str) -> Named {
        Named {
            group: group.to_owned(),
            version: "v1".to_owned(),
            kind: kind.to_owned(),
            namespace: Some(self.namespace.clone()),
            name: name.to_owned(),
        }
    }

    async fn delete(&self, one: &Named, say: &mut impl FnMut(Removed)) -> Result<(), Error> {
        if objects::delete(&self.client, one).await? {
            say(Removed::Object(one.said()));
        }
        Ok(())
    }

    /// Ends the agents, then has each node forget them; stops where somebody installs the mesh beside.
    async fn nodes(
        &self,
        text: &str,
        leaving: &Leaving<'_>,
        say: &mut impl FnMut(Removed),
    ) -> Result<(), Error> {
        let agents: Api<DaemonSet> = Api::namespaced(self.client.clone(), &self.namespace);
        let there = agents.get_opt(AGENT).await;
        let there = there.map_err(Error::api(format!("get DaemonSet {AGENT}")))?;
        if there.is_none() && !self.had_agents {
            return Ok(());
        }
        let idle = if self.fresh { self.never_begun().await? } else { BTreeSet::new() };
        // Gone already where a removal was interrupted; the nodes may not be clean all the same.
        let agent = there.or_else(|| objects::find(text, "DaemonSet", AGENT));
        let Some(spec) = agent.and_then(|agent| agent.spec?.template.spec) else { return Ok(()) };
        self.delete(&self.ours("apps", "DaemonSet", AGENT), say).await?;
        let nodes: Api<Node> = Api::all(self.client.clone());
        let nodes = nodes.list(&ListParams::default()).await.map_err(Error::api("list nodes"))?;
        let wanted = spec.node_selector.clone().unwrap_or_default();
        let nodes: Vec<Node> =
            nodes.items.into_iter().filter(|node| is_in(node, &wanted)).collect();
        // Those of a removal that was interrupted may have ended before a new installation began.
        let cleanup = format!("{}={}", CLEANUP.0, CLEANUP.1);
        leaving.is_latest().await?;
        self.forget(&cleanup).await?;
        let earlier = ListParams::default().labels(&cleanup);
        self.none_left(&earlier, "a pod that cleaned earlier").await?;
        // Nothing is in those whose agent has never begun, where that is known.
        let (untouched, nodes): (Vec<Node>, Vec<Node>) =
            nodes.into_iter().partition(|node| idle.contains(&node.name_any()));
        untouched.iter().for_each(|node| say(Removed::Node(node.name_any())));
        let on_nodes = nodes::OnNodes { removal: self, agent: &spec, leaving };
        let cleaned = nodes::clean(&nodes, &on_nodes, say);
        match cleaned.await {
            // They are that one's by now.
            Err(error @ Error::Another(_)) => return Err(error),
            cleaned => {
                leaving.is_latest().await?;
                self.forget(&cleanup).await?;
                cleaned?;
            }
        }
        self.forget(AGENTS).await
    }

    /// The nodes whose agent's pod cannot begin and never has, as with an image that is not there: nothing is in
    /// them, unless other pods were before it.
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

    /// Removes pods at once, also those on nodes that do not answer.
    async fn forget(&self, label: &str) -> Result<(), Error> {
        let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let which = ListParams::default().labels(label);
        let done = self.pods().delete_collection(&at_once, &which).await;
        done.map_err(Error::api(format!("delete the pods of {label}")))?;
        Ok(())
    }

    /// Waits until the control plane's pods have ended. One on a node that does not answer is not waited for
    /// longer: it does nothing there that could be seen here.
    async fn controllers_end(&self) -> Result<(), Error> {
        let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={CONTROLLER}"));
        match self.none_left(&ours, "the control plane").await {
            Err(Error::Late(..)) => Ok(()),
            ended => ended,
        }
    }

    /// Waits until there are no such pods in the namespace.
    async fn none_left(&self, which: &ListParams, what: &str) -> Result<(), Error> {
        let pods = self.pods();
        let begin = Instant::now();
        while !pods.list(which).await.map_err(Error::api(format!("list {what}")))?.items.is_empty()
        {
            pause(begin, NODE_LIMIT, || format!("{what} does not end")).await?;
        }
        Ok(())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn roots(&self, say: &mut impl FnMut(Removed)) -> Result<(), Error> {
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

    /// What has to be allowed for these to go, and what is done besides.
    async fn needs<'a>(&self, gone: impl Iterator<Item = &'a Named>) -> Result<Vec<Need>, Error> {
        let mut needs = needs::all(&self.namespace, gone);
        if self.there().await?.as_ref().is_some_and(is_ours) {
            needs.push(Need::new("delete", "", "namespaces").named(&self.namespace));
        }
        Ok(needs)
    }

    async fn there(&self) -> Result<Option<Namespace>, Error> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let found = all.get_opt(&self.namespace).await;
        found.map_err(Error::api(format!("get Namespace {}", self.namespace)))
    }

    /// Removes the namespace, unless somebody else made it.
    async fn namespace(&self, say: &mut impl FnMut(Removed)) -> Result<(), Error> {
        let Some(there) = self.there().await? else { return Ok(()) };
        if !is_ours(&there) {
            say(Removed::NamespaceKept(self.namespace.clone()));
            return Ok(());
        }
        let one = Named { namespace: None, ..self.ours("", "Namespace", &self.namespace) };
        let uid = there.uid().unwrap_or_default();
        if objects::delete_exactly(&self.client, &one, &uid).await? {
            say(Removed::Object(one.said()));
        }
        Ok(())
    }
}

/// Whether a namespace was made for Leno.
fn is_ours(namespace: &Namespace) -> bool {
    namespace.labels().get(PART_OF.0).map(String::as_str) == Some(PART_OF.1)
}

fn is_in(node: &Node, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| node.labels().get(key) == Some(value))
}

/// Waits for the next look, until the limit.
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
