//! Parses and checks the YAML documents of Leno.
//!
//! [`load`] reads files, directories and standard input; [`parse`] takes one text. Both return
//! typed [`Object`]s with their positions, or every [`Problem`], each with file, line, column, path
//! and reason. Nothing is dropped silently: an unknown field is a problem, and a document of
//! another API group is listed in [`Documents::ignored`].
//!
//! The types of Kubernetes' own kinds are those of `k8s-openapi`; those of the Gateway API are in
//! [`gateway`]; [`Workload`], [`TrafficPolicy`], [`RateLimitPolicy`], [`AuthorizationPolicy`],
//! [`ServiceLevelObjective`] and [`Proxy`] are Leno's own.
//! The crate does not know what the objects mean to the mesh; the index does.
//!
//! ```text
//! text -> tree (every node has a position) -> decode (typed, unknown fields) -> check (meaning)
//! ```
//!
//! Read first: [`Object`], [`Located`], [`Problem`].

mod authorization;
mod bounded;
mod check;
mod cron;
mod decode;
#[cfg(test)]
mod definitions;
mod duration;
mod exemption;
mod flow_settings;
pub mod gateway;
mod load;
mod metadata;
mod node_mode;
mod object;
mod objective;
mod origin;
mod parse;
mod problem;
mod process;
mod proxy;
mod ratelimit;
mod traffic;
mod tree;
mod waypoint;
mod workload;

pub use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount};
pub use k8s_openapi::api::discovery::v1::EndpointSlice;

pub use authorization::{
    AuthorizationAction, AuthorizationPolicy, AuthorizationPolicySpec, AuthorizationRule,
    AuthorizerBodySpec, AuthorizerHeadersSpec, AuthorizerProtocolSpec, AuthorizerRef,
    CertificateSpec, ClaimHeaderSpec, ClaimSpec, ClientSpec, ExternalSpec, GrpcSpec, HeaderSpec,
    IpBlockSpec, KEY_SET_KEY, MAX_AUTHORIZATION_ENTRIES, MAX_KEY_SET_BYTES, OnFailure, OnLarger,
    RequestSpec, SegmentSpec, TokenIssuerSpec, WorkloadSelector, check_key_set, only_keys,
};
pub use cron::{ConcurrencyPolicy, Cron, Schedule};
pub use duration::{Duration, DurationError};
pub use exemption::{ExemptSetting, MAX_EXEMPTIONS, PodExemption, PodExemptionSpec, PodSelector};
pub use flow_settings::{MAX_FLOW_SIZE, cpu_share, flow_size};
pub use load::{STDIN, holds_no_file, is_document, load, load_with};
pub use metadata::{
    CAPTURE_ANNOTATION, DEFAULT_AUTHORIZATION_ANNOTATION, DEFAULT_NAMESPACE, EGRESS_ANNOTATION,
    FLOW_CPU_BUDGET_ANNOTATION, FLOW_MAP_SIZE_ANNOTATION, FLOW_METRICS_ANNOTATION,
    FLOW_RING_SIZE_ANNOTATION, INJECT_ANNOTATION, KEYS_FROM_ANNOTATION, KINDS_CONDITION,
    MODE_ANNOTATION, MTLS_ANNOTATION, Metadata, NODE_LABEL, PATHS_ANNOTATION,
    PROMOTE_AFTER_ANNOTATION, REDIRECTION_ANNOTATION, REMOVAL_ANNOTATION, REMOVAL_RUN_ANNOTATION,
    SERVED_CONDITION, SERVICE_NAME_LABEL, SETTINGS, SHARE_ANNOTATION, SPIFFE_SOCKET_ANNOTATION,
    TUNNEL_ANNOTATION, UDP_ANNOTATION, USE_WAYPOINT_LABEL, USE_WAYPOINT_NAMESPACE_LABEL,
    WAYPOINT_FROM_LABEL, WAYPOINT_LABEL, WORKLOAD_API_ANNOTATION, ZONE_LABEL,
    default_authorization, egress, keys_from, mtls_mode, path_reading, place, removal,
    spiffe_socket, wire_form,
};
pub use node_mode::{NamespaceMode, PodMode, promote_after, promotion, setting, share};
pub use object::{Kind, Object, ObjectKey, to_yaml};
pub use objective::{
    DEFAULT_OBJECTIVE_WINDOW, LatencyObjective, ServiceLevelObjective, ServiceLevelObjectiveSpec,
};
pub use origin::{Origin, OriginError};
pub use parse::{DocumentOrigin, Documents, IgnoredDocument, Outline, parse};
pub use problem::{Located, Position, Problem, one_line};
pub use process::{
    Account, CpuQuantity, Dependency, DependencyCondition, ExecCommand, GrpcCheck, HttpGet,
    HttpHeader, MemoryQuantity, PortRef, Probe, ProcessResources, ResourceLimits, RestartPolicy,
    Scheme, StopSignal, TcpSocket, Volume,
};
pub use proxy::{
    InboundSpec, OutboundSpec, Proxy, ProxyIdentity, ProxySpec, ServiceReference,
    ServiceReferenceError,
};
pub use ratelimit::{
    LimitBy, LimitScope, MAX_LIMITS, RateLimitPolicy, RateLimitPolicySpec, RateLimitSpec,
};
pub use traffic::{
    AbortSpec, AlgorithmName, BalancingSpec, BudgetSpec, DelaySpec, EjectionSpec, FaultsSpec,
    HashSpec, HedgingSpec, LimitsSpec, PolicyTarget, RetriesSpec, RetryTrigger, SuccessRateSpec,
    TimeoutsSpec, TrafficPolicy, TrafficPolicySpec,
};
pub use waypoint::{WaypointInstance, WaypointUse, waypoint_instance, waypoint_use};
pub use workload::{
    InstanceStatus, MAX_PORTS, MAX_REPLICAS, PodHost, PublishedPort, Workload, WorkloadPort,
    WorkloadSpec, WorkloadStatus,
};
