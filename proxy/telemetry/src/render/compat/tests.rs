use std::collections::HashSet;
use std::time::Duration;

use super::*;
use crate::{EDGE_IDLE, MAX_EDGES, Registry, render_compatible};

fn own() -> OwnWorkload {
    OwnWorkload {
        namespace: "shop".to_owned(),
        instance: "web-0".to_owned(),
        workload: "web".to_owned(),
        identity: Some("spiffe://cluster.local/ns/shop/sa/web".to_owned()),
        trust_domain: "cluster.local".to_owned(),
    }
}

fn edge(direction: Direction, client: &str, server: &str) -> EdgeLabels {
    EdgeLabels {
        direction,
        client: client.into(),
        client_namespace: "shop".into(),
        client_trust_domain: "".into(),
        server: server.into(),
        server_namespace: "shop".into(),
        service: if direction == Direction::Outbound { "cart".into() } else { "".into() },
        mtls: true,
    }
}

fn registry() -> Registry {
    let registry = Registry::new();
    for server in ["cart-0", "cart-1"] {
        let to = registry.edge(&edge(Direction::Outbound, "web-0", server));
        to.request(200, Duration::from_millis(3));
        to.request(503, Duration::from_millis(3));
        to.error("failfast");
        to.tcp_opened();
        to.bytes(10, 20);
    }
    let from = registry.edge(&edge(Direction::Inbound, "front", "web-0"));
    from.request(404, Duration::from_micros(150));
    for grpc in [0, 5, 14] {
        from.request(200, Duration::from_millis(1));
        from.grpc(grpc, 200);
    }
    // A request that the mesh has failed.
    from.request(503, Duration::from_millis(1));
    from.grpc(14, 503);
    registry
}

fn page(snapshot: &Snapshot, compat: &str, open: bool) -> String {
    render_compatible(snapshot, &[], open, (compat.parse().unwrap(), &own()))
}

#[test]
fn counts_have_the_names_of_linkerd() {
    let text = page(&registry().snapshot(), "linkerd", false);
    let of_web = "namespace=\"shop\",deployment=\"web\",pod=\"web-0\"";
    let to = format!(
        "{of_web},direction=\"outbound\",tls=\"true\",authority=\"cart.shop.svc.cluster.local\",\
         dst_namespace=\"shop\",dst_service=\"cart\",dst_deployment=\"cart\",dst_pod=\"cart-1\""
    );
    let from = format!(
        "{of_web},direction=\"inbound\",tls=\"true\",client_id=\"spiffe://cluster.local/ns/shop/sa/front\""
    );
    for line in [
        format!("request_total{{{to}}} 2"),
        format!("response_total{{{to},classification=\"success\",status_code=\"200\"}} 1"),
        format!("response_total{{{to},classification=\"failure\",status_code=\"503\"}} 1"),
        format!("response_latency_ms_bucket{{{to},le=\"3\"}} 2"),
        format!("response_latency_ms_sum{{{to}}} 6"),
        format!("tcp_open_connections{{{to},peer=\"src\"}} 1"),
        format!("tcp_write_bytes_total{{{to},peer=\"src\"}} 20"),
        format!("request_total{{{from}}} 5"),
        format!("response_total{{{from},classification=\"success\",status_code=\"404\"}} 1"),
        format!(
            "response_total{{{from},classification=\"success\",status_code=\"200\",grpc_status=\"5\"}} 1"
        ),
        format!(
            "response_total{{{from},classification=\"failure\",status_code=\"200\",grpc_status=\"14\"}} 2"
        ),
        format!("response_latency_ms_bucket{{{from},le=\"0.15\"}} 1"),
        format!("outbound_http_errors_total{{{of_web},error=\"failfast\"}} 2"),
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
    }
    assert!(!text.contains("istio_"));
    let responses =
        text.lines().filter(|line| line.starts_with(&format!("response_total{{{from}")));
    let sum: u64 =
        responses.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 5, "each response once in\n{text}");
}

#[test]
fn counts_have_the_names_of_istio_by_workload() {
    let text = page(&registry().snapshot(), "istio", false);
    let sent = "reporter=\"source\",source_workload=\"web\",source_workload_namespace=\"shop\",\
                source_principal=\"spiffe://cluster.local/ns/shop/sa/web\",source_app=\"web\",\
                source_canonical_service=\"web\",source_canonical_revision=\"latest\",\
                destination_workload=\"cart\",destination_workload_namespace=\"shop\",\
                destination_principal=\"unknown\",destination_app=\"cart\",\
                destination_canonical_service=\"cart\",destination_canonical_revision=\"latest\",\
                destination_service=\"cart.shop.svc.cluster.local\",destination_service_name=\"cart\",\
                destination_service_namespace=\"shop\",connection_security_policy=\"unknown\"";
    for line in [
        format!(
            "istio_requests_total{{{sent},request_protocol=\"http\",response_code=\"503\",\
             grpc_response_status=\"\",response_flags=\"-\"}} 2"
        ),
        format!("istio_request_duration_milliseconds_count{{{sent},request_protocol=\"http\"}} 4"),
        format!(
            "istio_tcp_received_bytes_total{{{sent},request_protocol=\"tcp\",response_flags=\"-\"}} 20"
        ),
    ] {
        assert!(text.lines().any(|have| have == line), "{line}\nis not in\n{text}");
    }
    let calls = text.lines().find(|line| line.contains("grpc_response_status=\"14\"")).unwrap();
    for part in [
        "reporter=\"destination\",source_workload=\"front\"",
        "source_principal=\"spiffe://cluster.local/ns/shop/sa/front\"",
        "destination_service=\"web.shop.svc.cluster.local\"",
        "connection_security_policy=\"mutual_tls\"",
        "request_protocol=\"grpc\",response_code=\"200\"",
    ] {
        assert!(calls.contains(part), "{part} is not in {calls}");
    }
    assert!(!text.contains("response_latency_ms"));
}

#[test]
fn no_series_stands_twice_and_without_the_setting_there_is_none() {
    let snapshot = registry().snapshot();
    for open in [false, true] {
        let text = page(&snapshot, "istio,linkerd", open);
        let mut seen = HashSet::new();
        for line in text.lines() {
            let series = match line.starts_with('#') {
                true => line,
                false => line.rsplit_once(' ').unwrap().0,
            };
            assert!(seen.insert(series.to_owned()), "{line}");
        }
        assert_eq!(text.ends_with("# EOF\n"), open);
        assert_eq!(page(&snapshot, "off", open), crate::render(&snapshot, &[], open));
    }
    let wrong = "linkerd,consul".parse::<MetricsCompat>().unwrap_err();
    assert!(wrong.starts_with("\"consul\" is not a mesh"), "{wrong}");
}

#[test]
fn a_sum_does_not_fall_when_an_edge_is_not_shown_any_more() {
    let registry = registry();
    let held = registry.edge(&edge(Direction::Outbound, "web-0", "cart-0"));
    // An edge with an open connection is live, so the connection is closed.
    registry.edge(&edge(Direction::Outbound, "web-0", "cart-1")).tcp_closed();
    let later = std::time::Instant::now() + EDGE_IDLE * 2;
    let text = page(&registry.snapshot_at(later), "istio,linkerd", false);
    assert!(!text.contains("server=\"cart-1\"") && !text.contains("source_workload=\"front\""));
    let sum = text.lines().find(|line| line.contains("response_code=\"503\"")).unwrap();
    assert!(sum.ends_with(" 2"), "{sum}");
    drop(held);
}

#[test]
fn a_sum_does_not_fall_when_an_edge_is_forgotten_for_want_of_room() {
    let registry = registry();
    let mut edges = vec![registry.edge(&edge(Direction::Outbound, "web-0", "cart-0"))];
    registry.edge(&edge(Direction::Outbound, "web-0", "cart-1")).tcp_closed();
    // `cart-1` is idle, and these edges take its place.
    let later = std::time::Instant::now() + EDGE_IDLE * 2;
    let another = |nth| edge(Direction::Outbound, "web-0", &format!("other-{nth}"));
    edges.extend((0..MAX_EDGES).map(|nth| registry.edge_at(&another(nth), later)));
    let mut sum = Snapshot::default();
    sum.add(registry.snapshot_at(later));
    assert!(!sum.edges.keys().any(|edge| &*edge.server == "cart-1"), "it is forgotten");
    let text = page(&sum, "istio,linkerd", false);
    let count = text.lines().find(|line| line.contains("response_code=\"503\"")).unwrap();
    assert!(count.contains("destination_workload=\"cart\"") && count.ends_with(" 2"), "{count}");
    let failed = text.lines().find(|line| line.starts_with("outbound_http_errors_total")).unwrap();
    assert!(failed.ends_with(" 2"), "{failed}");
}

#[test]
fn a_client_of_another_trust_domain_has_that_domain_in_its_identity() {
    let registry = Registry::new();
    let partner = edge(Direction::Inbound, "front", "web-0");
    let partner = EdgeLabels { client_trust_domain: "partner.example".into(), ..partner };
    registry.edge(&partner).request(200, Duration::from_millis(1));
    registry.edge(&edge(Direction::Inbound, "front", "web-0")).request(200, Duration::ZERO);
    let text = page(&registry.snapshot(), "istio,linkerd", false);
    for identity in
        ["spiffe://partner.example/ns/shop/sa/front", "spiffe://cluster.local/ns/shop/sa/front"]
    {
        for label in ["source_principal", "client_id"] {
            assert!(
                text.contains(&format!("{label}=\"{identity}\"")),
                "{label} {identity}\n{text}"
            );
        }
    }
    assert_eq!(
        text.matches(",client_trust_domain=\"partner.example\",status=\"200\"} 1").count(),
        1
    );
}

#[test]
fn a_workload_is_named_by_its_instances() {
    for (instance, workload) in [
        ("web", "web"),
        ("web-0", "web"),
        ("web-12", "web"),
        ("web-7d9c6b5f4-x2x4k", "web"),
        ("my-web-5d4f8c7b9d-9zqxw", "my-web"),
        ("agent-x2x4k", "agent"),
        ("web-front", "web-front"),
        ("web-api", "web-api"),
        ("", ""),
    ] {
        assert_eq!(workload_of(instance), workload, "{instance}");
    }
}
