//! The present inventory of a mesh: its proxies, its policies, and the connections that the kernel accounts for.
//!
//! ```text
//!  collector ─ take_proxies, take_policies, take_flows ─► Inventory ─ VisibleNamespaces ─► answers
//! ```
//! The inventory is not part of the history. Every list has a maximum length, and an answer states how many
//! entries were dropped.

mod lists;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use leno_observe::flows::{FlowCounts, FlowEnds, FlowSums};
use leno_observe::stat::{NamespacedName, ProxyReport};
use serde::{Deserialize, Serialize};

use crate::fair::keep_fairly_of;
pub(crate) use crate::inventory::lists::InventoryLists;
use crate::inventory::lists::{PolicyList, ProxyList};
use crate::policies::{MatchedPolicies, PolicyDocument, PolicySelection, SelectableObjects};
use crate::tally::float;
use crate::visible_namespaces::{HIDDEN, VisibleNamespaces};

/// Most proxies that are shown. An observer of a cluster polls no more proxies than that.
const MAX_PROXIES: usize = 5_000;
/// Most agents whose flow counts are kept. The largest cluster that Kubernetes supports has as many nodes.
const MAX_AGENTS: usize = 5_000;
/// Most rows of flows and dropped packets: of all agents together, and in one answer.
const MAX_FLOWS: usize = 16_384;
const MAX_ROWS: usize = 4_096;
/// Most agents that are named because they did not answer, or because some of their rows were dropped.
const MAX_NAMED: usize = 100;
/// The shortest time between two pages of an agent that are kept in addition to the last one, and how many pages
/// are kept in all. With these, an answer covers the last half minute to minute.
const APART_MS: u64 = 30_000;
const PAGES: usize = 3;
/// The greatest age of a page with which new counts are compared. If an agent misses one poll of a cluster's
/// observer, its next answer gives counts again; if it misses two, the next answer does not.
const OLDEST_MS: u64 = 75_000;

/// The proxies of a mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Proxies {
    /// When the proxies were polled, in milliseconds since 1970; `None` if they were not polled.
    pub at_ms: Option<u64>,
    /// The proxies, by namespace and instance.
    pub proxies: Vec<ProxyReport>,
    /// How many proxies were dropped because the list was full; only those in namespaces that the reader may see
    /// count.
    pub left_out: usize,
}

/// The policies of a mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policies {
    /// The beginning of the window in which denials were counted.
    pub from_ms: u64,
    /// The end of that window.
    pub to_ms: u64,
    /// The policies, by kind, namespace and name.
    pub policies: Vec<Policy>,
    /// How many policies were dropped because the list was full; only those in namespaces that the reader may see
    /// count.
    pub left_out: usize,
    /// Why the policies are not known; `None` if they are known.
    pub unavailable: Option<String>,
}

/// A policy and its effects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// The kind, such as `AuthorizationPolicy`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The action for a request that matches, such as `Allow` or `Deny`. Empty for kinds without actions.
    pub action: String,
    /// The number of its rules.
    pub rules: usize,
    /// The workloads or services that it selects.
    #[serde(flatten)]
    pub selection: PolicySelection,
    /// For an AuthorizationPolicy: how many times running proxies have made each decision because of it. For a
    /// policy that allows, also how many times no policy has allowed the request (`not-allowed`).
    pub decisions: BTreeMap<String, u64>,
    /// The clients whose requests and connections to the policy's workloads were denied by policies of its kind in
    /// the window; the largest counts come first. If several policies select a workload, `decisions` shows which
    /// of them denied.
    pub denied: Vec<DeniedClient>,
    /// How many pairs of client and server are missing from `denied` because the list was full.
    #[serde(default)]
    pub denied_left_out: usize,
}

impl Policy {
    /// The policy of a document, with the present objects that it selects; at most `places` of its workloads are
    /// named. Its effects are added for each answer.
    pub(crate) fn new(
        document: &PolicyDocument,
        of: &SelectableObjects<'_>,
        places: usize,
    ) -> Self {
        Self {
            kind: document.kind.clone(),
            namespace: document.namespace.clone(),
            name: document.name.clone(),
            action: document.action.clone(),
            rules: document.rules,
            selection: document.selection(of, places),
            decisions: BTreeMap::new(),
            denied: Vec::new(),
            denied_left_out: 0,
        }
    }

    pub(crate) fn key(&self) -> (&str, &str, &str) {
        (&self.kind, &self.namespace, &self.name)
    }
}

/// A client that was denied access to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedClient {
    /// The client's namespace; empty for clients without a proxy.
    pub client_namespace: String,
    /// The client.
    pub client: String,
    /// The server's namespace.
    pub server_namespace: String,
    /// The server.
    pub server: String,
    /// The number of denials.
    pub count: u64,
}

/// The connections of the last minute, as the kernel counted them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flows {
    /// The span of time in which they were counted, in seconds.
    pub span_s: f64,
    /// The level of accounting: `full`, `packets`, `sockets`, `aggregated` or `off`. If nodes differ, the lowest
    /// of their levels.
    pub level: Option<String>,
    /// Why there is nothing to show; `None` if accounting works.
    pub unavailable: Option<String>,
    /// The flows by their ends; those with the most bytes come first.
    pub flows: Vec<Flow>,
    /// Packets that the kernel dropped.
    pub drops: Vec<DroppedPackets>,
    /// How many rows were dropped because lists were full.
    pub left_out: u64,
    /// The agents of nodes that did not answer, each with the reason; empty for readers who may not see all
    /// namespaces.
    pub silent: Vec<String>,
    /// The agents of nodes some of whose rows were dropped, each with how many; empty for readers who may not see
    /// all namespaces.
    #[serde(default)]
    pub trimmed: Vec<String>,
    /// The number of agents some of whose rows were dropped, including those that `trimmed` does not name because it is
    /// full.
    #[serde(default)]
    pub trimmed_nodes: usize,
}

/// The connections between a workload and one other end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// The namespace of the workload.
    pub namespace: String,
    /// The workload whose sockets were counted.
    pub workload: String,
    /// The namespace of the other end; empty if it is not a workload.
    pub peer_namespace: String,
    /// The other end: the name of a workload, `outside`, `itself` or `control-plane`.
    pub peer: String,
    /// The role of the workload: `client` or `server`.
    pub role: String,
    /// What was counted: the sockets of the application (`application`) or of its proxy (`proxy`), or the frames on the
    /// network (`wire`).
    pub socket: String,
    /// Bytes sent, per second.
    pub sent_bytes_per_s: f64,
    /// Bytes received, per second.
    pub received_bytes_per_s: f64,
    /// Connections that were opened or accepted.
    pub opened: u64,
    /// Connections that ended, by how they ended.
    pub ends: BTreeMap<String, u64>,
    /// Segments sent.
    pub segments: u64,
    /// Segments that were retransmitted.
    pub retransmits: u64,
    /// The mean duration of handshakes.
    pub handshake_ms: Option<f64>,
    /// The mean round-trip time of connections that ended.
    pub round_trip_ms: Option<f64>,
}

/// Packets of a workload that the kernel dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DroppedPackets {
    /// The namespace of the workload.
    pub namespace: String,
    /// The workload.
    pub workload: String,
    /// The kernel's reason.
    pub reason: String,
    /// The number of packets.
    pub count: u64,
}

/// The present inventory.
#[derive(Debug, Default)]
pub(crate) struct Inventory {
    lists: InventoryLists,
    /// The flow counts of each agent, the oldest first.
    flows: BTreeMap<String, FlowPages>,
    /// When the agents were last polled. If an agent did not answer that poll, its last page is older.
    flows_at_ms: u64,
    silent: Vec<String>,
    trimmed: Vec<String>,
    trimmed_nodes: usize,
    flows_left_out: u64,
}

/// The pages of one agent, each with the time when it was read.
type FlowPages = VecDeque<(u64, FlowCounts)>;

/// The answer of an agent: its name, and its flow counts or the reason why there are none.
pub type AgentPage = (String, Result<FlowCounts, String>);

impl Inventory {
    pub(crate) fn take_proxies(&mut self, mut proxies: Vec<ProxyReport>, now_ms: u64) {
        proxies.sort_by(|a, b| (&a.namespace, &a.instance).cmp(&(&b.namespace, &b.instance)));
        let left_out = keep_fairly_of(&mut proxies, MAX_PROXIES, |one| &one.namespace);
        let at_ms = Some(now_ms);
        self.lists.proxies = Arc::new(ProxyList { at_ms, all: proxies, left_out });
    }

    pub(crate) fn take_policies(&mut self, policies: Result<MatchedPolicies, String>) {
        let (MatchedPolicies { policies, left_out }, unavailable) = match policies {
            Ok(policies) => (policies, None),
            Err(why) => (MatchedPolicies::default(), Some(why)),
        };
        self.lists.policies = Arc::new(PolicyList { all: policies, left_out, unavailable });
    }

    /// Adds the flow counts of all agents. If all together have too many rows, the agents with the most rows lose
    /// some.
    pub(crate) fn take_flows(&mut self, pages: Vec<AgentPage>, now_ms: u64) {
        self.silent.clear();
        self.trimmed.clear();
        self.trimmed_nodes = 0;
        self.flows_left_out = 0;
        self.flows_at_ms = now_ms;
        let mut before = std::mem::take(&mut self.flows);
        for pages in before.values_mut() {
            pages.retain(|(at_ms, _)| at_ms + OLDEST_MS >= now_ms);
        }
        before.retain(|_, pages| !pages.is_empty());
        let sizes = pages.iter().filter_map(|(agent, page)| match page {
            Ok(page) => Some(page.rows()),
            Err(_) => Some(before.get(agent)?.back()?.1.rows()),
        });
        let most = equal_part(sizes.take(MAX_AGENTS).collect(), MAX_FLOWS);
        for (agent, page) in pages.into_iter().take(MAX_AGENTS) {
            let mut page = match page {
                Ok(page) => page,
                // Its earlier counts are not shown, but the counts of its next answer are compared with them.
                Err(why) => {
                    if let Some(kept) = before.remove(&agent) {
                        self.flows.insert(agent.clone(), kept);
                    }
                    if self.silent.len() < MAX_NAMED {
                        self.silent.push(format!("{agent}: {why}"));
                    }
                    continue;
                }
            };
            let mut kept = before.remove(&agent).unwrap_or_default();
            page.keep(most);
            self.trimmed_nodes += usize::from(page.left_out > 0);
            if page.left_out > 0 && self.trimmed.len() < MAX_NAMED {
                self.trimmed.push(format!("{agent}: {} rows", page.left_out));
            }
            self.flows_left_out += page.left_out;
            let mut last = kept.iter().rev().map(|(at_ms, _)| *at_ms);
            let is_close =
                last.next().zip(last.next()).is_some_and(|(at, before)| at < before + APART_MS);
            if is_close {
                kept.pop_back();
            }
            kept.push_back((now_ms, page));
            if kept.len() > PAGES {
                kept.pop_front();
            }
            self.flows.insert(agent, kept);
        }
    }

    /// The proxies and policies, for answers that are computed without holding the lock of the inventory.
    pub(crate) fn lists(&self) -> InventoryLists {
        self.lists.clone()
    }

    pub(crate) fn flows(&self, sight: &VisibleNamespaces) -> Flows {
        let mut sums: BTreeMap<FlowEnds, FlowSums> = BTreeMap::new();
        let mut drops: BTreeMap<(NamespacedName, String), f64> = BTreeMap::new();
        let mut span_ms = 0;
        for pages in self.answered() {
            let (Some((from_ms, first)), Some((to_ms, last))) = (pages.front(), pages.back())
            else {
                continue;
            };
            if to_ms == from_ms {
                continue;
            }
            span_ms = span_ms.max(to_ms - from_ms);
            let grown = last.since(first);
            // If a row was dropped from the earlier page, it would look new here although it has counted for
            // longer.
            let is_new = |is_known: bool| !is_known && first.left_out > 0;
            for (ends, sum) in grown.pairs {
                if is_new(first.pairs.contains_key(&ends)) {
                    continue;
                }
                let is_seen = sight.has_at(&ends.own.0, *from_ms) && !sum.is_empty();
                if is_seen {
                    sums.entry(seen_ends(sight, ends, *from_ms)).or_default().add(&sum);
                }
            }
            for (key, count) in grown.drops {
                let is_known = !is_new(first.drops.contains_key(&key));
                if is_known && count > 0.0 && sight.has_at(&key.0.0, *from_ms) {
                    *drops.entry(key).or_default() += count;
                }
            }
        }
        let seconds = float(span_ms) / 1000.0;
        let mut flows: Vec<Flow> = sums.into_iter().map(|one| flow(one, seconds)).collect();
        let weight = |one: &Flow| one.sent_bytes_per_s + one.received_bytes_per_s;
        flows.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        let beyond = flows.len().saturating_sub(MAX_ROWS) as u64;
        flows.truncate(MAX_ROWS);
        let row = |((own, reason), count): ((NamespacedName, String), f64)| DroppedPackets {
            namespace: own.0,
            workload: own.1,
            reason,
            count: count as u64,
        };
        let level = self.level();
        Flows {
            span_s: seconds,
            unavailable: self.unavailable(level.as_deref()),
            level,
            flows,
            drops: drops.into_iter().map(row).take(MAX_ROWS).collect(),
            left_out: if sight.is_all() { self.flows_left_out + beyond } else { beyond },
            silent: if sight.is_all() { self.silent.clone() } else { Vec::new() },
            trimmed: if sight.is_all() { self.trimmed.clone() } else { Vec::new() },
            trimmed_nodes: if sight.is_all() { self.trimmed_nodes } else { 0 },
        }
    }

    /// The pages of the agents that have answered the last poll.
    fn answered(&self) -> impl Iterator<Item = &FlowPages> {
        let is_last =
            |pages: &&FlowPages| pages.back().is_some_and(|one| one.0 == self.flows_at_ms);
        self.flows.values().filter(is_last)
    }

    /// The lowest level of accounting among all agents.
    fn level(&self) -> Option<String> {
        const LEVELS: [&str; 5] = ["off", "aggregated", "sockets", "packets", "full"];
        let last = self.answered().filter_map(|pages| pages.back()?.1.level.as_deref());
        let place = |level: &&str| LEVELS.iter().position(|one| one == level);
        last.min_by_key(place).map(str::to_owned)
    }

    fn unavailable(&self, level: Option<&str>) -> Option<String> {
        if level == Some("off") {
            return Some(
                "flow metrics are off, because they exceed their CPU budget: see \
                 --flow-cpu-budget"
                    .to_owned(),
            );
        }
        if level.is_some() {
            return None;
        }
        Some(match (self.answered().next().is_none(), self.silent.is_empty()) {
            (true, true) => "no agent has been queried yet".to_owned(),
            (true, false) => "no agent of a node answers the observer".to_owned(),
            (false, _) => {
                "there are no flow metrics: the log of the agent, or of leno up, has the reason"
                    .to_owned()
            }
        })
    }

    /// How many entries were dropped because lists were full, for the metrics.
    pub(crate) fn left_out(&self) -> [(&'static str, u64); 3] {
        [
            ("proxies", self.lists.proxies.left_out.values().sum::<usize>() as u64),
            ("policies", self.lists.policies.left_out.values().sum::<usize>() as u64),
            ("flows", self.flows_left_out),
        ]
    }

    /// All namespaces in the inventory.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = &String> {
        let proxies = self.lists.proxies.all.iter().map(|one| &one.namespace);
        let policies = self.lists.policies.all.iter().map(|one| &one.namespace);
        let flows = self.flows.values().filter_map(|pages| Some(&pages.back()?.1));
        let flows = flows.flat_map(|page| page.pairs.keys().map(|ends| &ends.own.0));
        proxies.chain(policies).chain(flows)
    }
}

/// The largest number of rows that each page may have so that all pages together have at most `most`. Small pages
/// leave some rows of their share, and large pages share these equally.
fn equal_part(mut sizes: Vec<usize>, most: usize) -> usize {
    sizes.sort_unstable();
    let (mut left, mut others) = (most, sizes.len());
    for size in sizes {
        if size > left / others {
            return left / others;
        }
        left -= size;
        others -= 1;
    }
    usize::MAX
}

/// The ends of a flow, without the names that the reader may not see. The workload's own namespace was checked
/// before.
fn seen_ends(sight: &VisibleNamespaces, mut ends: FlowEnds, from_ms: u64) -> FlowEnds {
    if !ends.peer.0.is_empty() && !sight.has_at(&ends.peer.0, from_ms) {
        ends.peer = (String::new(), HIDDEN.to_owned());
    }
    ends
}

fn flow((ends, sums): (FlowEnds, FlowSums), seconds: f64) -> Flow {
    let rate = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
    let mean = |[sum, count]: [f64; 2]| (count > 0.0).then(|| 1000.0 * sum / count);
    let ended = sums.ends.iter().filter(|(_, count)| **count > 0.0);
    Flow {
        namespace: ends.own.0,
        workload: ends.own.1,
        peer_namespace: ends.peer.0,
        peer: ends.peer.1,
        role: ends.role,
        socket: ends.socket,
        sent_bytes_per_s: rate(sums.bytes[0]),
        received_bytes_per_s: rate(sums.bytes[1]),
        opened: sums.opened as u64,
        ends: ended.map(|(end, count)| (end.clone(), *count as u64)).collect(),
        segments: sums.segments as u64,
        retransmits: sums.retransmits as u64,
        handshake_ms: mean(sums.handshakes),
        round_trip_ms: mean(sums.round_trips),
    }
}

#[cfg(test)]
pub(crate) mod tests;
