use std::rc::Rc;

use super::*;
use crate::{Arrival, Direction, EdgeLabels, Outcome, Registry};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";

fn traces(settings: &str) -> Rc<Traces> {
    Rc::new(Traces::new(settings.parse().unwrap()))
}

fn edge(direction: Direction) -> EdgeLabels {
    EdgeLabels {
        direction,
        client: "web-0".into(),
        client_namespace: "shop".into(),
        client_trust_domain: "".into(),
        server: "cart-0".into(),
        server_namespace: "shop".into(),
        service: "cart".into(),
        mtls: true,
    }
}

/// Counts one request with these headers, from its beginning to its end. Returns the trace headers for the next hop.
fn request(
    traces: &Rc<Traces>,
    headers: &[(&str, &str)],
    status: u16,
) -> Vec<(&'static str, String)> {
    let registry = Registry::new().with_traces(Some(Rc::clone(traces)));
    let headers = || ("cart", headers.iter().map(|(name, value)| (*name, value.as_bytes())));
    let mut begun =
        registry.begin(Arrival::Outbound, ("HTTP/1.1", "GET", b"/"), headers, || headers().1);
    begun.routed(|| "HTTPRoute shop/cart rule 0".into());
    let outcome = Outcome { status, ..Outcome::default() };
    registry.end(&registry.edge(&edge(Direction::Outbound)), &begun, &outcome);
    let parent = begun.traceparent();
    let parent = parent.map(|one| String::from_utf8(one.as_bytes().to_vec()).unwrap());
    parent.map(|one| ("traceparent", one)).into_iter().chain(begun.trace_lines()).collect()
}

/// The value of the header `name` among these.
fn told(lines: &[(&'static str, String)], name: &str) -> Option<String> {
    lines.iter().find(|(one, _)| *one == name).map(|(_, value)| value.clone())
}

#[test]
fn the_own_span_is_the_parent_of_what_follows() {
    let traces = traces("a/b:1,sampling=0%");
    let lines = request(&traces, &[("traceparent", &format!("{PARENT}-01"))], 200);
    let spans = traces.queue().take(10, usize::MAX);
    let [span] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(span.parent, Some(0xb7ad_6b71_6920_3331));
    assert!(span.sampled && span.span_id != 0 && Some(span.span_id) != span.parent);
    let wanted = format!("00-{:032x}-{:016x}-01", span.trace_id, span.span_id);
    assert_eq!(lines, [("traceparent", wanted)]);
    assert!(format!("{:032x}", span.trace_id).starts_with("0af7651916cd43dd"));
}

#[test]
fn the_parent_decides_and_else_a_share_of_new_traces() {
    let unsampled = format!("{PARENT}-00");
    let all = traces("a/b:1,sampling=100%");
    assert!(
        request(&all, &[("traceparent", &unsampled)], 200).is_empty(),
        "it is passed on as it came"
    );
    assert!(request(&all, &[("b3", "0")], 200).is_empty());
    assert!(all.queue().take(10, usize::MAX).is_empty());
    let lines = request(&all, &[], 200);
    assert!(told(&lines, "traceparent").unwrap().ends_with("-01"));
    assert_eq!(
        all.queue().take(10, usize::MAX).iter().map(|span| span.parent).collect::<Vec<_>>(),
        [None]
    );

    // The next proxy must learn that the trace is not sampled, so that it does not decide itself.
    let none = traces("a/b:1,sampling=0%");
    let lines = request(&none, &[("tracestate", "of=another")], 200);
    assert!(told(&lines, "traceparent").unwrap().ends_with("-00"));
    assert_eq!(told(&lines, "tracestate").as_deref(), Some(""));
    assert!(none.queue().take(10, usize::MAX).is_empty());
    // A route has its own share of new traces. If there is a parent, its decision counts and not that share.
    let of_route = traces("a/b:1,sampling=0%,route=shop/cart:100%");
    let lines = request(&of_route, &[], 200);
    assert!(told(&lines, "traceparent").unwrap().ends_with("-01"));
    request(&of_route, &[("traceparent", &unsampled)], 200);
    assert_eq!(of_route.queue().take(10, usize::MAX).len(), 1);
}

#[test]
fn b3_is_passed_on_in_the_form_in_which_it_came() {
    let traces = traces("a/b:1");
    let ids = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331";
    let lines = request(&traces, &[("b3", &format!("{ids}-1"))], 200);
    let span = traces.queue().take(1, usize::MAX).pop().unwrap();
    let own = format!("{:016x}", span.span_id);
    assert_eq!(told(&lines, "b3").unwrap(), format!("0af7651916cd43dd8448eb211c80319c-{own}-1"));
    let several = [
        ("x-b3-traceid", "0af7651916cd43dd8448eb211c80319c"),
        ("x-b3-spanid", "b7ad6b7169203331"),
        ("x-b3-sampled", "1"),
    ];
    let lines = request(&traces, &several, 200);
    let span = traces.queue().take(1, usize::MAX).pop().unwrap();
    let own = format!("{:016x}", span.span_id);
    assert_eq!(told(&lines, "x-b3-spanid"), Some(own));
    assert_eq!(told(&lines, "x-b3-parentspanid").as_deref(), Some("b7ad6b7169203331"));
    assert!(told(&lines, "b3").is_none() && told(&lines, "traceparent").is_some());
}

#[test]
fn failed_and_slow_requests_are_kept_within_a_rate() {
    let failed = traces("a/b:1,sampling=0%,errors");
    let unsampled = format!("{PARENT}-00");
    for status in [200, 404, 503] {
        let lines = request(&failed, &[("traceparent", &unsampled)], status);
        // This proxy's span becomes the parent, so that all spans of a failed request form one tree.
        assert!(told(&lines, "traceparent").unwrap().ends_with("-00"));
    }
    let statuses: Vec<_> = failed
        .queue()
        .take(10, usize::MAX)
        .iter()
        .map(|span| (span.request.status, span.sampled))
        .collect();
    assert_eq!(statuses, [(503, false)]);

    let slow = traces("a/b:1,sampling=0%,slower=0s");
    let now = Instant::now();
    let afforded = (0..MAX_KEPT + 5).filter(|_| slow.affords(now)).count();
    assert_eq!(afforded, MAX_KEPT as usize);
    assert!(slow.affords(now + Duration::from_secs(1)));
    request(&slow, &[], 200);
    assert_eq!(slow.queue().take(10, usize::MAX).len(), 1);
}

#[test]
fn spans_beyond_the_queue_are_dropped_and_counted() {
    let traces = traces("a/b:1,sampling=100%");
    let registry = Registry::new().with_traces(Some(Rc::clone(&traces)));
    let labels = edge(Direction::Inbound);
    let edge = registry.edge(&labels);
    for _ in 0..MAX_SPANS + 3 {
        let begun = registry.begin(
            Arrival::Outbound,
            ("HTTP/2", "GET", b"/"),
            || ("", std::iter::empty()),
            std::iter::empty,
        );
        registry.end(&edge, &begun, &Outcome { status: 200, ..Outcome::default() });
    }
    let page = crate::render(&registry.snapshot(), &[], false);
    assert!(page.contains("leno_trace_spans_total{result=\"dropped\"} 3"), "{page}");
    assert_eq!(traces.queue().take(usize::MAX, usize::MAX).len(), MAX_SPANS);
}
