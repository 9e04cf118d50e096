//! What a replica says of proxies of earlier releases, which do not enforce all that holds for their workloads.

use leno_serve::UnenforcedPolicies;

use crate::replica::Condition;

/// The condition of the replica's pod; `leno check` reads it.
pub const POLICIES_CONDITION: &str = "leno.dev/PoliciesEnforced";
/// Workloads that are named; the others are counted.
const NAMED: usize = 16;

/// Whether all connected proxies enforce the policies that they were sent, as [`POLICIES_CONDITION`].
#[must_use]
pub fn policies_enforced(unenforced: &[UnenforcedPolicies]) -> Condition {
    let mut lines: Vec<String> = unenforced.iter().take(NAMED).map(line).collect();
    if unenforced.len() > NAMED {
        lines.push(format!("{} more workloads", unenforced.len() - NAMED));
    }
    let mut message = lines.join("; ");
    if !message.is_empty() {
        message += ": restart these pods, so that they get the proxy of this release";
    }
    Condition::new(POLICIES_CONDITION, ("AllEnforced", "OlderProxies"), &message)
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
}
