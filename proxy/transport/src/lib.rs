//! Sockets of the data plane: listeners, original destination, detection, opaque relay.
//!
//! Everything here belongs to one worker thread with a current-thread runtime; workers share
//! nothing but what the kernel shares. It knows no policy: the caller decides where to connect and
//! what to relay.
//!
//! Read first: [`Listener`] (where connections come from), [`original_destination`] (where they
//! were meant to go), [`Peeked`] and [`judge`] (what their first bytes are) and [`relay`] (bytes both
//! ways, with the ends of each side passed on exactly).
//!
//! ```text
//! Listener -> original_destination -> Peeked, judge -> relay <- connect
//! ```
//!
//! `leno_sockets` makes the sockets. A thread uses those of its process' network namespace, or those of another one that
//! [`HandedNamespace`] brings.
//!
//! [`Io`] is a connection of any kind; TLS streams implement it too. [`budget`] is
//! what buffers of this and other crates charge what they hold to.

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
