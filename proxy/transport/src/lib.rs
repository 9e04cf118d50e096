//! Sockets of the data plane: listeners, original destination, detection, opaque relay.
//!
//! Everything here belongs to one worker thread with a current-thread runtime; nothing is shared
//! between workers but what the kernel shares. It knows no policy: it is told where to connect and
//! what to relay, and says what happened.
//!
//! Read first: [`Listener`] (where connections come from), [`original_destination`] (where they
//! were meant to go), [`detect`] and [`Hello`] (what their first bytes are) and [`relay`] (bytes both
//! ways, with the ends of each side passed on exactly).
//!
//! ```text
//! Listener -> original_destination -> read_first -> detect -> Prefixed -> relay <- connect
//! ```
//!
//! [`Stream`] is what the relay needs of a connection; TLS streams implement it too. [`budget`] is
//! what buffers of this and other crates charge what they hold to.

mod activity;
mod admission;
mod buffer;
mod clock;
mod connect;
mod detect;
mod first;
mod hello;
mod left;
mod listen;
mod liveness;
mod local;
mod orig_dst;
mod prefixed;
mod relay;
mod source;
mod stream;
mod task;
mod unseen;

pub mod budget;
#[cfg(feature = "scripted")]
pub mod scripted;

pub use activity::{Activity, Busy, IDLE_GRACE};
pub use admission::{Admission, Admitted, Directions, Refusal};
pub use buffer::{Buffer, RELAY_BUFFER, trim_buffers};
pub use clock::now;
pub use connect::{CONNECT_TIMEOUT, ConnectError, connect};
pub use detect::{DETECT_TIMEOUT, Detected, MAX_DETECT, detect, is_preface, is_server_preface};
pub use first::{MAX_FIRST, detect_first, hello_first, read_first};
pub use hello::{ClientHello, Hello};
pub use left::has_left;
pub use listen::{BACKLOG, Family, Listener};
pub use liveness::{SILENCE, is_unanswered};
pub use local::{LocalAddresses, own_addresses};
pub use orig_dst::original_destination;
pub use prefixed::Prefixed;
pub use relay::{Ended, Observer, RELAY_IDLE, Relayed, Side, relay};
pub use source::{ClientAddress, Shown};
pub use stream::Stream;
pub use task::{Verdict, judge_panic, panics, spawn_contained, test_panic};
pub use unseen::Counted;
