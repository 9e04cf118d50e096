//! Serves discovery and identity to proxies: one port, TLS, HTTP/2, gRPC.
//!
//! ```text
//!  proxy ── token, certificate request ──► Identity  ──► Authenticator, Authority
//!    │                                                    │ who is it?
//!    └───── certificate ── one stream ───► Discovery ──► Subscriber ──flush──► State (index)
//!                                             ▲                                  │
//!                                             └──────── debounced changes ───────┘
//! ```
//!
//! A stream is told only of what it asked for: addresses by name, its own namespace by the
//! wildcard, and the policy of its own workload. Nothing is queued for a stream; each response is
//! the difference between what the proxy holds and the index as it is when the response leaves, so
//! a slow proxy costs no memory and skips what it missed.
//!
//! It knows neither where objects come from nor what they mean (`leno-index`), nor how
//! certificates are made (`leno-identity`), nor how a token is checked ([`Authenticator`]). Read first: [`State`], then [`Server`].

mod authenticate;
mod discovery;
mod identity;
mod incoming;
mod leases;
mod metrics;
mod peer;
mod recognise;
mod server;
mod state;
mod subscriber;
mod tls;

pub use authenticate::{Answer, Authenticator, LocalTokens, Proven, Refused};
pub use discovery::MAX_STREAMS;
pub use incoming::MAX_CONNECTIONS;
pub use server::{ServeError, Server, Settings};
pub use state::State;
pub use tls::{Credentials, TlsError};
