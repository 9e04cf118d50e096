//! Finds where a chain of failures begins.
//!
//! ```text
//!  customer ──fails──► front ──fails──► cart ──fails──► db      db makes no calls that fail:
//!     rank 2             rank 1           rank 0               the edge to it comes first
//! ```
//!
//! A chain may also begin with requests that a policy denies or limits, or that are slow. Denials that have always
//! happened explain nothing: the failures of the client must have begun at about the same time. A chain does not
//! continue through namespaces that the reader may not see, because all hidden workloads of a namespace have the
//! same name.

use std::collections::{BTreeMap, VecDeque};

use leno_observe::stat::NamespacedName;

use super::edges::BrokenEdge;
use super::text;
use crate::visible_namespaces::HIDDEN;

/// The largest number of workloads in a chain that are shown.
const MAX_CHAIN: usize = 8;
/// The largest difference between the beginning of denials and the beginning of failures that follow from them.
const TOGETHER_MS: u64 = 30_000;

/// Sets the distance of each failing edge from the beginning of its chain, and adds the chain to its evidence.
pub(super) fn rank(all: &mut [BrokenEdge]) {
    let mut by_client: BTreeMap<NamespacedName, Vec<usize>> = BTreeMap::new();
    let mut by_server: BTreeMap<NamespacedName, Vec<usize>> = BTreeMap::new();
    for (at, one) in all.iter().enumerate().filter(|(_, one)| one.fault.may_lead_to_others()) {
        if one.client.1 != HIDDEN {
            by_client.entry(one.client.clone()).or_default().push(at);
        }
        if one.server.1 != HIDDEN {
            by_server.entry(one.server.clone()).or_default().push(at);
        }
    }
    // Walks from the edges whose servers make no failing calls towards the clients. If failing edges form a circle
    // without such an edge, the walk does not reach them. Their rank stays 0, because it is not known where the circle
    // begins.
    let mut next: Vec<Option<usize>> = vec![None; all.len()];
    let is_begin = |one: &BrokenEdge| {
        one.fault.may_lead_to_others()
            && (!one.fault.may_follow() || !by_client.contains_key(&one.server))
    };
    let mut begins: Vec<usize> = (0..all.len()).filter(|at| is_begin(&all[*at])).collect();
    begins.sort_by_key(|at| !all[*at].fault.is_failure());
    let mut queue = VecDeque::from(begins);
    let mut behind: Vec<Option<usize>> = vec![None; all.len()];
    while let Some(at) = queue.pop_front() {
        for caller in by_server.get(&all[at].client).into_iter().flatten().copied() {
            let is_first = next[caller].is_none() && !is_begin(&all[caller]);
            if is_first && explains(&all[at], &all[caller]) {
                next[caller] = Some(at);
                all[caller].rank = all[at].rank + 1;
                queue.push_back(caller);
            }
        }
        // The queue is sorted by rank, so the last edge that is found for this one is the farthest from it.
        behind[begin(&next, at)] = Some(at);
    }
    for failing in (0..all.len()).filter(|at| all[*at].fault.is_failure()).collect::<Vec<_>>() {
        let mut at = failing;
        while let Some(after) = next[at] {
            all[after].is_blamed = true;
            at = after;
        }
    }
    for at in 0..all.len() {
        let line = if let Some(after) = next[at] {
            let begin = &all[begin(&next, at)];
            let follows = if begin.client == all[after].client { "" } else { " in the end" };
            let (client, server) = (text(&begin.client), text(&begin.server));
            format!("follows{follows} from what fails from {client} to {server}")
        } else if let Some(farthest) = behind[at].filter(|farthest| *farthest != at) {
            format!("begins here: {}", chain(all, &next, farthest))
        } else {
            continue;
        };
        all[at].evidence.insert(0, line);
    }
}

/// Whether the failures of requests to a server may result from a call that the server makes.
fn explains(called: &BrokenEdge, caller: &BrokenEdge) -> bool {
    if called.fault.may_follow() {
        return true;
    }
    let (Some(called), Some(caller)) = (called.since_ms, caller.since_ms) else { return false };
    called.abs_diff(caller) <= TOGETHER_MS
}

/// The first edge of the chain to which this edge belongs.
fn begin(next: &[Option<usize>], mut at: usize) -> usize {
    while let Some(after) = next[at] {
        at = after;
    }
    at
}

/// The workloads from the client of an edge to the beginning of its chain.
fn chain(all: &[BrokenEdge], next: &[Option<usize>], from: usize) -> String {
    let mut workloads: Vec<&NamespacedName> = vec![&all[from].client, &all[from].server];
    let mut at = from;
    while let Some(after) = next[at] {
        workloads.push(&all[after].server);
        at = after;
    }
    let left_out = workloads.len().saturating_sub(MAX_CHAIN);
    let shown: Vec<String> = workloads[left_out..].iter().map(|name| text(name)).collect();
    let dots = if left_out > 0 { "... -> " } else { "" };
    format!("{dots}{}", shown.join(" -> "))
}
