//! Tests routes for connections.

use std::sync::Arc;

use leno_policy::{RouteTable, StreamDecision, StreamTable};
use leno_types::routes::{InvalidTarget, Route, RouteKind, RouteRule, RouteTarget};

use super::support::{backend, route, rule};

fn tls(name: &str, hostnames: &[&str]) -> Route {
    let hostnames = hostnames.iter().map(|name| (*name).into()).collect();
    Route { kind: RouteKind::Tls, hostnames, ..route(name, vec![rule(&[], name)]) }
}

fn tcp(name: &str) -> Route {
    Route { kind: RouteKind::Tcp, ..route(name, vec![rule(&[], name)]) }
}

fn table(routes: Vec<Route>) -> StreamTable {
    let routes: Vec<_> = routes.into_iter().map(Arc::new).collect();
    StreamTable::compile(&routes, 80).expect("routes of connections")
}

/// The backend to which a connection goes, or the cause of its refusal.
fn goes(table: &StreamTable, name: Option<&str>) -> String {
    match table.decide(name, 0) {
        StreamDecision::Backend(rule, place) => {
            match &table.rules()[rule].rule().backends[place].target {
                RouteTarget::Service { name, .. } => name.name.to_string(),
                RouteTarget::Invalid(_) => unreachable!("it was chosen"),
            }
        }
        refused => refused.refusal().expect("a refusal").to_string(),
    }
}

/// The conformance test TLSRouteSimpleSameNamespace, and the part of TLSRouteHostnameIntersection that concerns routes.
#[test]
fn the_nearest_name_decides() {
    let table = table(vec![
        tls("exact", &["a.example.com"]),
        tls("near", &["*.b.example.com"]),
        tls("far", &["*.example.com", "example.com"]),
    ]);
    for (name, expected) in [
        (Some("a.example.com"), "exact"),
        (Some("A.Example.COM"), "exact"),
        (Some("x.a.example.com"), "far"),
        (Some("x.b.example.com"), "near"),
        (Some("y.x.b.example.com"), "near"),
        (Some("b.example.com"), "far"),
        (Some("example.com"), "far"),
        (Some(".example.com"), "no-route-matches"),
        (Some("example.org"), "no-route-matches"),
        (Some("notexample.com"), "no-route-matches"),
        (Some(""), "no-route-matches"),
        (None, "no-route-matches"),
    ] {
        assert_eq!(goes(&table, name), expected, "{name:?}");
    }
    assert!(table.asks_for_names());
}

/// The conformance test TCPRouteMultipleRoutesAttachment: the oldest route wins.
#[test]
fn what_no_name_takes_follows_the_oldest_tcp_route() {
    let older = Route { created: 5, ..tcp("z") };
    let table = table(vec![Route { created: 9, ..tcp("a") }, tls("tls", &["a.b"]), older]);
    for (name, expected) in [(Some("a.b"), "tls"), (Some("c.d"), "z"), (None, "z")] {
        assert_eq!(goes(&table, name), expected, "{name:?}");
    }
    let [shadowed] = table.shadowed() else { panic!("{:?}", table.shadowed()) };
    assert_eq!((&*shadowed.route.name, &*shadowed.by.name), ("a", "z"));
    assert!(!StreamTable::compile(&[Arc::new(tcp("t"))], 80).expect("one").asks_for_names());
}

/// Of two routes for one name the older wins, then the first by name.
#[test]
fn one_name_has_one_route() {
    let shadowed = table(vec![tls("b", &["x.y", "a.b"]), tls("a", &["a.b", "*.b"])]);
    assert_eq!(goes(&shadowed, Some("a.b")), "a");
    let [one] = shadowed.shadowed() else { panic!("{:?}", shadowed.shadowed()) };
    assert_eq!((&*one.route.name, one.hostname, &*one.by.name), ("b", Some(1), "a"));
}

/// As in the conformance tests TCPRouteInvalidBackendRefNonexistent and TLSRouteInvalidBackendRefNonexistent: a
/// connection whose backend is invalid is refused, and so is one whose backends all have weight zero.
#[test]
fn what_leads_nowhere_is_refused() {
    let invalid = RouteTarget::Invalid(InvalidTarget::NotFound);
    let mut bad = tcp("bad");
    bad.rules[0].backends[0].target = invalid;
    let expected = "backend-invalid; reason=BackendNotFound; by=\"TCPRoute shop/bad rule 0\"";
    assert_eq!(goes(&table(vec![bad]), None), expected);
    let mut zero = tcp("zero");
    zero.rules = vec![RouteRule { backends: vec![backend("v1", 0)], ..RouteRule::default() }];
    assert_eq!(goes(&table(vec![zero]), None), "no-backend; by=\"TCPRoute shop/zero rule 0\"");
}

/// Routes for requests do not replace routes for connections, or the other way round, and routes of other ports have no
/// effect.
#[test]
fn each_table_has_its_own_kinds_and_port() {
    let routes: Vec<_> = [tcp("tcp"), tls("tls", &["a"]), route("http", vec![rule(&[], "http")])]
        .map(Arc::new)
        .into();
    let requests = RouteTable::compile(&routes, 80).expect("a table");
    assert_eq!((requests.kind(), requests.rules().len()), (RouteKind::Http, 1));
    assert!(requests.ignored().is_empty());
    assert_eq!(StreamTable::compile(&routes, 80).expect("a table").rules().len(), 2);
    assert!(RouteTable::compile(&routes[..2], 80).is_none());
    assert!(StreamTable::compile(&routes[2..], 80).is_none());
    let elsewhere = Arc::new(Route { ports: vec![81], ..tcp("tcp") });
    assert!(StreamTable::compile(&[elsewhere], 80).is_none());
}
