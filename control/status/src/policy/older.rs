//! Reports workloads whose proxies are of an earlier release and do not enforce a policy.

use std::collections::BTreeSet;

use crate::conditions::{ConditionProblem, ConditionResult};

/// Proxies of an earlier release do not enforce the policy.
const OLDER: &str = "OlderProxies";
/// How many workloads a message names. Others are only counted.
const NAMED: usize = 4;

/// The workloads whose connected proxies are of an earlier release and do not enforce a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OlderProxies {
    /// The names of some of them, as `namespace/name`.
    pub workloads: BTreeSet<String>,
    /// How many workloads are not named.
    pub others: usize,
}

impl OlderProxies {
    /// Adds the workloads that another replica reports. A proxy that moves from one replica to another may be
    /// reported by both.
    pub fn merge(&mut self, other: Self) {
        self.workloads.extend(other.workloads);
        self.others += other.others;
    }

    /// The condition `Programmed` because of these workloads, if there are any.
    pub(super) fn found(&self) -> Option<ConditionResult> {
        let named: Vec<&str> = self.workloads.iter().map(String::as_str).take(NAMED).collect();
        let others = self.workloads.len() - named.len() + self.others;
        let which = match (named.join(", "), others) {
            (_, 0) if named.is_empty() => return None,
            (names, 0) => names,
            (names, others) => format!("{names} and {others} more"),
        };
        let message = format!(
            "the proxies of {which} are of an earlier release and do not enforce it: restart these pods"
        );
        Some(Err(ConditionProblem { reason: OLDER, message }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn older(workloads: &[&str], others: usize) -> OlderProxies {
        OlderProxies { workloads: workloads.iter().map(ToString::to_string).collect(), others }
    }

    fn message(older: &OlderProxies) -> String {
        older.found().unwrap().unwrap_err().message
    }

    #[test]
    fn workloads_of_all_replicas_are_named_up_to_a_bound() {
        assert_eq!(OlderProxies::default().found(), None);
        let mut all = older(&["shop/a"], 0);
        all.merge(older(&["shop/a", "shop/b"], 0));
        assert!(message(&all).contains("of shop/a, shop/b are"), "{}", message(&all));
        all.merge(older(&["shop/c", "shop/d", "shop/e"], 7));
        let said = message(&all);
        assert!(said.contains("shop/a, shop/b, shop/c, shop/d and 8 more are"), "{said}");
    }
}
