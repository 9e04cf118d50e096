//! The public keys of others: of issuers of tokens, fetched from where the issuers publish them or read from `ConfigMap`s,
//! and of other trust domains.
//!
//! Authorization policies name a URL, or a `ConfigMap` of their own namespace. Any tenant can write a URL, and the
//! control plane reaches addresses that tenants do not. So it fetches from no other origins than those that its
//! operator has permitted, and never from the machine itself or its cloud (CVE-2026-41413). If a set cannot be
//! fetched, the last good one is kept; without one there are no keys, and no key to fall back to (CVE-2026-31837).
//!
//! ```text
//! objects ─► KeySets::fill ─► objects with keys ─► index
//!               │      ▲
//!               ▼      └─ the last good set, in memory and stored
//!        one task for each URL ─ Fetcher ─► KeySets::refreshed ─► policies with other keys ─► index
//! ```
//!
//! Trust bundles of other trust domains come over the same transport, from a [`BundleEndpoint`].
//!
//! It knows neither proxies nor tokens. Read first: [`KeySets`], then `fetch`.

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
