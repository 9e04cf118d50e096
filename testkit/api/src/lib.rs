//! A real Kubernetes API server with its etcd, on loopback and without root, for tests of whoever asks
//! one: the control plane and the command line.
//!
//! Both are one binary that `CLUSTER_KUBE` names (`scripts/cluster.sh api` builds it). Nothing runs in such
//! a cluster: no pod is scheduled, no controller fills an EndpointSlice. A test says in objects what a
//! cluster would have, statuses included, and whatever it starts asks the API server as it would anywhere.
//!
//! It knows nothing of Leno but what objects of its own kinds look like ([`objects`]).
//!
//! ```text
//!   test ── Bed::apply ──► API server ◄── leno-controller, leno
//!                             │
//!                            etcd, in a directory that ends with the bed
//! ```
//! Start with [`binary`], [`Bed::start`] and [`until`]; [`Hands`] does what a cluster's own controllers would.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod bed;
mod hands;
pub mod objects;

pub use bed::{Bed, LIMIT, binary, until};
pub use hands::Hands;
