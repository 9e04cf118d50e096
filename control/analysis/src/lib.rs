//! What documents will do, said before or while they do it; no I/O.
//!
//! [`Mesh::explain`] says what becomes of one request of one workload: the service, the route, the
//! rule, its filters, the backends with their endpoints, and why every other match did not get it.
//! [`analyze`] finds the mistakes in documents: references that lead nowhere, matches that no
//! request reaches, routes and grants that concern nobody; each with its place, reason and remedy.
//!
//! Neither decides anything by itself. Both feed the objects to [`leno_index::Index`], as the
//! controller does, and ask the [`leno_policy::RouteTable`] of each port, as proxies do; what is here
//! puts their answers into words.
//!
//! It does not know where documents come from, nor who reads the answer: `leno explain` and `leno
//! analyze` do, and `leno up` for its warnings.
//!
//! ```text
//! objects ─► Index ─► services with routes ─► RouteTable ─┬─ explain(Question) ─► Explanation
//!        └───────────────────────────────────────────────┴─ analyze ─► Finding, Finding, ...
//! ```

mod analyze;
mod explain;
mod mesh;
mod sender;

pub use analyze::{Finding, Severity, analyze, analyze_stored};
pub use explain::{
    BackendAnswer, Client, ConsideredMatch, Destination, EndpointAnswer, Explanation, HeaderEdits,
    MirrorAnswer, Outcome, PolicyAnswer, Question, QuestionError, RuleAnswer, TimeoutsAnswer,
};
pub use mesh::Mesh;
pub use sender::Unanswerable;
