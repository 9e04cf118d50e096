//! Predicts the effect of documents, before or after they are applied. This crate does no I/O.
//!
//! [`MeshModel::explain`] explains what happens to one request of one workload: which service, route, rule, filters and
//! backends with endpoints it gets, what the servers' policies decide, and why no other match applies. [`analyze`]
//! finds mistakes in documents: invalid references, matches that no request reaches, routes and grants without effect;
//! each with its position, reason and remedy. [`MeshModel::access`] lists which clients may reach a workload, and
//! [`MeshModel::check`] decides about one request as the workload's proxy would.
//!
//! This crate does not implement the decisions again. It feeds the objects to [`leno_index::Index`], as the
//! controller does, queries the tables of `leno_policy`, as proxies do, and puts their decisions into words.
//!
//! The callers read the documents and print the answers. Its callers are `leno explain`, `leno analyze`, `leno
//! authz`, and `leno up` for its warnings.
//!
//! ```text
//! objects ─► Index ─┬─ services with routes ─► RouteTable, StreamTable ─► explain(ExplainQuestion) ─► Explanation
//!                   ├─ server policies ─► AuthorizationTable ─► access, check ─► WorkloadAccess, AuthorizationCheck
//!                   └─ all of these ─► analyze ─► Finding, Finding, ...
//! ```

mod analyze;
mod authz;
mod explain;
mod mesh;
mod sender;

pub use analyze::{Finding, KEYS_NOT_PERMITTED, Severity, analyze, analyze_stored};
pub use authz::{
    AccessChange, AuthorizationAnswer, AuthorizationCheck, CheckClient, ClientAccess, LaterAccess,
    PolicySummary, PolicyVerdict, RecordedRequest, RecordedRequests, Suggestion, WorkloadAccess,
    access_changes,
};
pub use explain::{
    BackendAnswer, ClientAnswer, ConsideredMatch, DestinationAnswer, EndpointAnswer,
    ExplainQuestion, Explanation, HeaderEdits, MirrorAnswer, OutcomeAnswer, PolicyAnswer,
    QuestionError, RuleAnswer, TimeoutsAnswer,
};
pub use mesh::{MeshModel, OutsideReach};
pub use sender::Unanswerable;
