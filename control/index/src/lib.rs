//! Objects in, snapshots out; no I/O.
//!
//! [`Index::apply`] takes one [`Change`] of an object (a Service, an EndpointSlice, a Namespace, a
//! Workload) and keeps the values of [`leno_types::mesh`] that proxies are told: services with
//! their ready endpoints, workloads, server policies, and what stands behind each IP address. It
//! answers with [`Changed`], the names of exactly what is different now. The values are immutable
//! and a value that did not change stays the same `Arc`, so a caller may tell by pointer whether
//! what it made of one still holds.
//!
//! The tables depend on the objects alone, not on the order of the changes that led to them.
//!
//! The index does not know where objects come from, who subscribed to what, or the wire format.
//!
//! ```text
//! Change -> facts (rows, who refers to whom) -> build (only what is touched) -> tables -> Changed
//! ```
//!
//! Read first: [`Index`], [`Change`], [`Address`].

mod build;
mod change;
mod facts;
mod index;
mod rows;
mod tables;

pub use change::{Change, Changed};
pub use facts::{Refusal, RefusedEndpoint, RefusedEndpoints};
pub use index::{Index, Settings, Writers};
pub use tables::Address;
