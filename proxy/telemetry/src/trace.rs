//! Traces: which requests have spans, the trace headers for the next hop, and the spans that wait to be exported.
//!
//! ```text
//! headers ─► begin: the parent's decision, or a share of new traces ─► lines for the next hop
//!              └─ end: sampled, or kept for what became of it ─► queue ─► Queue::take (the exporter)
//! ```
//! All of this belongs to one worker, so there is no lock, and no request waits: if the queue is full, the span is
//! dropped and counted. Without settings for traces, the headers of requests are not examined.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use leno_tap::{TappedRequest, TraceIds, TraceSpan};

use crate::counter::Counter;
use crate::queue::Queue;

mod context;
mod settings;

use context::{Forms, Lines, Parent};
pub use settings::{Sampling, TraceProtocol, TraceSettings, TraceSettingsError};

/// How many spans of a worker may wait for the exporter: those of a second at 2,000 requests per second, about 1 MB.
pub const MAX_SPANS: usize = 2048;
/// The largest number of spans per second that a worker keeps of traces that are not sampled. Otherwise an outage, in
/// which all requests fail, would overload the collector.
pub const MAX_KEPT: u32 = 20;

/// The traces of one worker.
pub struct Traces {
    settings: TraceSettings,
    /// The state of the generator of identifiers, which are not secret.
    random: Cell<[u64; 2]>,
    queue: Queue<TraceSpan>,
    started: Instant,
    /// The current second, and the number of spans that were kept in it.
    kept: Cell<(u64, u32)>,
}

/// The result for the span of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The span waits to be exported.
    WithSpan,
    /// The request has no span.
    WithoutSpan,
    /// The span was dropped; the counter counts this.
    Lost(Counter),
}

/// A request's place in a trace. Most traces are not sampled, so this value is stored within the request, without an
/// allocation of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace {
    /// The upper and the lower half of the trace's identifier.
    trace_id: [u64; 2],
    span_id: u64,
    /// `None` if the trace begins here.
    parent: Option<NonZeroU64>,
    is_sampled: bool,
    /// Whether no proxy before this one has decided if the trace is sampled.
    is_new: bool,
    /// In which formats the next hop gets the trace context.
    forms: Forms,
}

/// The value of `traceparent` for the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent([u8; 55]);

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traces").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Traces {
    /// The traces of a worker with these settings.
    #[must_use]
    pub fn new(settings: TraceSettings) -> Self {
        let seed = |salt: u64| RandomState::new().hash_one(salt);
        Self {
            settings,
            random: Cell::new([seed(0), seed(1)]),
            queue: Queue::new(MAX_SPANS),
            started: Instant::now(),
            kept: Cell::default(),
        }
    }

    /// The spans that wait for the exporter.
    #[must_use]
    pub fn queue(&self) -> &Queue<TraceSpan> {
        &self.queue
    }

    /// A request's place in a trace. `None` if this proxy takes no part in the trace, and forwards the request's
    /// headers unchanged.
    pub(crate) fn begin<'h>(
        &self,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
    ) -> Option<Trace> {
        let lines = Lines::of(headers);
        if !self.settings.keeps_any() && lines.is_plainly_unsampled() {
            return None;
        }
        let received = lines.read();
        let is_refused = received.sampled == Some(false);
        match received.parent {
            // `b3: 0` without identifiers: the sender wants no trace.
            None if is_refused => None,
            // This proxy adds no span, so the next hop gets the same parent.
            Some(_) if is_refused && !self.settings.keeps_any() => None,
            parent => {
                let trace_id = match parent {
                    Some(Parent { trace_id, .. }) => [(trace_id >> 64) as u64, trace_id as u64],
                    None => [self.random(), self.random()],
                };
                let takes = || self.settings.sampling.takes(whole(trace_id));
                Some(Trace {
                    trace_id,
                    span_id: self.random(),
                    parent: parent.and_then(|parent| NonZeroU64::new(parent.span_id)),
                    is_sampled: received.sampled.unwrap_or_else(takes),
                    is_new: received.sampled.is_none(),
                    forms: received.forms,
                })
            }
        }
    }

    /// Whether the details of the request must be recorded for a possible span.
    pub(crate) fn notes(&self, trace: &Trace) -> bool {
        trace.is_sampled
            || self.settings.keeps_any()
            || trace.is_new && !self.settings.routes.is_empty()
    }

    /// Applies the sampling share of a route, unless an earlier proxy has decided.
    pub(crate) fn routed(&self, trace: &mut Trace, route: &str) {
        if trace.is_new
            && let Some(sampling) = self.settings.of_route(route)
        {
            trace.is_sampled = sampling.takes(whole(trace.trace_id));
        }
    }

    /// Queues the span of a request that has ended, if it has one.
    pub(crate) fn end(&self, trace: &Trace, request: impl FnOnce() -> TappedRequest) -> Ended {
        let request = match trace.is_sampled {
            true => request(),
            false if self.settings.keeps_any() => {
                let request = request();
                if !self.is_kept(&request) {
                    return Ended::WithoutSpan;
                }
                if !self.affords(Instant::now()) {
                    return Ended::Lost(Counter::SpansBeyondRate);
                }
                request
            }
            false => return Ended::WithoutSpan,
        };
        let is_queued = self.queue.push(TraceSpan {
            trace_id: whole(trace.trace_id),
            span_id: trace.span_id,
            parent: trace.parent.map(NonZeroU64::get),
            sampled: trace.is_sampled,
            request,
        });
        if is_queued { Ended::WithSpan } else { Ended::Lost(Counter::SpansDropped) }
    }

    /// Whether a request has a span although its trace is not sampled.
    fn is_kept(&self, request: &TappedRequest) -> bool {
        let is_slow = |slower: Duration| u128::from(request.latency.total_us) >= slower.as_micros();
        self.settings.keeps_errors && request.is_failed()
            || self.settings.keeps_slower.is_some_and(is_slow)
    }

    /// Whether another span of a trace that is not sampled may be kept in the current second.
    fn affords(&self, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.started).as_secs();
        let (of, kept) = self.kept.get();
        let kept = if of == second { kept } else { 0 };
        let is_within = kept < MAX_KEPT;
        self.kept.set((second, kept.saturating_add(u32::from(is_within))));
        is_within
    }

    /// 64 random bits (xoroshiro128+) that are not all zero.
    fn random(&self) -> u64 {
        let [a, b] = self.random.get();
        let result = a.wrapping_add(b);
        let mixed = a ^ b;
        self.random.set([a.rotate_left(24) ^ mixed ^ (mixed << 16), mixed.rotate_left(37)]);
        result.max(1)
    }
}

impl Trace {
    /// The identifiers of the trace and of the request's span.
    pub(crate) fn ids(&self) -> TraceIds {
        let trace_id = whole(self.trace_id);
        TraceIds { trace_id, span_id: self.span_id, sampled: self.is_sampled }
    }

    /// The `traceparent` for the next hop, in place of the received one.
    pub(crate) fn traceparent(&self) -> TraceParent {
        let mut text = *b"00-................................-................-00";
        let [high, low] = self.trace_id.map(hex);
        let parts: [(usize, &[u8]); 4] =
            [(3, &high), (19, &low), (36, &hex(self.span_id)), (54, self.decision())];
        for (at, part) in parts {
            let there = text.get_mut(at..).and_then(|rest| rest.get_mut(..part.len()));
            there.into_iter().for_each(|there| there.copy_from_slice(part));
        }
        TraceParent(text)
    }

    /// The trace headers in the other formats in which the request came. Most requests have none.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        let Forms { b3, b3_parts, stray_state } = self.forms;
        if !(b3 || b3_parts || stray_state) {
            return lines;
        }
        let trace_id = self.trace_id.map(hex).concat();
        let (span_id, decision) = (hex(self.span_id), self.decision());
        let text = |parts: &[&[u8]]| String::from_utf8(parts.concat()).unwrap_or_default();
        if stray_state {
            lines.push(("tracestate", String::new()));
        }
        if b3 {
            lines.push(("b3", text(&[&trace_id, b"-", &span_id, b"-", decision])));
        }
        if b3_parts {
            lines.push(("x-b3-traceid", text(&[&trace_id])));
            lines.push(("x-b3-spanid", text(&[&span_id])));
            lines.push(("x-b3-sampled", text(&[decision])));
            if let Some(parent) = self.parent {
                lines.push(("x-b3-parentspanid", text(&[&hex(parent.get())])));
            }
        }
        lines
    }

    fn decision(&self) -> &'static [u8; 1] {
        if self.is_sampled { b"1" } else { b"0" }
    }
}

impl TraceParent {
    /// The value of the header.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 55] {
        &self.0
    }
}

fn whole([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

/// 64 bits in hexadecimal digits. All digits are computed at once: each half of a byte is moved into a byte of its own,
/// and digits above 9 are shifted by the distance between `9` and `a`.
fn hex(number: u64) -> [u8; 16] {
    let digits = |half: u32| {
        let mut spread = u64::from(half);
        spread = (spread | spread << 16) & 0x0000_ffff_0000_ffff;
        spread = (spread | spread << 8) & 0x00ff_00ff_00ff_00ff;
        spread = (spread | spread << 4) & 0x0f0f_0f0f_0f0f_0f0f;
        // The bit of value 16 is set in each byte whose digit is above 9.
        let letters = (spread.wrapping_add(0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
        let distance = letters.wrapping_mul(u64::from(b'a' - b'9' - 1));
        spread.wrapping_add(0x3030_3030_3030_3030).wrapping_add(distance).to_be_bytes()
    };
    let (high, low) = (digits((number >> 32) as u32), digits(number as u32));
    let mut all = [0; 16];
    let (first, second) = all.split_at_mut(8);
    first.copy_from_slice(&high);
    second.copy_from_slice(&low);
    all
}

#[cfg(test)]
mod tests;
