//! Fuzz targets: for every parser that reads what others wrote, and for the whole proxy, what must hold for
//! any input.
//!
//! A [`Target`] takes bytes and panics if something does not hold. Two programs feed them:
//!
//! ```text
//! corpus/TARGET/* ──► tests/corpus.rs   every input, in `make test`
//!        │    ▲
//!        ▼    └────── new and failing inputs
//!     libFuzzer ────► leno-fuzz         mutated for coverage, by `make fuzz`
//! ```
//!
//! libFuzzer needs no nightly compiler: coverage is put in by flags of the stable one
//! (`scripts/fuzz.sh`). Without the feature `engine` nothing of it is built.
//!
//! The target `proxy` runs both planes on scripted sockets, with a clock that only the script moves. Its
//! inputs are decoded into a configuration, requests, answers and an order of events, so that any bytes are
//! a case; its module says what must hold. [`adversary`] sends crafted requests through the same planes.
//!
//! Where there is another implementation of the same standard, a target holds ours against it:
//! httparse, loona-hpack and the `h2` crate. gRPC's own framing has no target, since the proxy
//! does not read it.
//!
//! Read first: [`TARGETS`], then the module of the target; of the whole proxy [`proxy::Case`].

pub mod adversary;
mod first_bytes;
mod h2_client;
mod h2_server;
mod hpack;
mod http1;
pub mod proxy;
mod quiet;
mod translate;
mod wire;
mod yaml;

/// One parser, several that meet the same bytes, or the whole proxy.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, that of its folder in `corpus` too.
    pub name: &'static str,
    /// Panics if something does not hold for these bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: [Target; 9] = [
    Target { name: "first_bytes", run: first_bytes::run },
    Target { name: "http1", run: http1::run },
    Target { name: "hpack", run: hpack::run },
    Target { name: "h2_server", run: h2_server::run },
    Target { name: "h2_client", run: h2_client::run },
    Target { name: "translate", run: translate::run },
    Target { name: "yaml", run: yaml::run },
    Target { name: "wire", run: wire::run },
    Target { name: "proxy", run: proxy::run },
];

/// The target of this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
