//! Converts traffic policies and rate limits to rows.

use std::sync::Arc;

use leno_resources::{Kind, ObjectKey, PolicyTarget, RateLimitPolicy, TrafficPolicy};
use leno_types::ServiceName;
use leno_types::traffic::{PolicyScope, RateLimit, Traffic};

/// A policy that sets how clients treat services, or the requests of routes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrafficRow {
    pub(crate) targets: Vec<TargetRow>,
    /// The policy's settings. Its target is set when the policy is built for each target.
    pub(crate) traffic: Traffic,
}

/// A rate limit policy.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RateLimitRow {
    pub(crate) targets: Vec<TargetRow>,
    /// The policy's limits. The port is set when the policy is built for each target.
    pub(crate) limits: Vec<RateLimit>,
}

/// The target of a policy, which need not exist.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TargetRow {
    /// A service or, if a name or number is given, that port of the service.
    Service(ServiceName, Option<String>),
    /// A route or a workload or, if a name is given, that rule of the route.
    Object(ObjectKey, Option<Arc<str>>),
}

pub(crate) fn traffic(policy: &TrafficPolicy) -> TrafficRow {
    let namespace = &policy.metadata.namespace;
    let targets = policy.spec.target_refs.iter().filter_map(|target| row(target, namespace));
    TrafficRow { targets: targets.collect(), traffic: policy.traffic(PolicyScope::Service) }
}

pub(crate) fn rate_limits(policy: &RateLimitPolicy) -> RateLimitRow {
    let namespace = &policy.metadata.namespace;
    let targets = policy.spec.target_refs.iter().filter_map(|target| row(target, namespace));
    RateLimitRow { targets: targets.collect(), limits: policy.limits(None) }
}

/// Converts a target; `None` for a kind to which policies cannot attach. The reader of documents already rejects
/// such a target.
pub(crate) fn row(target: &PolicyTarget, namespace: &str) -> Option<TargetRow> {
    let kind = match target.kind.as_str() {
        "Service" => {
            let name = ServiceName::new(namespace, &target.name).ok()?;
            return Some(TargetRow::Service(name, target.section_name.clone()));
        }
        "HTTPRoute" => Kind::HttpRoute,
        "GRPCRoute" => Kind::GrpcRoute,
        "Workload" => Kind::Workload,
        _ => return None,
    };
    let key = ObjectKey { kind, namespace: namespace.to_owned(), name: target.name.clone() };
    Some(TargetRow::Object(key, target.section_name.as_deref().map(Into::into)))
}
