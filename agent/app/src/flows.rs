//! Accounts for the connections of the node's pods in the kernel, and exports metrics of them.
//!
//! A pod is enrolled when its sandbox is created, before any of its containers starts: from then on, the kernel
//! accounts for its connections. A pod that ran before is enrolled when it is checked. Pods that an earlier agent
//! enrolled stay enrolled until this agent has seen all pods, so a restart leaves no gap. If the kernel refuses a
//! program or a map, pods still run, but metrics are missing.

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

/// The prefix of the name of a node's flow accounts.
const PREFIX: &str = "node-";
const SUFFIX: &str = ".flows";
/// Longest part of the node's name in that name. The name of a pin may have 200 bytes.
const MAX_NODE: usize = 180;

/// The flow accounts of a node; `None` if the kernel has refused the programs.
#[derive(Debug, Default)]
pub(crate) struct Flows(Option<Node>);

/// Most flows on a page, which take about 7 MB of JSON.
const MAX_SHOWN: usize = 10_000;

/// The flows of this node, in the form that `leno flows --node` reads.
#[derive(Debug, Serialize)]
struct FlowsPage {
    flows: Vec<FlowConnection>,
    /// How many flows are not in the table because it was full.
    missing: u64,
    /// How many flows this page leaves out, which are those that have not changed for the longest time.
    left_out: usize,
}

/// The accounts and the enrolled pods of this node.
#[derive(Debug)]
struct Node {
    /// The name under which the programs are pinned.
    owner: String,
    ledger: Ledger,
    /// The source of flow metrics for pods whose annotations set none.
    default: FlowMetricsSource,
    /// The enrolled pods, by uid.
    pods: Mutex<HashMap<String, EnrolledPod>>,
    /// The control groups of the pods in which node proxies run, by uid.
    node_proxies: Mutex<BTreeMap<String, PathBuf>>,
    /// Whether the pods of an earlier agent that no longer exist were withdrawn.
    settled: Mutex<bool>,
}

/// A pod that was enrolled, or whose enrolment failed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EnrolledPod {
    netns: PathBuf,
    id: NetnsId,
    /// The pod's control group of version 2.
    cgroup: Option<PathBuf>,
    /// The control groups of its proxy: the pod's own, or those of node proxies.
    proxies: Vec<PathBuf>,
    workload: String,
    source: FlowMetricsSource,
    budget: Option<CpuBudget>,
    /// Why its connections are not accounted for as its annotations request.
    failed: Option<String>,
}

impl Flows {
    /// Attaches the programs to the node's control groups of version 2. If the kernel refuses them, connections
    /// are not accounted for, and the log has the reason.
    pub(crate) fn start(node: &str, cgroup2: Option<&Path>, settings: LedgerSettings) -> Self {
        if settings.source == FlowMetricsSource::Off {
            match remove() {
                Ok(removed) if removed.is_empty() => tracing::info!("flows are not accounted for"),
                Ok(_) => tracing::info!("flow metrics have been turned off"),
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(error, "the programs of flow metrics cannot be removed");
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
                    EarlierMaps::New => tracing::info!("flow metrics are on"),
                    EarlierMaps::Kept => {
                        tracing::info!("flows: the counters of the earlier agent continue")
                    }
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

    /// Enrols a pod as its annotations request. `netns` finds its network namespace, and `cgroup` its control
    /// group of version 2.
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
        // A pod without a proxy is only enrolled if its annotations request it. A pod that has ended is withdrawn
        // together with its namespace.
        if !pod.own_network || pod.ended || !(pod.meshed || pod.flows.is_some()) {
            return;
        }
        let known = lock(&node.pods).get(&pod.uid).cloned();
        let place = known.as_ref().map(|known| (known.netns.clone(), known.id));
        let there = place.filter(|(netns, id)| NetnsId::of(netns) == Some(*id));
        // Without a process, the namespace cannot be found. The CNI plugin's call will name it.
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
        // An enrolment that has failed is repeated in each round.
        if known.as_ref() == Some(&wanted) {
            return;
        }
        let failed = node.enrol(pod, &wanted).err();
        if failed.is_some() && failed != known.and_then(|known| known.failed) {
            let name = format!("{}/{}", pod.namespace, pod.name);
            let why = failed.as_deref().unwrap_or_default();
            tracing::warn!(pod = name, "the flow metrics of a pod differ from its settings: {why}");
        }
        lock(&node.pods).insert(pod.uid.clone(), EnrolledPod { failed, ..wanted });
    }

    /// Runs one round: withdraws pods whose namespaces no longer exist, reads the counters, and enforces the
    /// budget.
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

    /// Withdraws pods that only an earlier agent has enrolled, because they have ended. The caller calls this when
    /// all pods that ran when the agent started were checked.
    pub(crate) fn settle(&self) {
        let Some(node) = &self.0 else { return };
        let mut settled = lock(&node.settled);
        if !*settled {
            node.ledger.change(|accounts| accounts.withdraw_unknown());
            *settled = true;
        }
    }

    /// The private addresses of peers without a name, according to the last reading.
    pub(crate) fn strangers(&self) -> Vec<IpAddr> {
        self.0.as_ref().map(|node| node.ledger.strangers()).unwrap_or_default()
    }

    /// Sets the name of a peer on another node, or removes it.
    pub(crate) fn name_peer(&self, ip: IpAddr, name: Option<(String, String)>) {
        if let Some(node) = &self.0 {
            node.ledger.change(|accounts| accounts.name_peer(ip, name));
        }
    }

    /// A page about this node, as rendered by `of`; `None` if connections are not accounted for.
    pub(crate) fn page(
        &self,
        of: impl FnOnce(&FlowView) -> Result<String, leno_flows::Error>,
    ) -> Option<Result<String, leno_flows::Error>> {
        let node = self.0.as_ref()?;
        // Reading the metrics also updates the rows of proxies.
        let _metrics = node.ledger.metrics();
        match FlowView::open(&node.owner) {
            Ok(view) => Some(of(&view?)),
            Err(error) => Some(Err(error)),
        }
    }

    /// Sets the sizes of the table and of the ring of events.
    pub(crate) fn resize(&self, sizes: FlowSizes) {
        if let Some(node) = &self.0 {
            node.ledger.resize(sizes);
        }
    }

    /// The metrics in Prometheus' text format; empty if connections are not accounted for.
    pub(crate) fn metrics(&self) -> String {
        self.0.as_ref().map(|node| node.ledger.metrics()).unwrap_or_default()
    }
}

impl Node {
    /// The control groups in which the proxy of a pod may count its requests. In node mode no process in the pod's
    /// own group does so, but that group is included, because otherwise the pod would look like one without a
    /// proxy.
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

/// The flows as JSON. If there are too many, those that have not changed for the longest time are left out.
pub(crate) fn listed(view: &FlowView) -> Result<String, leno_flows::Error> {
    let (flows, missing, left_out) = view.list_latest(MAX_SHOWN)?;
    Ok(json(&FlowsPage { flows, missing, left_out }))
}

pub(crate) fn json(rows: &impl Serialize) -> String {
    serde_json::to_string(rows).expect("names and numbers are JSON") + "\n"
}

/// Removes the programs of agents and their counters. Returns the names of the accounts.
pub(crate) fn remove() -> Result<Vec<String>, leno_capture::Error> {
    leno_capture::prune(|name| !(name.starts_with(PREFIX) && name.ends_with(SUFFIX)))
}

/// The name of a node's flow accounts. Captured pods have names of another form.
fn owner(node: &str) -> String {
    let node: String = node.chars().take(MAX_NODE).collect();
    format!("{PREFIX}{node}{SUFFIX}")
}

#[cfg(test)]
mod tests;
