use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::{
    Arrival, CountedRule, Direction, MAX_EDGES, MAX_ROUTES, MAX_TLS_NAMES, Outcome, Registry,
};

fn labels(server: &str) -> EdgeLabels {
    EdgeLabels {
        direction: Direction::Outbound,
        client: "web-0".into(),
        client_namespace: "shop".into(),
        client_trust_domain: "".into(),
        server: server.into(),
        server_namespace: "shop".into(),
        service: "cart".into(),
        mtls: true,
    }
}

fn up() -> Measured {
    Measured { kind: Kind::Gauge, name: "leno_up", labels: "".into(), help: "One.", value: 1.0 }
}

fn counted() -> Snapshot {
    let registry = Registry::new();
    let edge = registry.edge(&labels("cart-0"));
    edge.request(200, Duration::from_micros(1200));
    edge.request(503, Duration::from_micros(90));
    edge.error("connect");
    edge.tcp_opened();
    edge.bytes(10, 20);
    registry.count(Counter::OutboundHandshake);
    registry.snapshot()
}

#[test]
fn an_edge_is_rendered_with_its_labels() {
    let mut sum = Snapshot::default();
    sum.add(counted());
    sum.add(counted());
    let gauge = up();
    let text = render(&sum, &[gauge], false);
    let edge = "direction=\"outbound\",client=\"web-0\",client_namespace=\"shop\",\
                server=\"cart-0\",server_namespace=\"shop\",service=\"cart\",mtls=\"true\"";
    for line in [
        format!("leno_requests_total{{{edge},status=\"200\"}} 2"),
        format!("leno_requests_total{{{edge},status=\"503\"}} 2"),
        format!("leno_request_duration_seconds_bucket{{{edge},le=\"0.0001\"}} 2"),
        format!("leno_request_duration_seconds_bucket{{{edge},le=\"+Inf\"}} 4"),
        format!("leno_request_duration_seconds_count{{{edge}}} 4"),
        format!("leno_errors_total{{{edge},cause=\"connect\"}} 2"),
        format!("leno_tcp_open_connections{{{edge}}} 2"),
        format!("leno_tcp_written_bytes_total{{{edge}}} 40"),
        "leno_tls_handshakes_total{direction=\"outbound\"} 2".to_owned(),
        "leno_up 1".to_owned(),
        "# TYPE leno_requests_total counter".to_owned(),
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
    }
}

#[test]
fn every_line_can_be_read_back_and_no_series_stands_twice() {
    for open in [false, true] {
        let text = render(&counted(), &[], open);
        let mut seen = HashSet::new();
        let mut families = HashSet::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# TYPE ") {
                assert!(families.insert(comment.to_owned()), "{line}");
            } else if !line.starts_with('#') {
                let (series, value) = line.rsplit_once(' ').unwrap();
                value.parse::<f64>().unwrap();
                assert!(seen.insert(series.to_owned()), "{line}");
            }
        }
        assert_eq!(text.ends_with("# EOF\n"), open);
        let counter = if open { "leno_requests counter" } else { "leno_requests_total counter" };
        assert!(families.contains(counter));
    }
}

#[test]
fn edges_over_the_bound_are_counted_as_other() {
    let registry = Registry::new();
    let held: Vec<_> =
        (0..MAX_EDGES + 5).map(|i| registry.edge(&labels(&format!("w-{i}")))).collect();
    for edge in &held {
        edge.request(200, Duration::ZERO);
    }
    let text = render(&registry.snapshot(), &[], false);
    let other = text
        .lines()
        .find(|line| line.starts_with("leno_requests_total") && line.contains("server=\"other\""));
    assert!(other.unwrap().ends_with(" 5"));
    assert!(text.contains("leno_series_over_budget_total 5"));
}

#[test]
fn an_idle_edge_is_hidden_and_goes_on_where_it_was() {
    let registry = Registry::new();
    registry.edge(&labels("cart-0")).request(200, Duration::ZERO);
    let later = std::time::Instant::now() + crate::EDGE_IDLE * 2;
    let idle = render(&registry.snapshot_at(later), &[], false);
    assert!(!idle.contains("cart-0"));
    registry.edge(&labels("cart-0")).request(200, Duration::ZERO);
    let again = render(&registry.snapshot(), &[], false);
    assert!(again.contains("status=\"200\"} 2\n"));
}

#[test]
fn an_edge_that_one_worker_uses_is_the_sum_of_all() {
    let idle = Registry::new();
    idle.edge(&labels("cart-0")).request(200, Duration::ZERO);
    let later = std::time::Instant::now() + crate::EDGE_IDLE * 2;
    let mut sum = counted();
    sum.add(idle.snapshot_at(later));
    assert!(render(&sum, &[], false).contains("status=\"200\"} 2\n"));
}

#[test]
fn an_odd_name_does_not_break_the_page() {
    let registry = Registry::new();
    registry.edge(&labels("a\"b\\c\nd")).request(200, Duration::ZERO);
    let text = render(&registry.snapshot(), &[], false);
    assert!(text.contains(r#"server="a\"b\\c\nd""#), "{text}");
}

#[test]
fn what_is_measured_has_one_family_for_each_name() {
    let count = |labels, value| Measured {
        kind: Kind::Counter,
        name: "leno_x",
        labels: Cow::Borrowed(labels),
        help: "X.",
        value,
    };
    let measured = [count("with=\"client\"", 1.0), count("with=\"server\"", 2.0), up()];
    let text = render(&Snapshot::default(), &measured, false);
    assert_eq!(text.matches("# TYPE leno_x_total counter").count(), 1);
    assert!(text.contains("\nleno_x_total{with=\"server\"} 2\n"), "{text}");
    assert!(text.contains("\n# TYPE leno_up gauge\nleno_up 1\n"), "{text}");
}

#[test]
fn server_names_of_clients_do_not_fill_the_page() {
    let registry = Registry::new();
    registry.tls_name(Direction::Outbound, Some("api.example"));
    registry.tls_name(Direction::Outbound, None);
    for n in 0..10 * MAX_TLS_NAMES {
        registry.tls_name(Direction::Inbound, Some(&format!("{n}.example")));
    }
    registry.tls_name(Direction::Outbound, Some("api.example"));
    let text = render(&registry.snapshot(), &[], false);
    let lines = text.lines().filter(|line| line.starts_with("leno_tls_passthrough_total{"));
    assert_eq!(lines.count(), MAX_TLS_NAMES + 1);
    for line in [
        "direction=\"outbound\",server_name=\"api.example\"} 2",
        "direction=\"outbound\",server_name=\"\"} 1",
        "direction=\"inbound\",server_name=\"other\"} 578",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

fn rule(route: &str, rule: &str) -> RouteLabels {
    let (service, service_namespace) = ("cart".into(), "shop".into());
    RouteLabels { service, service_namespace, route: route.into(), rule: rule.into() }
}

#[test]
fn a_request_is_counted_with_the_rule_that_it_followed() {
    let registry = Registry::new();
    let edge = registry.edge(&labels("cart-0"));
    let route = registry.route(&rule("HTTPRoute shop/cart", "canary"));
    let _unused = registry.route(&rule("", ""));
    let begin = || {
        let (line, of) = (("HTTP/1.1", "GET", &b"/"[..]), || ("cart", std::iter::empty()));
        registry.begin(Arrival::Outbound, line, of, std::iter::empty)
    };
    let mut begun = begin();
    begun.counts_with(&route);
    begun.retried();
    begun.failed_there("authorization-denied");
    let outcome = Outcome { status: 403, grpc_status: Some(7), ..Outcome::default() };
    registry.end(&edge, &begun, &outcome);
    let begun = begin();
    registry.end(&edge, &begun, &Outcome { status: 200, ..Outcome::default() });

    let mut sum = registry.snapshot();
    sum.add(registry.snapshot());
    let text = render(&sum, &[], false);
    let of =
        "service=\"cart\",service_namespace=\"shop\",route=\"HTTPRoute shop/cart\",rule=\"canary\"";
    for line in [
        format!("leno_route_requests_total{{{of},status=\"403\"}} 2"),
        format!("leno_route_grpc_responses_total{{{of},grpc_status=\"7\"}} 2"),
        format!("leno_route_errors_total{{{of},cause=\"authorization-denied\"}} 2"),
        format!("leno_route_retries_total{{{of}}} 2"),
        format!("leno_route_request_duration_seconds_count{{{of}}} 2"),
        format!("leno_route_request_duration_seconds_bucket{{{of},le=\"+Inf\"}} 2"),
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
    }
    assert_eq!(text.matches("leno_route_requests_total{").count(), 1, "{text}");
}

#[test]
fn rules_beyond_the_limit_are_counted_as_one_until_there_is_room() {
    let registry = Registry::new();
    let rules: Vec<CountedRule> =
        (0..2 * MAX_ROUTES).map(|nth| CountedRule::new(rule("r", &nth.to_string()))).collect();
    // Rules that no request follows do not count against the limit.
    let followed = rules.iter().skip(MAX_ROUTES - 3);
    let all: Vec<_> = followed.map(|rule| Rc::clone(rule.counter(&registry))).collect();
    let counted = |text: &str| text.contains("leno_series_over_budget_total 3\n");
    assert!(counted(&render(&registry.snapshot(), &[], false)));
    drop((all, rules));
    let _kept = registry.route(&rule("r", "new"));
    assert!(
        counted(&render(&registry.snapshot(), &[], false)),
        "the others have no route any more"
    );
}
