//! Accounts for the connections of the node's pods in the kernel, and has the metrics of them.
//!
//! A pod is enrolled when its sandbox is made, before any of its containers starts; one that ran before, when it is
//! checked. What an earlier agent enrolled stays so until this one has seen all pods, so that a restart leaves no gap.
//! What the kernel refuses costs metrics, never a pod.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use leno_flows::{
    CpuBudget, EarlierMaps, FlowConnection, FlowMember, FlowMetricsSource, FlowSizes, FlowView,
    Ledger, LedgerSettings, Namespace,
};
use leno_program::chain;
use leno_types::ports;
use serde::Serialize;

use crate::host::NetnsId;
use crate::metrics::lock;
use crate::pod::Pod;

/// The names under which agents account for flows.
const PREFIX: &str = "node-";
const SUFFIX: &str = ".flows";
/// The longest part of a node's name in it: a name of pins is 200 bytes at most.
const MAX_NODE: usize = 180;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Flows(Option<Node>);

/// Most flows of a page: some 7 MB of JSON.
const MAX_SHOWN: usize = 10_000;

/// The flows of this node, as `leno flows --node` reads them.
#[derive(Debug, Serialize)]
struct FlowsPage {
    flows: Vec<FlowConnection>,
    /// Flows that the table lacks because it was full.
    missing: u64,
    /// Flows that this page lacks: those that have not changed for longest.
    left_out: usize,
}

/// What is accounted for on this node.
#[derive(Debug)]
struct Node {
    /// The name under which the programs are pinned.
    owner: String,
    ledger: Ledger,
    /// Where the connections of pods that say nothing are read.
    default: FlowMetricsSource,
    /// By uid.
    pods: Mutex<HashMap<String, EnrolledPod>>,
    /// The control groups of the pods in which node proxies run, by uid.
    node_proxies: Mutex<BTreeMap<String, PathBuf>>,
    /// Whether what an earlier agent enrolled has been sorted out.
    settled: Mutex<bool>,
}

/// A pod that was enrolled, or that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EnrolledPod {
    netns: PathBuf,
    id: NetnsId,
    /// The pod's control group of version 2.
    cgroup: Option<PathBuf>,
    /// Where its proxy counts its requests: one of its own, or node proxies.
    proxies: Vec<PathBuf>,
    workload: String,
    source: FlowMetricsSource,
    budget: Option<CpuBudget>,
    /// Why it is not accounted for, or not as it asks to be.
    failed: Option<String>,
}

impl Flows {
    /// Attaches the programs to the node's control groups of version 2. Without the kernel's consent nothing is
    /// accounted for, which the log says.
    pub(crate) fn start(node: &str, cgroup2: Option<&Path>, settings: LedgerSettings) -> Self {
        if settings.source == FlowMetricsSource::Off {
            match remove() {
                Ok(removed) if removed.is_empty() => tracing::info!("flows are not accounted for"),
                Ok(_) => tracing::info!("flows are not accounted for any more"),
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(error, "programs that account for flows cannot be removed");
                }
            }
            return Self(None);
        }
        let Some(cgroup) = cgroup2 else {
            tracing::warn!(
                "flows are not accounted for: the node has no control groups of version 2"
            );
            return Self(None);
        };
        let owner = owner(node);
        match Ledger::resume((&owner, cgroup), settings, |line| tracing::warn!("{line}")) {
            Ok((ledger, earlier)) => {
                match earlier {
                    EarlierMaps::New => tracing::info!("flows are accounted for"),
                    EarlierMaps::Kept => tracing::info!("flows: the counters go on"),
                    EarlierMaps::Replaced => {
                        tracing::warn!("flows: counters of another version were dropped");
                    }
                }
                let (default, pods, node_proxies) =
                    (settings.source, Mutex::default(), Mutex::default());
                let settled = Mutex::new(false);
                Self(Some(Node { owner, ledger, default, pods, node_proxies, settled }))
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "flows are not accounted for");
                Self(None)
            }
        }
    }

    /// Accounts for a pod as it asks; `netns` finds its network namespace, `cgroup` its control group of version 2.
    pub(crate) fn follow(
        &self,
        pod: &Pod,
        netns: impl FnOnce() -> Option<(PathBuf, NetnsId)>,
        cgroup: impl Fn() -> Option<PathBuf>,
    ) {
        let Some(node) = &self.0 else { return };
        if pod.has_node_proxies
            && let Some(cgroup) = cgroup()
        {
            lock(&node.node_proxies).insert(pod.uid.clone(), cgroup);
        }
        // Those without a proxy only if they say so; a pod that has ended leaves with its namespace.
        if !pod.own_network || pod.ended || !(pod.meshed || pod.flows.is_some()) {
            return;
        }
        let known = lock(&node.pods).get(&pod.uid).cloned();
        let place = known.as_ref().map(|known| (known.netns.clone(), known.id));
        let there = place.filter(|(netns, id)| NetnsId::of(netns) == Some(*id));
        // Without a process nothing shows the namespace; the plugin's call will name it.
        let Some((netns, id)) = there.or_else(netns) else { return };
        let source = match &pod.flows {
            Some(Ok(source)) => *source,
            Some(Err(_)) | None => node.default,
        };
        let cgroup = known.as_ref().and_then(|known| known.cgroup.clone()).or_else(cgroup);
        let proxies = node.proxies_of(pod, cgroup.as_ref());
        let workload = pod.workload.clone();
        let budget = pod.flow_budget.as_ref().and_then(|budget| budget.as_ref().ok()).copied();
        let wanted =
            EnrolledPod { netns, id, cgroup, proxies, workload, source, budget, failed: None };
        // One that failed is tried again in each round.
        if known.as_ref() == Some(&wanted) {
            return;
        }
        let failed = node.enrol(pod, &wanted).err();
        if failed.is_some() && failed != known.and_then(|known| known.failed) {
            let name = format!("{}/{}", pod.namespace, pod.name);
            let why = failed.as_deref().unwrap_or_default();
            tracing::warn!(pod = name, "its flows are not accounted for as it asks: {why}");
        }
        lock(&node.pods).insert(pod.uid.clone(), EnrolledPod { failed, ..wanted });
    }

    /// One round: removes pods whose namespaces are gone, reads the counters, keeps the budget.
    pub(crate) fn round(&self) {
        let Some(node) = &self.0 else { return };
        lock(&node.node_proxies).retain(|_, cgroup| cgroup.is_dir());
        let mut gone = Vec::new();
        lock(&node.pods).retain(|uid, one| {
            let lives = NetnsId::of(&one.netns) == Some(one.id);
            gone.extend((!lives).then(|| uid.clone()));
            lives
        });
        for uid in gone {
            node.ledger.change(|accounts| accounts.withdraw(&uid));
        }
        node.ledger.round();
    }

    /// All pods that ran when the agent started have been checked: what an earlier agent enrolled besides is over.
    pub(crate) fn settle(&self) {
        let Some(node) = &self.0 else { return };
        let mut settled = lock(&node.settled);
        if !*settled {
            node.ledger.change(|accounts| accounts.withdraw_unknown());
            *settled = true;
        }
    }

    /// Private addresses of peers without a name, as the last reading found them.
    pub(crate) fn strangers(&self) -> Vec<IpAddr> {
        self.0.as_ref().map(|node| node.ledger.strangers()).unwrap_or_default()
    }

    /// Names a peer on another node, or forgets its name.
    pub(crate) fn name_peer(&self, ip: IpAddr, name: Option<(String, String)>) {
        if let Some(node) = &self.0 {
            node.ledger.change(|accounts| accounts.name_peer(ip, name));
        }
    }

    /// What is accounted for on this node, as `of` writes it; `None` if nothing is.
    pub(crate) fn page(
        &self,
        of: impl FnOnce(&FlowView) -> Result<String, leno_flows::Error>,
    ) -> Option<Result<String, leno_flows::Error>> {
        let node = self.0.as_ref()?;
        // The rows of proxies are brought up to date first.
        let _metrics = node.ledger.metrics();
        match FlowView::open(&node.owner) {
            Ok(view) => Some(of(&view?)),
            Err(error) => Some(Err(error)),
        }
    }

    /// Has the table and the ring of changes these sizes.
    pub(crate) fn resize(&self, sizes: FlowSizes) {
        if let Some(node) = &self.0 {
            node.ledger.resize(sizes);
        }
    }

    /// The metrics in Prometheus' text format; empty if nothing is accounted for.
    pub(crate) fn metrics(&self) -> String {
        self.0.as_ref().map(|node| node.ledger.metrics()).unwrap_or_default()
    }
}

impl Node {
    /// Where processes count that may be the proxy of a pod. In node mode the pod's own group has none of them, and tells the pod
    /// from one without a proxy.
    fn proxies_of(&self, pod: &Pod, cgroup: Option<&PathBuf>) -> Vec<PathBuf> {
        let own = cgroup.filter(|_| pod.meshed);
        let node_proxies = lock(&self.node_proxies);
        let shared = node_proxies.values().filter(|_| pod.group.is_some());
        own.into_iter().chain(shared).cloned().collect()
    }

    fn enrol(&self, pod: &Pod, wanted: &EnrolledPod) -> Result<(), String> {
        let seen = Namespace::read(&wanted.netns).map_err(|error| chain(&error))?;
        let member = FlowMember {
            namespace: pod.namespace.clone(),
            workload: wanted.workload.clone(),
            netns: wanted.netns.clone(),
            addresses: seen.addresses,
            proxy_uid: ports::PROXY_UID,
            proxies: wanted.proxies.clone(),
            source: wanted.source,
            budget: wanted.budget,
            port: seen.port,
        };
        self.ledger.try_change(|accounts| accounts.enrol(&pod.uid, member))?;
        match (&pod.flows, &pod.flow_budget) {
            (Some(Err(unknown)), _) => Err(format!("leno.dev/flow-metrics: {unknown}")),
            (_, Some(Err(unknown))) => Err(format!("leno.dev/flow-cpu-budget: {unknown}")),
            _ => Ok(()),
        }
    }
}

/// The flows, those that have not changed for longest left out where there are too many.
pub(crate) fn listed(view: &FlowView) -> Result<String, leno_flows::Error> {
    let (flows, missing, left_out) = view.list_latest(MAX_SHOWN)?;
    Ok(json(&FlowsPage { flows, missing, left_out }))
}

pub(crate) fn json(rows: &impl Serialize) -> String {
    serde_json::to_string(rows).expect("names and numbers are JSON") + "\n"
}

/// Removes the programs of agents, and what they have counted; returns their names.
pub(crate) fn remove() -> Result<Vec<String>, leno_capture::Error> {
    leno_capture::prune(|name| !(name.starts_with(PREFIX) && name.ends_with(SUFFIX)))
}

/// The name under which the flows of a node are accounted for. No captured pod has it.
fn owner(node: &str) -> String {
    let node: String = node.chars().take(MAX_NODE).collect();
    format!("{PREFIX}{node}{SUFFIX}")
}

#[cfg(test)]
mod tests;
