//! A real Kubernetes API server with its etcd, on loopback and without root, for tests of its clients: the
//! control plane and the command line.
//!
//! Both are in one binary, which `CLUSTER_KUBE` names (`scripts/cluster.sh api` builds it). No controller and
//! no kubelet runs: no pod is scheduled, and no controller fills an EndpointSlice. A test creates the objects
//! that a cluster would contain, with their statuses, and the programs under test use the API server as they
//! would anywhere.
//!
//! This crate knows nothing about Leno except the shape of some objects that tests use ([`objects`]).
//!
//! ```text
//!   test ── TestApiServer::apply ──► API server ◄── leno-controller, leno
//!                                        │
//!                                       etcd, in a directory that is removed when the `TestApiServer` is dropped
//! ```
//! Start with [`binary`], [`TestApiServer::start`] and [`until`]. [`TestControllers`] plays a cluster's own
//! controllers, a [`Kubelet`] forwards ports of pods, a [`Relay`] cuts the connection to the API server, and
//! [`TestApiServer::reads`] counts what clients have read.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod api_server;
mod audit;
mod controllers;
mod kubelet;
pub mod objects;
mod relay;

pub use api_server::{LIMIT, TestApiServer, binary, until};
pub use audit::LoggedRead;
pub use controllers::TestControllers;
pub use kubelet::Kubelet;
pub use relay::Relay;
