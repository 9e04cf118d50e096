//! How sockets of the data plane are made: by a proxy in its own network namespace, and by the broker of a workload for a
//! proxy outside of it (`leno_handover`). Both make the same ones, so that a workload cannot tell which of them serves it.
//!
//! It runs nothing and reads from no socket: a broker has no async runtime. `leno_transport` puts the sockets to use.
//! Read first: [`listener`], [`tcp`] and [`udp`]; [`diagnosis`] and [`announcements`] are what the kernel says of sockets.

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
pub use diag::{UNREAD_AT, announcements, diagnosis};
pub use listen::{
    ADMIN_BACKLOG, BACKLOG, LAST_HANDSHAKES, PROBING, bound, is_no_family, listen, listener, tcp,
    udp,
};
pub use steer::{CONNECTION_ID_BYTES, spread, steer, steer_connections};
