//! The HTTP engine of the data plane: heads are parsed once in place and forwarded with edits, or translated to the
//! other version of HTTP; bodies are passed on as they arrive.
//!
//! A worker (one of the proxy's threads, each with connections of its own) reads a request from a client's [`Conn`],
//! decides from its [`RequestView`] where to send it, and passes the connections of client and server to [`exchange`].
//! That function relays the request and the response at the same time. The [`Exchange`] that it returns has the result,
//! and says whether each connection can be used again.
//!
//! ```text
//!            read_request                     exchange
//! client ──► Conn ──► RequestHead ──► (route, pool) ──► Conn ──► server
//!              ◄────────────── Exchange ◄──────────────
//! ```
//!
//! An HTTP/2 request is a [`Call`], created from what [`leno_h2::Accept`] yields; an HTTP/2 server is a
//! [`leno_h2::Client`]. For these, [`h1_to_h2`], [`h2_to_h1`] and [`h2_to_h2`] do what [`exchange`] does for HTTP/1,
//! with the same [`Order`] and the same [`Exchange`] as the result.
//!
//! The engine implements HTTP. It does not know routes, policies, pools or TLS: a stream is any type that implements
//! [`Io`]. It holds both sides strictly to RFC 9112: bytes that two parsers could interpret differently are refused,
//! and no byte after the end of a message is sent with it.
//!
//! An idle connection holds no buffer. A busy one holds a pooled buffer for each direction. In steady state an exchange
//! needs four system calls for data and no allocation. Read first: [`Conn`], [`exchange`], and [`BodyWalker`], which
//! finds the end of an HTTP/1 body and whose events are translated to HTTP/2.

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

/// The present time, from [`leno_transport::now`], for the timers of the runtime.
fn now() -> tokio::time::Instant {
    leno_transport::now().into()
}
