//! Reports proxies of earlier releases that do not enforce all policies of their workloads. A replica reports them
//! in a condition of its pod, which is for users, and in an annotation of its pod, from which the leader writes
//! the status of the policies.
//!
//! ```text
//!  streams of a replica ──► annotation of its pod ──┐
//!  streams of another   ──► annotation of its pod ──┴─► leader ──► status of each policy
//! ```

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use leno_serve::{UnenforcedPolicies, UnenforcingWorkloads};
use leno_status::OlderProxies;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::replica::ReplicaPodCondition;

/// The condition of the replica's pod; `leno check` reads it.
pub const POLICIES_CONDITION: &str = "leno.dev/PoliciesEnforced";
/// The annotation of the replica's pod that lists policies that are not enforced. Its value is made by
/// [`unenforced_annotation`].
pub const UNENFORCED_ANNOTATION: &str = "leno.dev/unenforced-policies";
/// How many workloads the condition names. Others are only counted.
const NAMED: usize = 16;
/// Longest annotation, in bytes. It is bounded because every client that reads pods receives it. About 150
/// policies fit. Policies that do not fit are left out, so their status does not mention older proxies.
const MAX_ANNOTATION: usize = 16 << 10;

/// The annotation's entry for a policy.
#[derive(Debug, Deserialize)]
struct Entry {
    /// Workloads, as `namespace/name`.
    workloads: BTreeSet<String>,
    /// How many workloads are not named in `workloads`.
    #[serde(default)]
    others: usize,
}

/// The condition [`POLICIES_CONDITION`]: whether all connected proxies enforce the policies that they received.
#[must_use]
pub fn policies_enforced(unenforced: &[UnenforcedPolicies]) -> ReplicaPodCondition {
    let mut lines: Vec<String> = unenforced.iter().take(NAMED).map(line).collect();
    if unenforced.len() > NAMED {
        lines.push(format!("{} more workloads", unenforced.len() - NAMED));
    }
    let mut message = lines.join("; ");
    if !message.is_empty() {
        message += ": restart these pods, to give them the proxy of this release";
    }
    ReplicaPodCondition::new(POLICIES_CONDITION, ("AllEnforced", "OlderProxies"), &message)
}

fn line(of: &UnenforcedPolicies) -> String {
    let UnenforcedPolicies { instance, feature, policies, count } = of;
    let more = count - policies.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let what = match policies.as_slice() {
        [] => "what its namespace sets".to_owned(),
        some => format!("{}{more}", some.join(", ")),
    };
    format!(
        "the proxy of {instance} is of an earlier release (no {feature}) and does not enforce {what}"
    )
}

/// The value of [`UNENFORCED_ANNOTATION`]: a JSON object with an entry for each policy, keyed by `namespace/name`.
/// `None` if all policies are enforced.
#[must_use]
pub fn unenforced_annotation(policies: &BTreeMap<String, UnenforcingWorkloads>) -> Option<String> {
    let mut entries = serde_json::Map::new();
    // Begins with the length of the two braces.
    let mut length = 2;
    for (policy, UnenforcingWorkloads { workloads, count }) in policies {
        let others = count - workloads.len();
        let workloads: Vec<String> = workloads.iter().map(ToString::to_string).collect();
        let entry = json!({"workloads": workloads, "others": others});
        // Adds the length of two quotation marks, a colon and a comma.
        length += policy.len() + entry.to_string().len() + 4;
        if length > MAX_ANNOTATION {
            break;
        }
        entries.insert(policy.clone(), entry);
    }
    (!entries.is_empty()).then(|| Value::Object(entries).to_string())
}

/// The content of the annotation of a replica's pod, by policy; empty if the replica is of another release that
/// uses another format.
pub(crate) fn older_proxies(pod: &Pod) -> BTreeMap<String, OlderProxies> {
    let annotations = pod.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(UNENFORCED_ANNOTATION)) else {
        return BTreeMap::new();
    };
    let entries: BTreeMap<String, Entry> = match serde_json::from_str(text) {
        Ok(entries) => entries,
        Err(error) => {
            let pod = pod.metadata.name.as_deref();
            tracing::warn!(pod, %error, "the annotation {UNENFORCED_ANNOTATION} cannot be read");
            return BTreeMap::new();
        }
    };
    let older = |Entry { workloads, others }| OlderProxies { workloads, others };
    entries.into_iter().map(|(policy, entry)| (policy, older(entry))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_and_policies_are_named_up_to_a_bound() {
        let of = |nth: usize, policies: &[&str], count| UnenforcedPolicies {
            instance: format!("shop/web-{nth}").parse().unwrap(),
            feature: "authorization",
            policies: policies.iter().map(ToString::to_string).collect(),
            count,
        };
        assert_eq!(policies_enforced(&[]).status, "True");
        let one = policies_enforced(&[of(0, &["shop/a", "shop/b"], 5), of(1, &[], 0)]);
        assert_eq!((one.status, one.reason), ("False", "OlderProxies"));
        for part in [
            "shop/web-0 is of an earlier release (no authorization) and does not enforce shop/a, shop/b and 3 more",
            "shop/web-1 is of an earlier release (no authorization) and does not enforce what its namespace",
            "restart these pods",
        ] {
            assert!(one.message.contains(part), "{part}: {}", one.message);
        }
        let many: Vec<_> = (0..100).map(|nth| of(nth, &["shop/a"], 1)).collect();
        assert!(policies_enforced(&many).message.contains("84 more workloads"));
    }

    fn pod(annotation: Option<String>) -> Pod {
        let mut pod = Pod::default();
        let value = annotation.map(|value| (UNENFORCED_ANNOTATION.to_owned(), value));
        pod.metadata.annotations = Some(value.into_iter().collect());
        pod
    }

    #[test]
    fn the_leader_reads_what_a_replica_writes_and_the_annotation_is_bounded() {
        assert_eq!(unenforced_annotation(&BTreeMap::new()), None);
        assert_eq!(older_proxies(&pod(None)), BTreeMap::new());
        let of = |count| {
            let workloads = vec!["shop/web-0".parse().unwrap(), "shop/web-1".parse().unwrap()];
            UnenforcingWorkloads { workloads, count }
        };
        let two = BTreeMap::from([("shop/a".to_owned(), of(2)), ("shop/b".to_owned(), of(9))]);
        let read = older_proxies(&pod(unenforced_annotation(&two)));
        let others: Vec<_> = read.values().map(|older| older.others).collect();
        assert_eq!((read.len(), others), (2, vec![0, 7]));
        assert!(read["shop/a"].workloads.contains("shop/web-1"));

        let many = (0..10_000).map(|nth| (format!("shop/p{nth:05}"), of(2))).collect();
        let written = unenforced_annotation(&many).unwrap();
        assert!(
            (MAX_ANNOTATION - 100..=MAX_ANNOTATION).contains(&written.len()),
            "{}",
            written.len()
        );
        assert!(older_proxies(&pod(Some(written))).len() > 100);
        assert_eq!(older_proxies(&pod(Some("[1]".to_owned()))), BTreeMap::new());
    }
}
