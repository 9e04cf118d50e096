//! Predicts what documents do, before or while they apply; no I/O.
//!
//! [`MeshModel::explain`] explains what happens to one request of one workload: the service, the route,
//! the rule, its filters, the backends with their endpoints, and why every other match did not get
//! it. [`analyze`] finds mistakes in documents: invalid references, matches that no request
//! reaches, routes and grants without effect; each with its position, reason and remedy. [`MeshModel::access`]
//! lists who may reach a workload, and [`MeshModel::check`] decides on one request as its proxy would.
//!
//! It does not reimplement any decision: it feeds the objects to [`leno_index::Index`], as the controller does, and
//! queries the tables of `leno_policy`, as proxies do. This crate only formulates their answers.
//!
//! It does not know where documents come from or who reads the answers. Its callers are `leno
//! explain`, `leno analyze`, `leno authz`, and `leno up` for its warnings.
//!
//! ```text
//! objects ─► Index ─► services with routes ─► RouteTable ─┬─ explain(Question) ─► Explanation
//!        └───────────────────────────────────────────────┴─ analyze ─► Finding, Finding, ...
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
