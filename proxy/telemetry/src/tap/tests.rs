use super::*;
use crate::{Arrival, Direction, EdgeLabels, Outcome, Registry};

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

/// The mark of a request.
fn shown(request: &TappedRequest) -> Option<std::num::NonZeroU64> {
    u64::from_str_radix(request.mark.as_deref()?, 16).ok()?.try_into().ok()
}

fn filter(parameters: &[(&str, &str)]) -> Filter {
    let mut filter = Filter::default();
    for (name, value) in parameters {
        filter.set(name, value).unwrap();
    }
    filter
}

/// Counts one request, from its beginning to its end, in a registry with these taps.
fn request(taps: &Taps, target: &str, status: u16) {
    let registry = Registry::new().with_taps(taps.clone());
    let headers = [("accept", &b"*/*"[..]), ("Authorization", b"Bearer x")];
    let line = ("HTTP/1.1", "GET", target.as_bytes());
    let begun = registry.begin(
        Arrival::Outbound,
        line,
        || ("cart.shop", headers.into_iter()),
        || headers.into_iter(),
    );
    let edge = registry.edge(&edge(Direction::Outbound));
    let outcome = Outcome { status, ..Outcome::default() };
    registry.end(&edge, &begun, &outcome);
}

fn targets(taps: &Taps) -> Vec<String> {
    let (events, _) = taps.poll("t").unwrap();
    events.iter().map(|event| event.target.to_string()).collect()
}

#[test]
fn requests_are_recorded_from_the_opening_of_a_tap_to_its_end() {
    let taps = Taps::default();
    request(&taps, "/before", 200);
    assert!(!taps.is_on() && taps.poll("t").is_none());
    taps.open("t", Filter::default()).unwrap();
    request(&taps, "/a?token=secret&b=c", 200);
    let (events, counted) = taps.poll("t").unwrap();
    assert_eq!((events.len(), counted.queued), (1, 1));
    let event = events.first().unwrap();
    assert_eq!((&*event.target, &*event.authority), ("/a?token=(masked)&b=c", "cart.shop"));
    assert!(event.headers.is_empty(), "they were not wanted");
    assert_eq!(taps.close("t"), Some(Counted { queued: 1, ..Counted::default() }));
    assert!(!taps.is_on());
    assert_eq!(taps.counted().queued, 1, "the sum stays");
}

#[test]
fn a_filter_leaves_out_the_rest() {
    for (parameters, expected) in [
        (&[("method", "GET")][..], 3),
        (&[("method", "POST")], 0),
        (&[("path", "/api")], 2),
        (&[("status", "5xx")], 1),
        (&[("status", "200"), ("path", "/api")], 1),
        (&[("to", "shop/cart")], 3),
        (&[("to", "shop/cart-0")], 3),
        (&[("to", "bank/cart")], 0),
        (&[("to", "shop/db"), ("to", "shop/*")], 3),
        (&[("from", "shop/web-0"), ("direction", "outbound")], 3),
        (&[("direction", "inbound")], 0),
        (&[("marked", "true")], 0),
    ] {
        let taps = Taps::default();
        taps.open("t", filter(parameters)).unwrap();
        request(&taps, "/", 200);
        request(&taps, "/api/a", 200);
        request(&taps, "http://cart/api?x", 503);
        assert_eq!(targets(&taps).len(), expected, "{parameters:?}");
    }
    for (name, value) in [
        ("status", "6xx"),
        ("status", "20"),
        ("rate", "0"),
        ("rate", "501"),
        ("to", "cart"),
        ("x", ""),
    ] {
        assert!(Filter::default().set(name, value).is_err(), "{name}={value}");
    }
}

#[test]
fn headers_are_shown_on_demand_and_without_secrets() {
    let taps = Taps::default();
    taps.open("t", filter(&[("headers", "true")])).unwrap();
    request(&taps, "/", 200);
    let (events, _) = taps.poll("t").unwrap();
    let headers: Vec<_> = events
        .iter()
        .flat_map(|one| &one.headers)
        .map(|(name, value)| (&**name, &**value))
        .collect();
    assert_eq!(headers, [("accept", "*/*"), ("Authorization", MASK)]);
}

#[test]
fn what_exceeds_the_rate_or_the_queue_is_counted() {
    let taps = Taps::default();
    let tap = Tap::new("u", 1, filter(&[("rate", "2")]));
    let at = |ms| tap.opened + Duration::from_millis(ms);
    let spent: Vec<bool> = [0, 10, 20, 999, 1000, 1001, 1002].map(|ms| tap.spend(at(ms))).into();
    assert_eq!(spent, [true, true, false, false, true, true, false]);

    taps.open("t", filter(&[("marked", "false"), ("rate", "500")])).unwrap();
    for _ in 0..MAX_QUEUED + 10 {
        request(&taps, "/", 200);
    }
    let (events, counted) = taps.poll("t").unwrap();
    assert_eq!(events.len(), MAX_QUEUED);
    assert_eq!((counted.queued, counted.dropped), (MAX_QUEUED as u64, 10));
}

#[test]
fn a_request_beyond_the_rate_is_counted_if_the_tap_is_for_it() {
    let taps = Taps::default();
    taps.open("t", filter(&[("rate", "1"), ("to", "shop/cart"), ("status", "5xx")])).unwrap();
    let registry = Registry::new().with_taps(taps.clone());
    let cart = edge(Direction::Outbound);
    let other = EdgeLabels { server: "db-0".into(), service: "db".into(), ..cart.clone() };
    let end = |begun: &crate::Begun, edge: &EdgeLabels, status| {
        let outcome = Outcome { status, ..Outcome::default() };
        registry.end(&registry.edge(edge), begun, &outcome);
    };
    // Usually all requests begin within one second, and the first of them uses up the rate of that second.
    let begin = || {
        registry.begin(
            Arrival::Outbound,
            ("HTTP/2", "GET", b"/"),
            || ("", std::iter::empty()),
            std::iter::empty,
        )
    };
    let first = begin();
    end(&first, &cart, 503);
    let rest = [begin(), begin(), begin()];
    for (begun, (to, status)) in rest.iter().zip([(&cart, 503), (&cart, 200), (&other, 503)]) {
        end(begun, to, status);
    }
    let (events, counted) = taps.poll("t").unwrap();
    // If a new second starts before the next request begins, that request is shown, too.
    assert!((1..=2).contains(&events.len()), "{events:?}");
    assert_eq!(counted.queued + counted.sampled_out, 2, "{counted:?}");
    // A request that began under a tap is not counted once that tap was replaced.
    let old = begin();
    taps.open("t", filter(&[("rate", "1")])).unwrap();
    end(&old, &cart, 503);
    assert_eq!(taps.poll("t").unwrap().1.sampled_out, 0);
}

#[test]
fn a_request_beyond_the_rate_is_counted_whatever_becomes_of_other_taps_meanwhile() {
    let taps = Taps::default();
    taps.open("other", filter(&[("direction", "inbound")])).unwrap();
    taps.open("t", filter(&[("rate", "1")])).unwrap();
    let registry = Registry::new().with_taps(taps.clone());
    let labels = registry.edge(&edge(Direction::Outbound));
    let begin = || {
        registry.begin(
            Arrival::Outbound,
            ("HTTP/2", "GET", b"/"),
            || ("", std::iter::empty()),
            std::iter::empty,
        )
    };
    let end = |begun: &crate::Begun| registry.end(&labels, begun, &Outcome::default());
    let version = taps.version();
    let begun: Vec<_> = (0..5).map(|_| begin()).collect();
    assert!(taps.close_lapsed(Instant::now()).is_empty());
    assert_eq!(taps.version(), version, "nothing has changed");
    let mut begun = begun.iter();
    begun.by_ref().take(2).for_each(end);
    // The worker reads the changed taps when the next request begins.
    taps.open("third", filter(&[("direction", "inbound")])).unwrap();
    end(&begin());
    begun.by_ref().take(1).for_each(end);
    taps.close("other").unwrap();
    end(&begin());
    begun.for_each(end);
    let (_, counted) = taps.poll("t").unwrap();
    // In each second one request is queued, and the others are counted. Seven requests were sent in all.
    assert_eq!(counted.queued + counted.sampled_out, 7, "{counted:?}");
    assert!(counted.sampled_out >= 1, "{counted:?}");
}

#[test]
fn a_worker_keeps_no_tap_that_was_closed_once_another_request_begins() {
    let taps = Taps::default();
    taps.open("t", Filter::default()).unwrap();
    let tap = taps.read().first().cloned().unwrap();
    let registry = Registry::new().with_taps(taps.clone());
    let begin = || {
        let none = || ("", std::iter::empty::<(&str, &[u8])>());
        drop(registry.begin(Arrival::Outbound, ("HTTP/2", "GET", b"/"), none, || none().1));
    };
    begin();
    taps.close("t").unwrap();
    assert!(Arc::strong_count(&tap) > 1, "the worker has it");
    begin();
    assert_eq!(Arc::strong_count(&tap), 1);
}

#[test]
fn taps_are_few_and_lapse() {
    let taps = Taps::default();
    for name in ["a", "b", "c", "d"] {
        taps.open(name, Filter::default()).unwrap();
    }
    assert_eq!(taps.open("e", Filter::default()), Err(TooManyTaps));
    taps.open("a", Filter::default()).unwrap();
    let now = Instant::now();
    assert!(taps.close_lapsed(now).is_empty());
    assert_eq!(taps.close_lapsed(now + LAPSE).len(), MAX_TAPS);
    assert!(!taps.is_on() && taps.is_empty());
}

#[test]
fn a_request_of_a_tapped_client_has_one_mark_and_is_taken_out_of_the_rate_once() {
    let taps = Taps::default();
    taps.open("t", filter(&[("rate", "1")])).unwrap();
    let registry = Registry::new().with_taps(taps.clone());
    let begun = registry.begin(
        Arrival::Outbound,
        ("HTTP/2", "GET", b"/"),
        || ("", std::iter::empty()),
        std::iter::empty,
    );
    let outbound = edge(Direction::Outbound);
    let first = begun.mark(&outbound, || None);
    assert!(first.is_some());
    begun.retried();
    assert_eq!(begun.mark(&outbound, || Some("spiffe://a".into())), first);
    let first = first.map(|mark| mark.number);
    let outcome = Outcome { status: 200, ..Outcome::default() };
    registry.end(&registry.edge(&outbound), &begun, &outcome);
    let (events, _) = taps.poll("t").unwrap();
    let event = events.first().unwrap();
    assert_eq!(
        (shown(event), event.retries, event.server_identity.as_deref()),
        (first, 1, Some("spiffe://a"))
    );

    // At the server's proxy, a tap shows only requests that the client's proxy has marked.
    taps.open("t", filter(&[("marked", "true")])).unwrap();
    for mark in [None, first] {
        let arrival = Arrival::Inbound { mark };
        let begun = registry.begin(
            arrival,
            ("HTTP/2", "GET", b"/"),
            || ("", std::iter::empty()),
            std::iter::empty,
        );
        begun.came_from(|| None);
        registry.end(&registry.edge(&edge(Direction::Inbound)), &begun, &outcome);
    }
    let (events, _) = taps.poll("t").unwrap();
    assert_eq!(events.iter().map(shown).collect::<Vec<_>>(), [first]);
}

#[test]
fn a_request_is_followed_over_its_hops_and_no_other_one_is() {
    let (id, other) = ("00000000abcd0001", "00000000abcd0002");
    let taps = Taps::default();
    let wanted = [("follow", id), ("most", "1"), ("decisions", "true"), ("direction", "outbound")];
    taps.open("t", filter(&wanted)).unwrap();
    let registry = Registry::new().with_taps(taps.clone());
    let outbound = edge(Direction::Outbound);
    let outcome = Outcome { status: 200, ..Outcome::default() };
    let state = [("tracestate", "vendor=1")].map(|(name, value)| (name, value.as_bytes()));
    let mut marks = Vec::new();
    for _ in 0..2 {
        let mut begun = registry.begin(
            Arrival::Outbound,
            ("HTTP/2", "GET", b"/"),
            || ("", state.into_iter()),
            || state.into_iter(),
        );
        begun.routed(|| "HTTPRoute shop/cart rule 0".into());
        marks.push(begun.mark(&outbound, || Some("spiffe://a".into())));
        registry.end(&registry.edge(&outbound), &begun, &outcome);
    }
    assert_eq!(marks.get(1), Some(&None), "it is for one request");
    let mark = marks.first().copied().flatten().unwrap();
    assert_eq!(mark.state().unwrap().1, format!("leno={id}"));
    assert!(mark.parent().is_some_and(|(_, value)| value.ends_with("-00")), "{mark:?}");
    let (events, _) = taps.poll("t").unwrap();
    let event = events.first().unwrap();
    let decided: Vec<&str> = event.decisions.iter().map(|one| &*one.what).collect();
    assert_eq!(decided, ["follows HTTPRoute shop/cart rule 0", "goes to shop/cart-0, spiffe://a"]);
    assert_eq!((events.len(), event.followed.as_deref()), (1, Some(id)));

    // The proxy of a later hop compares identifiers without their last digits, which name the target by which the
    // request was chosen.
    taps.open("t", filter(&[("followed", other)])).unwrap();
    for member in [format!("leno={id},vendor=1"), "vendor=1".to_owned(), "leno=0".to_owned()] {
        let headers = || [("Tracestate", member.as_bytes())].into_iter();
        let begun =
            registry.begin(Arrival::Outbound, ("HTTP/2", "GET", b"/"), || ("", headers()), headers);
        let mark = begun.mark(&outbound, || None);
        assert!(mark.is_none_or(|mark| mark.state().is_none()), "it has the line already");
        registry.end(&registry.edge(&outbound), &begun, &outcome);
    }
    let (events, _) = taps.poll("t").unwrap();
    let followed: Vec<_> = events.iter().map(|event| event.followed.as_deref()).collect();
    assert_eq!(followed, [Some(id)]);
}

#[test]
fn the_bodies_of_so_many_requests_are_copied_at_a_time() {
    let taps = Taps::default();
    let wanted = [("bodies", "true"), ("decisions", "true"), ("method", "POST"), ("most", "1")];
    taps.open("t", filter(&wanted)).unwrap();
    let registry = Registry::new().with_taps(taps.clone());
    let begin = |method: &'static str| {
        let none = || ("", std::iter::empty::<(&str, &[u8])>());
        registry.begin(Arrival::Outbound, ("HTTP/1.1", method, b"/"), none, || none().1)
    };
    assert!(begin("GET").copies().is_none(), "the tap does not take it");
    let mut begun: Vec<_> = (0..MAX_COPIED).map(|_| begin("POST")).collect();
    assert!(begun.iter().all(|one| one.copies().is_some()));
    let beyond = begin("POST");
    assert!(beyond.copies().is_none());
    assert_eq!(taps.not_copied(), 1);

    // When a request ends, the bodies of another one can be copied.
    begun.pop();
    assert!(begin("POST").copies().is_some());

    let edge = registry.edge(&edge(Direction::Outbound));
    registry.end(&edge, &beyond, &Outcome { status: 200, ..Outcome::default() });
    let (events, _) = taps.poll("t").unwrap();
    let decided = events.iter().flat_map(|event| &event.decisions);
    let decided: Vec<&str> = decided.map(|one| &*one.what).collect();
    assert_eq!(decided, ["bodies are not shown: those of 64 other requests are copied now"]);
    assert!(begin("POST").copies().is_none(), "the tap has the one request that it is for");
}
