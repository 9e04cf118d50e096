//! Turns objects into the values that the control plane sends to proxies. This crate does no I/O.
//!
//! [`Index::apply`] takes an [`ObjectChange`], which concerns one object (a Service, an EndpointSlice, a
//! Namespace, a Workload), and updates the values of [`leno_types::mesh`] that the control plane sends to proxies:
//! services with their ready endpoints, workloads, server policies, and the owner of each IP address. It returns
//! [`ChangedNames`], the names of exactly those values that are different now. Values are immutable, and a value
//! that did not change stays the same `Arc`: a caller that derived something from it can compare pointers to see
//! whether the result is still valid.
//!
//! The tables depend only on the present objects, not on the order of the changes.
//!
//! Reading objects, subscriptions of proxies and the wire format are not part of this crate, except for the
//! encoded size of policies.
//!
//! ```text
//! ObjectChange -> facts (rows and references) -> build (only what is touched) -> tables -> ChangedNames
//! ```
//!
//! Read first: [`Index`], [`ObjectChange`], [`AddressOwner`].

mod build;
mod change;
mod facts;
mod index;
mod policies;
mod rows;
mod sharing;
mod small_map;
mod tables;

pub use change::{ChangedNames, ObjectChange};
pub use facts::{EndpointRefusal, RefusedEndpoint, RefusedEndpoints, is_reserved};
pub use index::{Index, MeshSettings, ObjectWriters};
pub use policies::{ProxyCoverage, TargetState};
pub use tables::AddressOwner;
