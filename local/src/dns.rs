//! DNS for workloads: the names of services and instances as in a Kubernetes cluster; everything
//! else is asked of the host's own resolvers.
//!
//! A meshed client gets a service's VIP. For an unmeshed one nothing routes a VIP, so it gets the
//! addresses of the endpoints; who is who is told by the address a query comes from.

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

/// The domain below which all names of a mesh are.
pub const DOMAIN: &str = "cluster.local";
