//! Decisions about requests: which route, which backend, what is changed. Pure: no I/O, no clock, no
//! randomness of its own.
//!
//! [`RouteTable`] is compiled from the [routes](leno_types::routes) that hold for one port of a
//! service. [`RouteTable::decide`] is what a proxy runs for every request, and allocates nothing;
//! [`RouteTable::explain`] walks the same conditions and says of each why it did not hold, and
//! [`RouteTable::shadowed`] which of them no request can reach.
//! [`StreamTable`] is the same for connections that are relayed as bytes.
//! What follows from a rule stands beside it: [`Choice`] (the backend, by weight), [`Changes`] (its
//! filters laid together), [`rewrite`] (targets and redirections), [`cors`]. [`effective`] says which
//! parts of several [traffic policies](leno_types::traffic) hold.
//!
//! It does not know where routes come from, what connections are, or how heads are held: a request
//! is whatever implements [`Request`].
//!
//! ```text
//! routes ─ compile ─► RouteTable ─ decide(request) ─► Decision ─ rule, backend ─► Changes
//!                          └─ explain(request) ─► every match, in the order of precedence
//! ```

pub mod cors;
pub mod rewrite;

mod changes;
mod choice;
mod condition;
mod decide;
mod effective;
mod explain;
mod headers;
mod list;
mod pattern;
mod request;
mod shadow;
mod standing;
mod streams;
mod table;

pub use changes::Changes;
pub use choice::{Choice, Weights, sampled};
pub use condition::Mismatch;
pub use decide::{Decision, Refusal};
pub use effective::{RuleOf, effective, with_rule};
pub use explain::{Considered, Explanation};
pub use headers::{combined, is_field_name};
pub use pattern::{MAX_PATTERN_BYTES, Pattern, PatternError};
pub use request::Request;
pub use shadow::Shadowed;
pub use standing::{Part, Standing, Verdict, standings};
pub use streams::{StreamDecision, StreamShadowed, StreamTable};
pub use table::{Found, Ignored, RouteTable, TableRule};
