//! Provides public keys of token issuers and of other trust domains. The keys of token issuers are fetched from
//! the issuers' URLs, or read from `ConfigMap`s and `Secret`s. The keys of other trust domains are fetched from
//! their bundle endpoints.
//!
//! Authorization policies name a URL, or an object in their own namespace. Any tenant can write a URL, and the
//! control plane can connect to addresses that tenants cannot. So it only fetches from origins that its operator
//! has permitted, and never from its own machine or its cloud's metadata servers (CVE-2026-41413). If a set cannot
//! be fetched, the last good one remains in use. If there is none, there are no keys, and no default key is used
//! (CVE-2026-31837).
//!
//! ```text
//! objects ─► KeySets::fill ─► objects with keys ─► index
//!               │      ▲
//!               ▼      └─ the last good set, in memory and stored
//!        one task for each URL ─ Fetcher ─► KeySets::refreshed ─► policies with other keys ─► index
//! ```
//!
//! Trust bundles of other trust domains are fetched with the same code, by a [`BundleEndpoint`].
//!
//! Read first: [`KeySets`], then `fetch`.

mod authorities;
mod bundle_endpoint;
mod fetch;
mod published;
mod sets;
mod store;

pub use authorities::{AuthoritiesError, WebAuthorities};
pub use bundle_endpoint::{BundleEndpoint, EndpointError, EndpointServer};
pub use sets::{KeySets, key_objects};
pub use store::{DesiredDocuments, DocumentStore, SharedDocuments};
