//! The HTTP engine of the data plane: heads are parsed once in place and forwarded with edits, or
//! translated to the other version of HTTP; bodies are passed on as they arrive.
//!
//! A worker reads a request from a client's [`Conn`], decides where it goes from its
//! [`RequestView`], and hands both connections to [`exchange`], which relays the request and the
//! response at the same time and reports how it went and whether each connection can be used again.
//!
//! ```text
//!            read_request                     exchange
//! client ──► Conn ──► RequestHead ──► (route, pool) ──► Conn ──► server
//!              ◄────────────── Exchange ◄──────────────
//! ```
//!
//! A request of HTTP/2 is a [`Call`], made of what [`leno_h2::Accept`] yields; a server of HTTP/2 is a
//! [`leno_h2::Client`]. [`h1_to_h2`], [`h2_to_h1`] and [`h2_to_h2`] do for them what [`exchange`]
//! does for HTTP/1, with the same [`Order`] and the same [`Exchange`] as the result.
//!
//! The engine knows HTTP and nothing of routes, policies, pools or TLS: a stream is any type that
//! implements [`Io`]. Both sides are held strictly to RFC 9112: what two parsers could read in
//! different ways is refused, and no byte behind a message's end goes out with it.
//!
//! An idle connection holds no buffer, a busy one holds a pooled buffer for each direction, and an
//! exchange in steady state makes four system calls on data and no allocation. Read first: [`Conn`],
//! [`exchange`], [`BodyWalker`], whose events HTTP/2 shares.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod alarm;
mod answer;
mod body;
mod call;
mod conn;
mod copies;
mod departure;
mod edit;
mod exchange;
mod failure;
mod grpc;
mod handlers;
mod head;
mod hold;
mod limits;
mod pool;
mod received;
mod serve;
mod tasks;
mod translate;
mod writer;

pub use answer::{Answer, unread_answers};
pub use body::{BodyError, BodyWalker, Event};
pub use call::{Call, tap_mark_line};
pub use conn::Conn;
pub use copies::{CallCopies, ConnCopies, CopyClient, Ticket};
pub use edit::{Edits, HeaderLine, InvalidHeader, TraceLine};
pub use exchange::{Exchange, Judge, Judgement, Order, exchange, h1_to_h2, h2_to_h1, h2_to_h2};
pub use failure::{Cause, Failure, Party, Report};
pub use grpc::{grpc_status_of, grpc_timeout};
pub use handlers::Handlers;
pub use head::{
    Framing, HeadError, RequestHead, RequestView, ResponseHead, ResponseView, Version,
    is_idempotent,
};
pub use hold::HeldBody;
pub use leno_transport::Io;
pub use limits::{Limits, MAX_HEAD_BYTES};
pub use pool::{PoolStats, pool_stats, trim_pool};
pub use serve::{After, serve, serve_begun, serve_streams};
pub use tasks::Tasks;

/// [`leno_transport::now`] for the timers of the runtime.
fn now() -> tokio::time::Instant {
    leno_transport::now().into()
}
