//! Cleans all nodes at the same time. On each node the agent ends first; then a pod removes what the agent has set up.
//! For each of the two steps, all nodes together have the time [`limit`]. A node that is not ready, that is too late,
//! or whose pod cannot be created is reported and stays uncleaned ([`RemovalReport::NodeLeft`]).
//!
//! ```text
//!  not ready ─────────────────────────────────────────────► not cleaned
//!  agent ends ──► pod cleans ──► clean
//!      └──────────────┴── too late, or the pod cannot be created ──► not cleaned
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec};
use leno_kube::ResourceExt as _;
use leno_kube::api::{ListParams, ObjectMeta, PostParams};
use tokio::time::{Instant, sleep};

use super::{CLEANS, CLEANUP, LOOK, MeshRemoval, NODE_LIMIT, RemovalReport};
use crate::pods::{phase, unstartable};
use crate::proxy_removal::ProxyRemoval;
use crate::{AGENTS, Error};

/// How much each node adds to the limit of a step: the controllers of a cluster delete and create at least 20 pods
/// a second.
const EACH_NODE: Duration = Duration::from_millis(50);

/// Longest wait for one step on this many nodes.
fn limit(nodes: usize) -> Duration {
    NODE_LIMIT.saturating_add(EACH_NODE.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)))
}

/// The operations on nodes that [`clean`] uses.
pub(super) trait Cleaner {
    /// Checks that the removal may continue. It may not if another removal or a new installation has replaced it.
    async fn holds(&self) -> Result<(), Error>;
    /// The nodes that have a pod of the agent.
    async fn agents(&self) -> Result<BTreeSet<String>, Error>;
    /// Creates the pod that cleans a node, unless it exists.
    async fn start(&self, node: &str) -> Result<(), Error>;
    /// The phases of the cleaning pods, by node.
    async fn phases(&self) -> Result<BTreeMap<String, String>, Error>;
}

/// Cleans nodes, and reports the result for each.
///
/// # Errors
/// The API server does not answer, or the removal may not continue.
pub(super) async fn clean(
    nodes: &[Node],
    on_nodes: &impl Cleaner,
    say: &mut impl FnMut(RemovalReport),
) -> Result<(), Error> {
    let (ready, others): (Vec<&Node>, Vec<&Node>) = nodes.iter().partition(|node| is_ready(node));
    for node in others {
        say(RemovalReport::NodeLeft(node.name_any(), Error::NotReady.said()));
    }
    let mut waiting: BTreeSet<String> = ready.iter().map(|node| node.name_any()).collect();
    let mut begun = BTreeSet::new();
    let limit = limit(nodes.len());
    let mut until = Instant::now() + limit;
    while !waiting.is_empty() {
        // After the deadline, the state is queried once more before giving up.
        let late = Instant::now() >= until;
        on_nodes.holds().await?;
        let agents = on_nodes.agents().await?;
        for node in waiting.extract_if(.., |node| !agents.contains(node)) {
            on_nodes.holds().await?;
            match on_nodes.start(&node).await {
                Ok(()) => begun.extend([node]),
                Err(reason) => say(RemovalReport::NodeLeft(node, reason.said())),
            }
        }
        finish(&mut begun, on_nodes, say).await?;
        if late {
            break;
        }
        sleep(LOOK).await;
    }
    let late = |what: String| Error::Late(what, limit.as_secs()).said();
    for node in waiting {
        say(RemovalReport::NodeLeft(node, late("its agent has not ended".to_owned())));
    }
    until = Instant::now() + limit;
    while !begun.is_empty() {
        let is_late = Instant::now() >= until;
        on_nodes.holds().await?;
        let phases = finish(&mut begun, on_nodes, say).await?;
        if is_late {
            for node in begun {
                let phase = phases.get(&node).map_or("gone", String::as_str);
                let what = late(format!("Pod {CLEANS}{node} is {phase}"));
                say(RemovalReport::NodeLeft(node, what));
            }
            break;
        }
        sleep(LOOK).await;
    }
    Ok(())
}

/// Reports the nodes that are clean. Creates the pods of the other nodes again if another client has deleted them.
/// Returns the phases of the pods.
async fn finish(
    begun: &mut BTreeSet<String>,
    on_nodes: &impl Cleaner,
    say: &mut impl FnMut(RemovalReport),
) -> Result<BTreeMap<String, String>, Error> {
    if begun.is_empty() {
        return Ok(BTreeMap::new());
    }
    let phases = on_nodes.phases().await?;
    let is_clean = |node: &String| phases.get(node).is_some_and(|phase| phase == "Succeeded");
    begun.extract_if(.., |node| is_clean(node)).for_each(|node| say(RemovalReport::Node(node)));
    // Another run of the removal, which this run has replaced, may still delete these pods: it may not have noticed yet
    // that it was replaced.
    let missing: Vec<String> = begun.extract_if(.., |node| !phases.contains_key(node)).collect();
    for node in missing {
        on_nodes.holds().await?;
        match on_nodes.start(&node).await {
            Ok(()) => drop(begun.insert(node)),
            Err(reason) => say(RemovalReport::NodeLeft(node, reason.said())),
        }
    }
    Ok(phases)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

/// The [`Cleaner`] of a real cluster: works through the Kubernetes API.
pub(super) struct ClusterNodes<'a> {
    pub(super) removal: &'a MeshRemoval,
    /// The specification of the agents' pods.
    pub(super) agent: &'a PodSpec,
    pub(super) proxies: &'a ProxyRemoval<'a>,
}

impl Cleaner for ClusterNodes<'_> {
    async fn holds(&self) -> Result<(), Error> {
        self.proxies.holds().await
    }

    async fn agents(&self) -> Result<BTreeSet<String>, Error> {
        let which = ListParams::default().labels(AGENTS);
        let pods =
            self.removal.pods().list(&which).await.map_err(Error::api("list node agents"))?;
        Ok(pods.items.into_iter().filter_map(|pod| pod.spec?.node_name).collect())
    }

    async fn start(&self, node: &str) -> Result<(), Error> {
        let mut spec = self.agent.clone();
        spec.node_name = Some(node.to_owned());
        spec.restart_policy = Some("OnFailure".to_owned());
        for one in &mut spec.containers {
            one.args.get_or_insert_default().push("cleanup".to_owned());
            (one.liveness_probe, one.readiness_probe, one.startup_probe) = (None, None, None);
        }
        let name = format!("{CLEANS}{node}");
        let labels = BTreeMap::from([(CLEANUP.0.to_owned(), CLEANUP.1.to_owned())]);
        let metadata =
            ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..ObjectMeta::default() };
        let pod = Pod { metadata, spec: Some(spec), status: None };
        match self.removal.pods().create(&PostParams::default(), &pod).await {
            Ok(_) => Ok(()),
            // The pod belongs to a removal that this one has replaced; it cleans the node, too.
            Err(leno_kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(Error::api(format!("create Pod {name}"))(error)),
        }
    }

    async fn phases(&self) -> Result<BTreeMap<String, String>, Error> {
        let which = ListParams::default().labels(&format!("{}={}", CLEANUP.0, CLEANUP.1));
        let pods = self.removal.pods().list(&which).await;
        let pods = pods.map_err(Error::api("list the pods that clean"))?.items;
        let of = |pod: &Pod| {
            let node = pod.name_any().strip_prefix(CLEANS)?.to_owned();
            let why = unstartable(pod).and_then(|(_, why)| why.reason.as_deref());
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            Some((node, phase(pod).to_owned() + &why))
        };
        Ok(pods.iter().filter_map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// A [`Cleaner`] without a cluster. The prefix of a node's name says what goes wrong there: on `agent-*` the agent
    /// never ends, on `pod-*` the cleaning pod never ends, on `refused-*` the pod cannot be created. On `good-*`
    /// nothing does.
    #[derive(Default)]
    struct Nodes {
        made: RefCell<BTreeSet<String>>,
        interrupted: bool,
        /// How many more times another client deletes all pods.
        removals: Cell<usize>,
    }

    fn node(name: String, ready: &str) -> Node {
        let text = format!(
            r#"{{"metadata":{{"name":"{name}"}},
                "status":{{"conditions":[{{"type":"Ready","status":"{ready}"}}]}}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn all(count: usize) -> Vec<Node> {
        let kinds = ["agent", "pod", "refused", "good"];
        let name = |number: usize| format!("{}-{number}", kinds[number % kinds.len()]);
        (0..count).map(|number| node(name(number), "True")).collect()
    }

    impl Cleaner for Nodes {
        async fn holds(&self) -> Result<(), Error> {
            match self.interrupted && !self.made.borrow().is_empty() {
                true => Err(Error::Installed("the injector".to_owned())),
                false => Ok(()),
            }
        }

        async fn agents(&self) -> Result<BTreeSet<String>, Error> {
            Ok(all(100)
                .iter()
                .map(Node::name_any)
                .filter(|name| name.starts_with("agent"))
                .collect())
        }

        async fn start(&self, node: &str) -> Result<(), Error> {
            if node.starts_with("refused") {
                return Err(Error::Unknown("create".to_owned()));
            }
            self.made.borrow_mut().insert(node.to_owned());
            Ok(())
        }

        async fn phases(&self) -> Result<BTreeMap<String, String>, Error> {
            if let Some(left) = self.removals.get().checked_sub(1) {
                self.removals.set(left);
                self.made.borrow_mut().clear();
            }
            let phase =
                |name: &String| if name.starts_with("pod") { "Pending" } else { "Succeeded" };
            let made = self.made.borrow();
            Ok(made.iter().map(|name| (name.clone(), phase(name).to_owned())).collect())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_do_not_come_clean_are_waited_for_together() {
        let mut nodes = all(100);
        nodes.push(node("away".to_owned(), "Unknown"));
        let (begin, mut clean_at) = (Instant::now(), None);
        let (mut left, mut cleaned) = (BTreeMap::new(), 0);
        clean(&nodes, &Nodes::default(), &mut |said| match said {
            RemovalReport::Node(name) => {
                assert!(name.starts_with("good"), "{name}");
                cleaned += 1;
                clean_at = Some(Instant::now());
            }
            RemovalReport::NodeLeft(name, why) => drop(left.insert(name, why)),
            other => panic!("{other:?}"),
        })
        .await
        .unwrap();
        assert_eq!((cleaned, left.len()), (25, 76));
        assert_eq!(clean_at, Some(begin), "a node does not wait for another node");
        assert!(begin.elapsed() <= (limit(nodes.len()) + LOOK) * 2, "{:?}", begin.elapsed());
        assert_eq!(left["agent-0"], "its agent has not ended: waited for 65 s");
        assert_eq!(left["pod-1"], "Pod leno-cleanup-pod-1 is Pending: waited for 65 s");
        assert_eq!(limit(5_000), Duration::from_secs(310), "the bound grows with the cluster");
        assert!(left["refused-2"].starts_with("create: "), "{}", left["refused-2"]);
        assert_eq!(left["away"], "it is not ready");
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_that_another_client_removes_is_made_again() {
        let nodes = Nodes { removals: Cell::new(2), ..Nodes::default() };
        let good = [node("good-3".to_owned(), "True"), node("good-7".to_owned(), "True")];
        let mut cleaned = BTreeSet::new();
        clean(&good, &nodes, &mut |said| match said {
            RemovalReport::Node(name) => assert!(cleaned.insert(name)),
            other => panic!("{other:?}"),
        })
        .await
        .unwrap();
        assert_eq!(cleaned, ["good-3", "good-7"].map(str::to_owned).into());
        assert_eq!(nodes.removals.get(), 0);
    }

    #[tokio::test]
    async fn no_node_is_cleaned_any_more_where_cleaning_may_not_go_on() {
        let nodes = Nodes { interrupted: true, ..Nodes::default() };
        let done = clean(&all(100), &nodes, &mut |_| {}).await;
        assert!(matches!(done, Err(Error::Installed(_))), "{done:?}");
        assert_eq!(nodes.made.borrow().len(), 1);
    }
}
