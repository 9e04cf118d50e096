//! Reads requests of unencrypted traffic from samples of payload, which the kernel programs take if no proxy
//! counts requests.
//!
//! ```text
//!  samples ── Sampler, a thread ──► Conversations: one Conversation per connection, with its protocol's parser
//!                                       │ Exchange: kind, result, time
//!                                       ▼
//!                                     Rows ── each reading ──► wire_requests (kernel), metrics
//! ```
//! Parsers get bytes of arbitrary programs. Bytes that they cannot parse are ignored, and are never an error.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, clippy::unreachable)
)]

mod conversation;
mod conversations;
mod metrics;
mod protocol;
mod rows;
mod sampler;

use leno_bpf_abi::flow::FlowSample;

pub use metrics::WireRow;
pub(crate) use metrics::{PublishedWire, add_family, list};
pub(crate) use sampler::WireSampling;

/// A request and its result, as samples show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledRequest {
    /// The protocol, such as `http1` or `redis`.
    pub protocol: &'static str,
    /// The kind of request.
    pub kind: &'static str,
    /// Its result.
    pub result: &'static str,
    /// The time from its first byte to the first byte of the response, if that was seen.
    pub took_ns: Option<u64>,
}

/// Reads samples in order, as the aggregator does, and then ends all connections. This does not use the kernel.
#[must_use]
pub fn read_samples(samples: &[FlowSample]) -> Vec<SampledRequest> {
    let (mut talks, mut found) = (conversations::Conversations::default(), Vec::new());
    let mut each = |_: conversations::ExchangePair, one: conversation::Exchange| {
        let protocol = protocol::Protocol::name_of(one.protocol as u8);
        let conversation::Exchange { kind, result, took_ns, .. } = one;
        found.push(SampledRequest { protocol, kind, result, took_ns });
    };
    for sample in samples {
        talks.take(sample, &mut each);
    }
    talks.sweep(u64::MAX, &mut each);
    found
}
