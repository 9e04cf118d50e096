//! HTTP/2 (RFC 9113) for a relay: connections in both roles, whose streams can be linked.
//!
//! ```text
//! client ══ Driver ══ Accept ──► Request ─┐            ┌── Client::open ══ Driver ══ server
//!             │                           ├── forward ─┤                     │
//!             └─ reads ─► frames ─► Stream ◄── link ──► Stream ◄─ frames ◄───┘
//! ```
//!
//! A [`Driver`] is the one task of a connection. [`Accept`], [`Client`] and [`Stream`] share its
//! state on the same thread. They only queue what they send; the driver writes everything that is
//! queued at once. A relay takes a [`Request`], opens a stream with its (edited) head, sends the
//! response's head back and calls [`link`]. From then on DATA goes from one connection's reader
//! into the other's queue without a task in between, without a copy (except of small payloads), and
//! with flow control from end to end.
//!
//! The crate does not deal with HTTP/1, routes, pools, TLS or retries. It checks every message
//! against RFC 9113 section 8, so that a received head can be forwarded as it is. It holds the peer
//! to [`Limits`]; [`abuse_counts`] counts how often each limit was reached.
//!
//! An idle connection holds no buffer. A connection in steady state allocates nothing. Priorities
//! are ignored, server push is refused.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod clock;
mod code;
mod conn;
mod driver;
mod error;
mod frame;
mod head;
mod inner;
mod limits;
mod link;
mod live;
mod out;
mod piece;
mod recv;
mod repeat;
mod reserved;
mod send;
mod settings;
mod slot;
mod stall;
mod stream;
mod tolerance;
mod trailers;
mod tunnel;

pub use code::Code;
pub use conn::{Accept, Client, Opening, Request, client, server};
pub use driver::Driver;
pub use error::{Abuse, ConnError, OpenError, Reset, ResetBy, abuse_counts};
pub use head::Head;
pub use limits::Limits;
pub use link::{Link, Linked, forward, link};
pub use live::{Open, open_counts};
pub use piece::{Piece, trim_chunks};
pub use reserved::{has_reserved, is_identity_field, is_mesh_field, is_reserved, remove_reserved};
pub use stream::Stream;
pub use trailers::may_be_trailer;
pub use tunnel::Tunnel;
