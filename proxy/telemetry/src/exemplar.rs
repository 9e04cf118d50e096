//! Exemplars: for each bucket of a histogram of durations, the last request that has a span. So the user of a dashboard
//! finds a trace for a slow bucket.
//!
//! Only requests whose span is queued for the collector become exemplars; requests without a span cost nothing. An edge
//! with any exemplar has room for one in each bucket, 2 KB.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_requests::BUCKETS;
use leno_tap::TraceIds;

/// One exemplar for each bucket.
pub(crate) type Exemplars = [Option<Exemplar>; BUCKETS];

/// A request in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exemplar {
    trace_id: u128,
    span_id: u64,
    duration: Duration,
    /// When the request ended, since 1970.
    pub(crate) at: Duration,
}

impl Exemplar {
    pub(crate) fn now(duration: Duration, ids: TraceIds) -> Self {
        let TraceIds { trace_id, span_id, .. } = ids;
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { trace_id, span_id, duration, at }
    }
}

/// The form that OpenMetrics 1.0 defines, after a sample: labels, the value, the time. The labels have 62 of the
/// permitted 128 characters.
impl fmt::Display for Exemplar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, span_id, duration, at } = self;
        let (duration, at_s, at_ms) = (duration.as_secs_f64(), at.as_secs(), at.subsec_millis());
        write!(
            f,
            " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {duration} {at_s}.{at_ms:03}"
        )
    }
}

/// The existing exemplars, by bucket.
pub(crate) fn kept(exemplars: Option<&Exemplars>) -> BTreeMap<usize, Exemplar> {
    let all = exemplars.into_iter().flatten().enumerate();
    all.filter_map(|(bucket, exemplar)| Some((bucket, (*exemplar)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::trace::{MAX_SPANS, Traces};
    use crate::{Arrival, Direction, Edge, EdgeLabels, Outcome, Registry, Snapshot, render};

    /// A worker with these settings of traces, and an edge of it.
    fn worker(settings: &str) -> (Registry, Rc<Edge>) {
        let traces = Rc::new(Traces::new(settings.parse().unwrap()));
        let registry = Registry::new().with_traces(Some(traces));
        let edge = registry.edge(&EdgeLabels {
            direction: Direction::Outbound,
            client: "web-0".into(),
            client_namespace: "shop".into(),
            client_trust_domain: "".into(),
            server: "cart-0".into(),
            server_namespace: "shop".into(),
            service: "cart".into(),
            mtls: true,
        });
        (registry, edge)
    }

    /// Counts a request of this trace, which is sampled or not.
    fn request((registry, edge): &(Registry, Rc<Edge>), trace: u128, status: u16) {
        let parent = format!("00-{trace:032x}-00000000000000aa-01");
        let headers = || ("cart", std::iter::once(("traceparent", parent.as_bytes())));
        let begun =
            registry.begin(Arrival::Outbound, ("HTTP/2", "GET", b"/"), headers, || headers().1);
        registry.end(edge, &begun, &Outcome { status, ..Outcome::default() });
    }

    #[test]
    fn the_bucket_of_a_sampled_request_leads_to_its_trace() {
        let worker = worker("obs/collector:4317");
        request(&worker, 0xabc, 200);
        let page = render(&worker.0.snapshot(), &[], true);
        let with = |page: &str| page.lines().filter(|line| line.contains(" # {")).count();
        let line = page.lines().find(|line| line.contains(" # {")).unwrap();
        let (sample, exemplar) = line.split_once(" # ").unwrap();
        assert!(sample.starts_with("leno_request_duration_seconds_bucket{"), "{line}");
        assert!(sample.ends_with("} 1"), "it is in the bucket that counts it: {line}");
        let trace = format!("{{trace_id=\"{:032x}\",span_id=\"", 0xabc);
        let (labels, rest) = exemplar.split_once("} ").unwrap();
        assert!(labels.starts_with(&trace) && labels.len() < 128, "{line}");
        let (value, time) = rest.split_once(' ').unwrap();
        let bound = sample.split_once("le=\"").unwrap().1.split_once('"').unwrap().0;
        assert!(value.parse::<f64>().unwrap() <= bound.parse::<f64>().unwrap(), "{line}");
        assert!(time.parse::<f64>().unwrap() > 1e9, "{line}");
        assert_eq!(with(&page), 1);
        // The text format of Prometheus has no exemplars.
        assert_eq!(with(&render(&worker.0.snapshot(), &[], false)), 0);
    }

    #[test]
    fn requests_without_a_span_are_no_exemplars() {
        let worker = worker("obs/collector:4317,sampling=0%");
        let parent = "00-00000000000000000000000000000abc-00000000000000aa-00";
        let headers = || ("cart", std::iter::once(("traceparent", parent.as_bytes())));
        let begun =
            worker.0.begin(Arrival::Outbound, ("HTTP/2", "GET", b"/"), headers, || headers().1);
        worker.0.end(&worker.1, &begun, &Outcome { status: 200, ..Outcome::default() });
        assert!(worker.1.exemplars.borrow().is_none());
        // Requests whose span is dropped are no exemplars either.
        for trace in 1..=MAX_SPANS as u128 + 1 {
            request(&worker, trace, 200);
        }
        let page = render(&worker.0.snapshot(), &[], true);
        assert!(!page.contains(&format!("trace_id=\"{:032x}\"", MAX_SPANS + 1)), "{page}");
    }

    #[test]
    fn workers_have_the_newest_of_each_bucket() {
        let (first, second) = (worker("obs/collector:4317"), worker("obs/collector:4317"));
        let ids = |trace_id| TraceIds { trace_id, span_id: 7, sampled: true };
        let at = |worker: &(Registry, Rc<Edge>), ms: u64, trace| {
            worker.1.request(200, Duration::from_millis(ms));
            worker.1.exemplify(Duration::from_millis(ms), ids(trace));
        };
        at(&first, 1, 1);
        at(&first, 40, 2);
        at(&second, 1, 3);
        let mut sum = Snapshot::default();
        sum.add(second.0.snapshot());
        sum.add(first.0.snapshot());
        let page = render(&sum, &[], true);
        let has = |trace: u128| page.contains(&format!("trace_id=\"{trace:032x}\""));
        assert!(!has(1) && has(2) && has(3), "{page}");
    }
}
