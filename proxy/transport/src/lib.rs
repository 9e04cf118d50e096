//! Sockets of the data plane: listeners, original destinations, protocol detection, and the relay of opaque bytes (of a
//! protocol that the proxy does not parse).
//!
//! Most of this belongs to one worker, which is a thread with a current-thread runtime. Threads share only the limits
//! of connections ([`Admission`]), the memory [`budget`], and what a [`HandedNamespace`] lends. This crate knows no
//! policy: the caller decides where to connect and what to relay.
//!
//! Read first: [`Listener`] (accepts connections), [`original_destination`] (where the client meant to connect),
//! [`Peeked`] and [`judge`] (to which protocol the first bytes belong) and [`relay`] (copies bytes in both directions,
//! and passes on whether a side ended with FIN or with RST).
//!
//! ```text
//! Listener -> original_destination -> Peeked, judge -> relay <- connect
//! ```
//!
//! The crate `leno_sockets` creates the sockets. A thread uses sockets of its process' network namespace, or those of
//! another namespace that a [`HandedNamespace`] provides.
//!
//! [`Io`] is a connection of any kind; TLS streams implement it, too. Buffers of this and other crates are charged to
//! the memory [`budget`].

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod activity;
mod admission;
mod buffer;
mod clock;
mod connect;
mod datagram;
mod destroyed;
mod detect;
mod diag;
mod domain;
mod hello;
mod io;
mod left;
mod listen;
mod liveness;
mod local;
mod orig_dst;
mod pace;
mod passage;
mod peeked;
mod relay;
mod sockets;
mod source;
mod task;
mod unseen;
mod waiting;

pub mod budget;
#[cfg(feature = "scripted")]
pub mod scripted;

pub use activity::{Activity, Busy, IDLE_GRACE};
pub use admission::{Admission, Admitted, Directions, MIN_CONNECTIONS, Refusal};
pub use buffer::{Buffer, RELAY_BUFFER, trim_buffers};
pub use clock::now;
pub use connect::{CONNECT_TIMEOUT, ConnectError, connect};
pub use datagram::PlaceholderDestinations;
pub use destroyed::{follow_destroyed, lost_announcements};
pub use detect::{Opening, Speaker, Verdict, Waits, judge};
pub use domain::{Domain, domain_number, spawn};
pub use hello::{ClientHello, Hello, OwnTls};
pub use io::Io;
pub use left::{Presence, presence};
pub use listen::{Family, Listener};
pub use liveness::{SILENCE, is_unanswered, shut_down};
pub use local::{LocalAddresses, interface_addresses, own_addresses};
pub use orig_dst::{original_destination, redirected_destination};
pub use pace::{Arrival, Pace, Paces};
pub use passage::{Passage, refused_passages};
pub use peeked::{MAX_PEEKED, Peeked, first_to_speak};
pub use relay::{Ended, Observer, RELAY_IDLE, Relayed, Side, relay, relay_until};
pub use sockets::{
    HandedNamespace, Host, LentNamespace, host_no_more, host_of, is_served_here, lend,
    serve_over_the_network, udp,
};
pub use source::{ClientAddress, Shown};
pub use task::{PanicVerdict, judge_panic, panics, spawn_contained, test_panic};
pub use unseen::{Counted, accepted};
pub use waiting::unless_gone;
