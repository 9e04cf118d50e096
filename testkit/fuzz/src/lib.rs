//! Fuzz targets for every parser of untrusted input and for the whole proxy. Each checks properties that must hold
//! for any input.
//!
//! A [`Target`] takes bytes and panics if a property does not hold. Two programs run them:
//!
//! ```text
//! corpus/TARGET/* ──► tests/corpus.rs   every input, in `make test`
//!        │    ▲
//!        ▼    └────── new and failing inputs
//!     libFuzzer ────► leno-fuzz         mutated for coverage, by `make fuzz`
//! ```
//!
//! libFuzzer needs no nightly compiler, because flags of the stable compiler insert the coverage counters
//! (`scripts/fuzz.sh`). It is built only with the feature `engine`.
//!
//! The target `proxy` runs both planes of a proxy, outbound and inbound, on scripted sockets, with a clock that only
//! the script advances. Its inputs are decoded into a configuration, requests, responses and an order of events, so
//! that any bytes are a case; its module lists the properties. [`adversary`] sends crafted requests through the same
//! planes.
//!
//! If there is another implementation of the same standard, the target compares Leno's with it: httparse,
//! loona-hpack and the `h2` crate. gRPC's own framing has no target, because the proxy does not parse it.
//!
//! Read first: [`TARGETS`], then the module of the target; for the whole proxy [`proxy::Case`].

pub mod adversary;
mod first_bytes;
mod h2_client;
mod h2_server;
mod hpack;
mod http1;
pub mod proxy;
mod quiet;
mod samples;
mod translate;
mod wire;
mod yaml;

/// A fuzz target: a parser, several parsers of the same bytes, or the whole proxy.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target and of its folder in `corpus`.
    pub name: &'static str,
    /// Panics if a property does not hold for these bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 10] = [
    Target { name: "first_bytes", run: first_bytes::run },
    Target { name: "http1", run: http1::run },
    Target { name: "hpack", run: hpack::run },
    Target { name: "h2_server", run: h2_server::run },
    Target { name: "h2_client", run: h2_client::run },
    Target { name: "translate", run: translate::run },
    Target { name: "yaml", run: yaml::run },
    Target { name: "wire", run: wire::run },
    Target { name: "samples", run: samples::run },
    Target { name: "proxy", run: proxy::run },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
