//! What the control plane keeps in a Kubernetes cluster, and asks of it, beside the objects that it
//! follows.
//!
//! ```text
//!  Secret       <- authority   one pair for all replicas, made by whoever is first
//!  TokenReview  <- reviews     whose token a proxy shows
//!  Lease        <- lease       which replica may write
//!  routes       <- routes      their status, by that replica
//!  ConfigMaps   <- roots       what proxies check the control plane by, in every namespace, by it
//!  webhooks     <- webhooks    what the API server checks the control plane by, by it
//!  XMesh        <- declaration what the mesh says of itself, by it
//!  a removal    <- stays       taken back, step by step, where the mesh was installed anew, by it
//! ```
//!
//! The replicas share nothing but the API server, and what one of them does twice or too late is
//! refused by it: a Secret is created once, and a Lease or a status is replaced only in the version
//! that was read.
//!
//! It does not know what objects mean (`leno-index`, `leno-status`), how they are followed
//! (`leno-sources`) or how proxies are served (`leno-serve`).
//!
//! Read first: [`authority`], [`Reviews`], [`Elector`], [`RouteStatuses`], [`Roots`],
//! [`Webhooks`], [`Declaration`], [`Stays`].

mod authority;
mod counts;
mod declaration;
mod lease;
mod reviews;
mod roots;
mod routes;
mod stays;
mod webhooks;

pub use authority::{AuthorityError, Keeper, SECRET, authority};
pub use declaration::{Declaration, FEATURES, MESH};
pub use lease::{Elector, LEASE};
pub use reviews::{AUDIENCE, Reviews};
pub use roots::{CONFIG_MAP, Roots};
pub use routes::RouteStatuses;
pub use stays::{Halfway, Look, Stays};
pub use webhooks::{INJECTOR, VALIDATOR, Webhooks};
