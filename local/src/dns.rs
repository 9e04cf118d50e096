//! DNS for workloads: the names of services and instances as in a Kubernetes cluster. Other names are resolved by the
//! host's resolvers.
//!
//! A meshed client gets a service's VIP. VIPs are not routed for unmeshed clients, so these get the addresses of the
//! endpoints. The source address of a query identifies the client.

#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        clippy::panic,
        clippy::unwrap_used
    )
)]

mod cache;
mod failed;
mod forward;
mod server;
mod zone;

pub use failed::{FAILED_LOOKUPS, FailedLookups, NO_SUCH_NAME};
pub use forward::Upstreams;
pub use server::{Sockets, serve};
pub use zone::{EndpointNames, PortName, ServiceNames, Zone, ZoneAnswer};

/// The domain of all names of a mesh.
pub const DOMAIN: &str = "cluster.local";
