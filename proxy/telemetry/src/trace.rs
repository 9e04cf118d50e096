//! Traces: which requests have spans, what the next hop is told, and the spans that wait to be exported.
//!
//! ```text
//! headers ─► begin: the parent's decision, or a share of new traces ─► lines for the next hop
//!              └─ end: sampled, or kept for what became of it ─► queue ─► Queue::take (the exporter)
//! ```
//! All of it belongs to one worker: there is no lock. A request waits for nothing here: where the queue is full its span
//! is dropped and counted. Without settings none of this is there, and a request has no look at its headers.

use std::cell::Cell;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use leno_tap::{Span, TappedRequest, TraceIds};

use crate::counter::Counter;
use crate::queue::Queue;

mod context;
mod settings;

use context::{Parent, Received};
pub use settings::{Sampling, TraceProtocol, TraceSettings, TraceSettingsError};

/// Spans of a worker that wait for the exporter: those of a second at 2,000 requests per second, about 1 MB.
pub const MAX_SPANS: usize = 2048;
/// Spans in a second that a worker keeps of traces that are not sampled. An outage would else be one of the collector.
pub const MAX_KEPT: u32 = 20;

/// The traces of one worker.
pub struct Traces {
    settings: TraceSettings,
    /// State of the generator of identifiers, which are no secrets.
    random: Cell<[u64; 2]>,
    queue: Queue<Span>,
    started: Instant,
    /// The second, and the spans that were kept in it.
    kept: Cell<(u64, u32)>,
}

/// What became of the span of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It waits to be exported.
    WithSpan,
    /// There is none to be.
    WithoutSpan,
    /// It was dropped, which is to be counted.
    Lost(Counter),
}

/// A request that takes part in a trace.
#[derive(Debug)]
pub(crate) struct Trace {
    trace_id: u128,
    span_id: u64,
    parent: Option<u64>,
    is_sampled: bool,
    received: Received,
}

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
    pub fn queue(&self) -> &Queue<Span> {
        &self.queue
    }

    /// The place of a request in a trace. `None`: it is none of this proxy's business, and is passed on as it came.
    pub(crate) fn begin<'h>(
        &self,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
    ) -> Option<Box<Trace>> {
        let received = context::read(headers);
        let is_refused = received.sampled == Some(false);
        match received.parent {
            // `b3: 0`: no trace at all.
            None if is_refused => None,
            // The parent stays the parent of what follows.
            Some(_) if is_refused && !self.settings.keeps_any() => None,
            parent => {
                let trace_id = parent.map_or_else(|| self.trace_id(), |parent| parent.trace_id);
                let is_sampled =
                    received.sampled.unwrap_or_else(|| self.settings.sampling.takes(trace_id));
                let parent = parent.map(|Parent { span_id, .. }| span_id);
                let span_id = self.random();
                Some(Box::new(Trace { trace_id, span_id, parent, is_sampled, received }))
            }
        }
    }

    /// Whether what happens to a request is to be noted.
    pub(crate) fn notes(&self, trace: &Trace) -> bool {
        trace.is_sampled
            || self.settings.keeps_any()
            || trace.is_new() && !self.settings.routes.is_empty()
    }

    /// Applies the share of a route to a trace that begins with this request.
    pub(crate) fn routed(&self, trace: &mut Trace, route: &str) {
        if trace.is_new()
            && let Some(sampling) = self.settings.of_route(route)
        {
            trace.is_sampled = sampling.takes(trace.trace_id);
        }
    }

    /// Queues the span of a request that has ended, if it is to have one.
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
        let is_queued = self.queue.push(Span {
            trace_id: trace.trace_id,
            span_id: trace.span_id,
            parent: trace.parent,
            sampled: trace.is_sampled,
            request,
        });
        if is_queued { Ended::WithSpan } else { Ended::Lost(Counter::SpansDropped) }
    }

    /// Whether a request has a span though its trace is not sampled.
    fn is_kept(&self, request: &TappedRequest) -> bool {
        let is_slow = |slower: Duration| u128::from(request.latency.total_us) >= slower.as_micros();
        self.settings.keeps_errors && request.is_failed()
            || self.settings.keeps_slower.is_some_and(is_slow)
    }

    /// Whether one more is kept in this second.
    fn affords(&self, now: Instant) -> bool {
        let second = now.saturating_duration_since(self.started).as_secs();
        let (of, kept) = self.kept.get();
        let kept = if of == second { kept } else { 0 };
        let is_within = kept < MAX_KEPT;
        self.kept.set((second, kept.saturating_add(u32::from(is_within))));
        is_within
    }

    fn trace_id(&self) -> u128 {
        u128::from(self.random()) << 64 | u128::from(self.random())
    }

    /// 64 random bits that are not all zero (xoroshiro128+).
    fn random(&self) -> u64 {
        let [a, b] = self.random.get();
        let result = a.wrapping_add(b);
        let mixed = a ^ b;
        self.random.set([a.rotate_left(24) ^ mixed ^ (mixed << 16), mixed.rotate_left(37)]);
        result.max(1)
    }
}

impl Trace {
    /// The trace and the span of the request in it.
    pub(crate) fn ids(&self) -> TraceIds {
        TraceIds { trace_id: self.trace_id, span_id: self.span_id, sampled: self.is_sampled }
    }

    /// Whether the trace begins with this request, and nothing has decided on it.
    fn is_new(&self) -> bool {
        self.received.sampled.is_none()
    }

    /// The headers for the next hop, in the forms in which they came, and always as `traceparent`.
    pub(crate) fn lines(&self) -> Vec<(&'static str, String)> {
        let Self { trace_id, span_id, is_sampled, received, .. } = self;
        let decision: &[u8] = if *is_sampled { b"1" } else { b"0" };
        let (high, low) = (hex((trace_id >> 64) as u64), hex(*trace_id as u64));
        let trace_id = [high, low].concat();
        let span_id = hex(*span_id);
        let text = |parts: &[&[u8]]| String::from_utf8(parts.concat()).unwrap_or_default();
        let mut lines =
            vec![("traceparent", text(&[b"00-", &trace_id, b"-", &span_id, b"-0", decision]))];
        if received.stray_state {
            lines.push(("tracestate", String::new()));
        }
        if received.b3 {
            lines.push(("b3", text(&[&trace_id, b"-", &span_id, b"-", decision])));
        }
        if received.b3_parts {
            lines.push(("x-b3-traceid", text(&[&trace_id])));
            lines.push(("x-b3-spanid", text(&[&span_id])));
            lines.push(("x-b3-sampled", text(&[decision])));
            if let Some(parent) = self.parent {
                lines.push(("x-b3-parentspanid", text(&[&hex(parent)])));
            }
        }
        lines
    }
}

/// 64 bits in hexadecimal digits, without `format!`, which was half of what a trace cost a client's proxy.
fn hex(mut number: u64) -> [u8; 16] {
    let mut digits = [b'0'; 16];
    for digit in digits.iter_mut().rev() {
        let value = (number & 0xf) as u8;
        *digit = if value < 10 { b'0' | value } else { value.wrapping_add(b'a' - 10) };
        number >>= 4;
    }
    digits
}

#[cfg(test)]
mod tests;
