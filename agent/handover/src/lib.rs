//! How sockets of a network namespace reach a proxy outside of it.
//!
//! ```text
//!                    orders: join, leave
//!  supervisor ────────────────────────────► node proxy      many workloads in one process
//!      │ serve                                  ▲
//!      ▼            listeners, sockets          │
//!  broker of a workload ────────────────────────┘  one channel a workload
//! ```
//! Every arrow is a [`Channel`]: a pair of Unix sockets that keep messages apart, made by the supervisor and
//! handed to both ends, so that no other process can connect. A broker runs in the workload's network
//! namespace and control group and answers with sockets of these alone; neither it nor the node proxy has a
//! capability. [`ProxyOrder`], [`MemberReport`], [`BrokerOffer`] and [`SocketRequest`] are all that is said.
//!
//! A workload goes from one process to another without a cut: its broker hands the same listeners to both, the first
//! accepts until the second reports that it serves ([`MemberState::Serving`]), and then finishes what it has.
//!
//! On Kubernetes the agent of a node starts brokers, and hands them to the supervisor over the one socket with a path
//! ([`ChannelListener`]), which only root may open: [`Placement`], [`PlacementReport`].
//!
//! This crate starts no process and makes no socket of traffic. A broker, which waits for nothing but messages, does without
//! the feature `async`.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

/// Most workloads of one node proxy.
pub const MAX_MEMBERS: u16 = 64;

#[cfg(feature = "async")]
mod async_channel;
mod channel;
mod message;
mod placement;

#[cfg(feature = "async")]
pub use async_channel::AsyncChannel;
pub use channel::{Channel, ChannelListener, MAX_DESCRIPTORS};
pub use message::{
    BrokerOffer, CpuUse, KubeletProbes, ListenersClosed, Member, MemberReport, MemberState,
    ProxyOrder, ServeOrder, SocketRequest, SocketRole,
};
pub use placement::{PlacedPod, Placement, PlacementReport};
