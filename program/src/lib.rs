//! What the proxy, the control plane and the agent of a node do alike.
//!
//! ```text
//!  start   flags ─► log ─► the program ─► exit code
//!  listen  a listener, also where there is no IPv6
//!  places  connections of a listener, bounded in all and for each client ─┐
//!  admin   HTTP/1 for scrapes and probes, on such a listener ◄────────────┘
//! ```
//! What a program answers, and everything that it is for, is its own. Nothing here is on the path of a
//! request between services.

mod admin;
mod listen;
mod places;
mod start;

pub use admin::{
    Answer, Ends, answer_pages, readiness, refuse_method, respond, serve, serve_stream,
};
pub use listen::listen;
pub use places::{Place, Places};
pub use start::{Failure, run};

/// Content types of answers.
pub mod content {
    /// Plain text.
    pub const TEXT: &str = "text/plain; charset=utf-8";
    /// Metrics in Prometheus' text format.
    pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
    /// JSON (RFC 8259).
    pub const JSON: &str = "application/json";
}
