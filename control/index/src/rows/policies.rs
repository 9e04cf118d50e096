//! Traffic policies and rate limits as rows.

use std::sync::Arc;

use leno_resources::{Kind, ObjectKey, PolicyTarget, RateLimitPolicy, TrafficPolicy};
use leno_types::ServiceName;
use leno_types::traffic::{RateLimit, Scope, Traffic};

/// A policy of how clients treat services, or what routes send.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrafficRow {
    pub(crate) targets: Vec<TargetRow>,
    /// What it says, of no target yet.
    pub(crate) traffic: Traffic,
}

/// A policy of how many requests workloads take.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RateLimitRow {
    pub(crate) targets: Vec<TargetRow>,
    /// What it says, of no port yet.
    pub(crate) limits: Vec<RateLimit>,
}

/// What a policy is attached to, there or not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TargetRow {
    /// A service, or the port of it with this name or number.
    Service(ServiceName, Option<String>),
    /// A route, or the rule of it with this name; or a workload.
    Object(ObjectKey, Option<Arc<str>>),
}

pub(crate) fn traffic(policy: &TrafficPolicy) -> TrafficRow {
    let namespace = &policy.metadata.namespace;
    let targets = policy.spec.target_refs.iter().filter_map(|target| row(target, namespace));
    TrafficRow { targets: targets.collect(), traffic: policy.traffic(Scope::Service) }
}

pub(crate) fn rate_limits(policy: &RateLimitPolicy) -> RateLimitRow {
    let namespace = &policy.metadata.namespace;
    let targets = policy.spec.target_refs.iter().filter_map(|target| row(target, namespace));
    RateLimitRow { targets: targets.collect(), limits: policy.limits(None) }
}

/// None of a kind that no policy attaches to, which is refused where documents are read.
pub(super) fn row(target: &PolicyTarget, namespace: &str) -> Option<TargetRow> {
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
