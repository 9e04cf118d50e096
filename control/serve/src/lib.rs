//! Serves discovery, identity and shared rate limits to proxies, on one port over TLS, HTTP/2 and gRPC.
//!
//! ```text
//!  proxy ── token, certificate request ──► Identity  ──► Authenticator, Authority
//!    │                                                    │ who is it?
//!    ├───── certificate ── one stream ───► Discovery ──► Subscriber ──flush──► PlaneState: index,
//!    │                                        ▲                                │ encodings
//!    │                                        └─ Mailbox ◄── Subscriptions ◄───┘
//!    └───── certificate ── one stream ───► Limits: tokens of shared rate limits (leases)
//! ```
//!
//! A stream receives only what it has subscribed to: services and workloads by name or address, and the policy of
//! its own workload. A change wakes the streams that are subscribed to what changed (`subscriptions`), and each
//! version of a resource is encoded once for all of them (`encodings`). Nothing is queued for a stream. Each
//! response is the difference between what the proxy has and what the index has when the response is sent. So a
//! slow proxy costs no memory, and skips versions in between.
//!
//! Objects are interpreted by `leno-index`, certificates are issued by `leno-identity`, and tokens are verified by an
//! [`Authenticator`]. [`WorkloadApi`] issues certificates to applications on the same machine, over a Unix socket. Read
//! first: [`PlaneState`], then [`PlaneServer`].

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
