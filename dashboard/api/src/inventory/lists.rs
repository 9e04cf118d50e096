//! Holds the proxies and policies of an inventory, and answers requests for them.
//!
//! The lists are shared, so that several answers can be computed at a time, while a collector continues.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use leno_observe::stat::{DENIED, ProxyReport};

use crate::api::Edge;
use crate::inventory::{DeniedClient, Policies, Policy, Proxies};
use crate::query::count_of;
use crate::visible_namespaces::VisibleNamespaces;

/// The reason of denials that happen because no policy allows the request.
pub(super) const NOT_ALLOWED: &str = "not-allowed";
/// The cause of requests that a rate limit rejects.
pub(super) const LIMITED: &str = "rate-limited";
/// Most denied clients in one answer for all policies together, which the policies share equally, and for one
/// policy.
const MAX_DENIED: usize = 32_768;
const MAX_DENIED_BY_ONE: usize = 100;
/// Most kinds of decisions of one policy; proxies know three.
const MAX_DECISIONS: usize = 16;

#[derive(Clone, Debug, Default)]
pub(crate) struct InventoryLists {
    pub(super) proxies: Arc<ProxyList>,
    pub(super) policies: Arc<PolicyList>,
}

#[derive(Debug, Default)]
pub(super) struct ProxyList {
    pub(super) at_ms: Option<u64>,
    pub(super) all: Vec<ProxyReport>,
    /// How many proxies were dropped, by namespace.
    pub(super) left_out: BTreeMap<String, usize>,
}

#[derive(Debug, Default)]
pub(super) struct PolicyList {
    pub(super) all: Vec<Policy>,
    /// How many policies were dropped, by namespace.
    pub(super) left_out: BTreeMap<String, usize>,
    pub(super) unavailable: Option<String>,
}

/// A workload, as namespace and name.
type Subject<'a> = (&'a str, &'a str);

/// For each policy, how many times each decision was made.
type Decisions<'a> = HashMap<&'a str, BTreeMap<&'a str, u64>>;

/// The effects of policies, by workload.
struct PolicyEffects<'a> {
    /// The edges on which policies of a kind have denied anything, with the number of denials; the largest numbers
    /// come first.
    denied: HashMap<(&'a str, Subject<'a>), Vec<(u64, &'a Edge)>>,
    /// The decisions that the proxies of each workload have made.
    decisions: HashMap<Subject<'a>, Decisions<'a>>,
}

impl InventoryLists {
    pub(crate) fn proxies(&self, sight: &VisibleNamespaces) -> Proxies {
        let seen = self.proxies.all.iter().filter(|one| sight.has(&one.namespace));
        Proxies {
            at_ms: self.proxies.at_ms,
            proxies: seen.cloned().collect(),
            left_out: seen_of(sight, &self.proxies.left_out),
        }
    }

    /// The policies that the reader may see; `edges` are the edges in a window that the reader may see.
    pub(crate) fn policies(
        &self,
        sight: &VisibleNamespaces,
        edges: &[Edge],
        (from_ms, to_ms): (u64, u64),
    ) -> Policies {
        let seen = self.policies.all.iter().filter(|one| sight.has(&one.namespace));
        let seen: Vec<&Policy> = seen.collect();
        let places = (MAX_DENIED / seen.len().max(1)).clamp(1, MAX_DENIED_BY_ONE);
        let done = PolicyEffects::of(edges, &self.proxies.all);
        let answered = seen.into_iter().map(|one| done.policy(sight, one, places));
        Policies {
            from_ms,
            to_ms,
            policies: answered.collect(),
            left_out: seen_of(sight, &self.policies.left_out),
            unavailable: self.policies.unavailable.clone(),
        }
    }
}

impl<'a> PolicyEffects<'a> {
    fn of(edges: &'a [Edge], proxies: &'a [ProxyReport]) -> Self {
        let mut denied: HashMap<_, Vec<_>> = HashMap::new();
        for edge in edges {
            for cause in [DENIED, LIMITED] {
                let count = count_of(&edge.signals.causes, cause);
                if count > 0 {
                    let server = (&*edge.server_namespace, &*edge.server);
                    denied.entry((cause, server)).or_default().push((count, edge));
                }
            }
        }
        denied.values_mut().for_each(|edges| edges.sort_by_key(|(count, _)| Reverse(*count)));
        let mut decisions: HashMap<Subject<'_>, Decisions<'_>> = HashMap::new();
        for proxy in proxies {
            let Some(state) = &proxy.state else { continue };
            let own = decisions.entry((&*proxy.namespace, &*proxy.workload)).or_default();
            for ((policy, decision), count) in &*state.decisions {
                let sum = own.entry(&**policy).or_default().entry(&**decision).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        Self { denied, decisions }
    }

    /// A policy as the reader may see it, with at most `places` denied clients.
    fn policy(&self, sight: &VisibleNamespaces, policy: &Policy, places: usize) -> Policy {
        let mut seen = policy.clone();
        seen.selection.workloads.retain(|(namespace, _)| sight.has(namespace));
        if !sight.is_all() && seen.selection.is_of_mesh {
            seen.selection.left_out = 0;
        }
        let cause = match &*policy.kind {
            "AuthorizationPolicy" => DENIED,
            "RateLimitPolicy" => LIMITED,
            _ => return seen,
        };
        let selected = seen.selection.workloads.iter().map(|one| (&*one.0, &*one.1));
        let denied = selected.clone().filter_map(|one| self.denied.get(&(cause, one)));
        let in_all: usize = denied.clone().map(Vec::len).sum();
        let most = denied.flat_map(|edges| edges.iter().take(places));
        let mut denied: Vec<(u64, &Edge)> = most.copied().collect();
        denied.sort_by_key(|(count, _)| Reverse(*count));
        let denied_left_out = in_all.saturating_sub(places);
        let row = |(count, edge): (u64, &Edge)| DeniedClient {
            client_namespace: edge.client_namespace.clone(),
            client: edge.client.clone(),
            server_namespace: edge.server_namespace.clone(),
            server: edge.server.clone(),
            count,
        };
        let denied = denied.into_iter().take(places).map(row).collect();
        // A proxy's reports count only for policies that select its workload.
        let decisions = match cause {
            DENIED => decided(policy, selected.filter_map(|one| self.decisions.get(&one))),
            _ => BTreeMap::new(),
        };
        Policy { decisions, denied, denied_left_out, ..seen }
    }
}

/// The decisions that a policy has caused, out of those that the proxies of its selected workloads have made.
fn decided<'a>(
    policy: &Policy,
    of_workloads: impl Iterator<Item = &'a Decisions<'a>>,
) -> BTreeMap<String, u64> {
    let name = format!("{}/{}", policy.namespace, policy.name);
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    let mut add = |decision: &'a str, count: u64| {
        if sums.len() < MAX_DECISIONS || sums.contains_key(decision) {
            let sum = sums.entry(decision).or_default();
            *sum = sum.saturating_add(count);
        }
    };
    for of in of_workloads {
        for (decision, count) in of.get(&*name).into_iter().flatten() {
            add(decision, *count);
        }
        if policy.action == "Allow" {
            for count in of.get(NOT_ALLOWED).into_iter().flat_map(BTreeMap::values) {
                add(NOT_ALLOWED, *count);
            }
        }
    }
    sums.into_iter().map(|(decision, count)| (decision.to_owned(), count)).collect()
}

/// How many entries were dropped in the namespaces that the reader may see.
pub(super) fn seen_of(sight: &VisibleNamespaces, left_out: &BTreeMap<String, usize>) -> usize {
    let seen = left_out.iter().filter(|(namespace, _)| sight.has(namespace));
    seen.map(|(_, count)| count).sum()
}
