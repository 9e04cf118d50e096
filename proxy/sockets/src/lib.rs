//! Creates the sockets of the data plane: for a proxy in its own network namespace, and in the broker of a workload for
//! a proxy outside of that namespace (`leno_handover`). Both create the same sockets, so that a workload cannot tell
//! which of them serves it.
//!
//! The crate has no tasks and reads from no socket, because a broker has no async runtime. `leno_transport` uses the
//! sockets. Read first: [`listener`], [`tcp`] and [`udp`]; [`diagnosis`] and [`announcements`] get reports from the
//! kernel about sockets.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod addresses;
mod diag;
mod listen;
mod steer;

pub use addresses::interface_addresses;
pub use diag::{BY_FAMILY, HEADER, SOCKET_ID, UNREAD_AT, announcements, diagnosis, field, query};
pub use listen::{
    ADMIN_BACKLOG, BACKLOG, LAST_HANDSHAKES, PROBING, bound, is_no_family, listen, listener, tcp,
    udp,
};
pub use steer::{CONNECTION_ID_BYTES, spread, steer, steer_connections};
