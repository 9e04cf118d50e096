//! For a request, the result of each part of each policy: which parts apply, and why the others do not.

use std::cmp::Reverse;
use std::sync::Arc;

use leno_types::traffic::{PolicyScope, Traffic};

use crate::effective::{RuleName, narrowness};

/// A part of a policy. For each part, only one policy applies to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PolicyPart {
    /// When a request is retried.
    Retries,
    /// The timeout for the whole request.
    RequestTimeout,
    /// The timeout until the response begins.
    ResponseTimeout,
    /// The timeout for a period without any byte.
    IdleTimeout,
    /// The timeout for an opaque connection.
    StreamTimeout,
    /// When copies of a request are sent.
    Hedging,
    /// Which failures are injected.
    Faults,
    /// Limits on concurrent connections and requests.
    Limits,
    /// When an endpoint is ejected.
    Ejection,
    /// How endpoints are chosen.
    Balancing,
}

/// The result of one part of a policy for a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartOutcome<'p> {
    /// The part.
    pub part: PolicyPart,
    /// The policy that sets the part.
    pub policy: &'p Traffic,
    /// Whether the part applies.
    pub verdict: PartVerdict<'p>,
}

/// Whether a part of a policy applies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PartVerdict<'p> {
    /// The part applies.
    Holds,
    /// Another policy sets the part, too, and takes precedence.
    Outranked(&'p Traffic),
    /// The policy is for another port or route.
    Elsewhere,
}

impl PolicyPart {
    /// All parts, in the order in which documents have them.
    pub const ALL: [Self; 10] = [
        Self::Retries,
        Self::RequestTimeout,
        Self::ResponseTimeout,
        Self::IdleTimeout,
        Self::StreamTimeout,
        Self::Hedging,
        Self::Faults,
        Self::Limits,
        Self::Ejection,
        Self::Balancing,
    ];

    /// The name that documents use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retries => "retries",
            Self::RequestTimeout => "timeouts.request",
            Self::ResponseTimeout => "timeouts.response",
            Self::IdleTimeout => "timeouts.idle",
            Self::StreamTimeout => "timeouts.stream",
            Self::Hedging => "hedging",
            Self::Faults => "faults",
            Self::Limits => "limits",
            Self::Ejection => "ejection",
            Self::Balancing => "balancing",
        }
    }

    /// Whether the part concerns a service's endpoints, rather than requests to the service.
    #[must_use]
    pub const fn is_of_endpoints(self) -> bool {
        matches!(self, Self::Limits | Self::Ejection | Self::Balancing)
    }

    /// Whether a policy sets the part.
    #[must_use]
    pub const fn is_in(self, policy: &Traffic) -> bool {
        match self {
            Self::Retries => policy.retries.is_some(),
            Self::RequestTimeout => policy.timeouts.request.is_some(),
            Self::ResponseTimeout => policy.timeouts.response.is_some(),
            Self::IdleTimeout => policy.timeouts.idle.is_some(),
            Self::StreamTimeout => policy.timeouts.stream.is_some(),
            Self::Hedging => policy.hedging.is_some(),
            Self::Faults => policy.faults.is_some(),
            Self::Limits => policy.limits.is_some(),
            Self::Ejection => policy.ejection.is_some(),
            Self::Balancing => policy.balancing.is_some(),
        }
    }
}

/// The results of all parts of all policies, for a request to `port` that follows `route`. For each part, the policy
/// that applies is first. [`crate::effective`] merges the parts that apply.
#[must_use]
pub fn standings<'p>(
    policies: &'p [Arc<Traffic>],
    port: u16,
    route: Option<RuleName<'_>>,
) -> Vec<PartOutcome<'p>> {
    let mut found = Vec::new();
    for part in PolicyPart::ALL {
        let mut speaking: Vec<&Traffic> =
            policies.iter().map(|policy| &**policy).filter(|policy| part.is_in(policy)).collect();
        let rank = |scope: &PolicyScope| narrowness(scope, port, route);
        // Policies that are for another port or route are sorted to the end.
        speaking.sort_by_key(|policy| (Reverse(rank(&policy.scope)), &policy.source));
        let first = speaking.first().copied();
        found.extend(speaking.into_iter().map(|policy| {
            let verdict = match first {
                _ if rank(&policy.scope).is_none() => PartVerdict::Elsewhere,
                Some(first) if !std::ptr::eq(first, policy) => PartVerdict::Outranked(first),
                _ => PartVerdict::Holds,
            };
            PartOutcome { part, policy, verdict }
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leno_types::traffic::{Faults, PolicySource, TrafficTimeouts, WorkerLimits};
    use proptest::prelude::*;

    use super::*;
    use crate::effective;

    fn policy() -> impl Strategy<Value = Arc<Traffic>> {
        let scope =
            prop_oneof![Just(PolicyScope::Service), (80_u16..82).prop_map(PolicyScope::Port),];
        (scope, 0_u64..3, 0..3_u8, any::<[bool; 3]>()).prop_map(|(scope, created, name, parts)| {
            let source =
                PolicySource { created, namespace: "n".into(), name: name.to_string().into() };
            let number = u32::from(name) * 100 + u32::try_from(created).unwrap_or(0);
            let request = parts[1].then(|| Duration::from_secs(number.into()));
            Arc::new(Traffic {
                source,
                scope,
                limits: parts[0]
                    .then(|| WorkerLimits { requests: Some(number), ..WorkerLimits::default() }),
                timeouts: TrafficTimeouts { request, ..TrafficTimeouts::default() },
                faults: parts[2].then(Faults::default),
                ..Traffic::default()
            })
        })
    }

    proptest! {
        /// A part is reported to apply if and only if it is in effect.
        #[test]
        fn standings_agree_with_what_holds(policies in prop::collection::vec(policy(), 0..6)) {
            let effective = effective(&policies, 80, None);
            let all = standings(&policies, 80, None);
            let of = |part| all.iter().filter(move |one: &&PartOutcome<'_>| one.part == part);
            let holding = |part| {
                let mut holding = of(part).filter(|one| one.verdict == PartVerdict::Holds);
                let one = holding.next().map(|one| one.policy);
                prop_assert!(holding.next().is_none());
                Ok(one)
            };
            let limits = holding(PolicyPart::Limits)?.and_then(|policy| policy.limits);
            prop_assert_eq!(limits, effective.limits);
            let request = holding(PolicyPart::RequestTimeout)?.and_then(|one| one.timeouts.request);
            prop_assert_eq!(request, effective.timeouts.request);
            prop_assert_eq!(holding(PolicyPart::Faults)?.is_some(), effective.faults.is_some());
            // Each part of each policy is reported once.
            let spoken: usize = policies
                .iter()
                .map(|policy| PolicyPart::ALL.iter().filter(|part| part.is_in(policy)).count())
                .sum();
            prop_assert_eq!(all.len(), spoken);
            for one in &all {
                let elsewhere = matches!(one.policy.scope, PolicyScope::Port(81));
                prop_assert_eq!(one.verdict == PartVerdict::Elsewhere, elsewhere);
            }
        }
    }
}
