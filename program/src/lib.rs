//! What the programs of the mesh have in common.
//!
//! ```text
//!  start     flags ─► log ─► the program ─► exit code
//!  listen    a listener, even on machines without IPv6
//!  accept    the next connection, however many fail before it
//!  shares    connections of a listener, bounded in total and per client ──┐
//!  admin     HTTP/1 for scrapes and probes, on such a listener ◄──────────┘
//!  metrics   a page in Prometheus' text format, for such a server
//!  error     an error with its causes, on one line
//!  output    lines for people, on streams that may be closed
//!  duration  60s, 24h and so on, as options have them
//! ```
//! What a program answers, and all else that is specific to it, is not in this crate. The only part that proxies use
//! for the traffic of services is [`Shares`].

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod accept;
mod admin;
mod duration;
mod error;
mod listen;
mod metrics;
mod output;
mod shares;
mod start;

pub use accept::accept;
pub use admin::{
    AdminResponse, SocketPair, answer_pages, connections, readiness, refuse_method, respond, serve,
    serve_stream, serve_stream_with,
};
pub use duration::{duration, within};
pub use error::chain;
pub use listen::{listen, listen_beside};
pub use metrics::Family;
pub use output::{write_error, write_output};
pub use shares::{Share, ShareCounts, Shares};
pub use start::{ProgramFailure, run};

/// Content types of responses.
pub mod content {
    /// Plain text.
    pub const TEXT: &str = "text/plain; charset=utf-8";
    /// Metrics in Prometheus' text format.
    pub const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
    /// JSON (RFC 8259).
    pub const JSON: &str = "application/json";
}
