//! The messages with which a proxy outside of a network namespace obtains sockets inside it.
//!
//! ```text
//!                    orders: join, leave
//!  supervisor ────────────────────────────► node proxy      many workloads in one process
//!      │ serve                                  ▲
//!      ▼            listeners, sockets          │
//!  broker of a workload ────────────────────────┘  one channel per workload
//! ```
//! Every arrow is a [`Channel`]: a pair of Unix sockets that preserve the boundaries of messages. The supervisor
//! creates each channel and hands it to both ends, so no other process can connect. A broker runs in the network
//! namespace and the control group of its workload, and only offers sockets of these. Neither the broker nor the
//! node proxy has a capability. All messages are [`ProxyOrder`], [`MemberReport`], [`ServeOrder`],
//! [`ListenersClosed`], [`BrokerOffer`] and [`SocketRequest`].
//!
//! A workload moves from one process to another without losing a connection: its broker hands the same listeners to
//! both. The first process accepts connections until the second one reports that it serves ([`MemberState::Serving`]).
//! Then the first one finishes its open streams.
//!
//! On Kubernetes the agent of a node starts the brokers, and hands them to the supervisor over the only socket that has
//! a path ([`ChannelListener`]). Only root may connect to it. Its messages are [`Placement`] and [`PlacementReport`].
//!
//! This crate starts no processes and creates no sockets for traffic. A broker needs no async runtime, so it does
//! not use the feature `async`.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

/// Most workloads that one node proxy serves.
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
