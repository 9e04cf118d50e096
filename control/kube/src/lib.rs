//! Communicates with a Kubernetes API server. No other crate creates clients for it.
//!
//! ```text
//!  connect     a client: from a kubeconfig or the pod's service account, with time-outs and a user agent
//!  bearer      the token of the same user, for a server that asks the API server about it
//!  watch       the objects of a kind and their changes, through outages, with jittered waits
//!  Reflection  what a watch has reported, by key
//!  apply       an object as a document says, by server-side apply
//!  Elector     which replica leads, by a Lease
//!  minor_of    which Kubernetes it is
//!  unmet       which actions RBAC does not permit
//! ```
//!
//! Other crates use the types of `kube` through this one, so that `kube` and its features are chosen in one place
//! (`scripts/lint-tree.sh`). Which objects Leno uses, and what they mean, is left to those crates.
//!
//! Read first: [`connect`], [`watch`].

mod apply;
mod connect;
mod lease;
mod reflection;
mod rights;
mod version;
mod watch;

pub use kube::{Api, Client, Error, Resource, ResourceExt, api, client, core};

pub use apply::{apply, is_status};
pub use connect::{ConnectError, bearer, connect, connect_to, current_context};
pub use lease::Elector;
pub use reflection::Reflection;
pub use rights::{RequiredRight, Right, unmet};
pub use version::{minor_of, minor_version};
pub use watch::{Event, WatchError, WatchReport, WatchSelection, is_refused, watch};
