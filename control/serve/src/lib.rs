//! Serves discovery and identity to proxies: one port, TLS, HTTP/2, gRPC.
//!
//! ```text
//!  proxy ── token, certificate request ──► Identity  ──► Authenticator, Authority
//!    │                                                    │ who is it?
//!    └───── certificate ── one stream ───► Discovery ──► Subscriber ──flush──► State: index,
//!                                             ▲                                │ encodings
//!                                             └─ Mailbox ◄── Subscriptions ◄───┘
//! ```
//!
//! A stream receives only what it asked for: services and workloads by name or address, and the
//! policy of its own workload. A change wakes the streams that asked for what changed
//! (`subscriptions`), and each version of a resource is encoded once for all of them (`encodings`).
//! Nothing is queued for a stream; each response is the difference between what the proxy holds and
//! the index when the response leaves, so a slow proxy costs no memory and skips what it missed.
//!
//! It knows neither where objects come from nor what they mean (`leno-index`), nor how
//! certificates are made (`leno-identity`), nor how a token is checked ([`Authenticator`]).
//! Read first: [`PlaneState`], then [`PlaneServer`].

mod authenticate;
mod delays;
mod discovery;
mod encodings;
mod identity;
mod incoming;
mod leases;
mod metrics;
mod peer;
mod recognise;
mod requests;
mod server;
mod service_uses;
mod shares;
mod state;
mod stream_slots;
mod subscriber;
mod subscriptions;
mod tls;
mod trust;
mod unenforced;
mod unknown_keys;
mod workload_api;

pub use authenticate::{
    AnswerFuture, AuthenticationError, Authenticator, LocalTokens, ProvenIdentity, ServedPod,
};
pub use server::{PlaneServer, STREAM_AGE, ServeError, ServerSettings};
pub use state::PlaneState;
pub use stream_slots::MAX_STREAMS;
pub use tls::{ServerCredentials, TlsError};
pub use trust::{DEPARTED, ProxyTrust, TrustInUse};
pub use unenforced::{UnenforcedPolicies, UnenforcingWorkloads};
pub use workload_api::{CgroupAttestor, WorkloadApi};
