//! Tests `GRPCRoute`: matching by method and metadata.

use std::sync::Arc;

use leno_policy::{IgnoredRoute, RouteTable};
use leno_types::routes::{PathMatch, Route, RouteKind, RouteMatch, RouteRule, TextMatch};

use super::support::{backend, goes, matched, route, rule, table};

/// Parses `Service/Method` and headers after it. Service and method may each be `*` for any, or `~pattern`.
fn call(text: &str) -> RouteMatch {
    let (path, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (service, method) = path.split_once('/').expect("Service/Method");
    let part = |text: &str| match text.strip_prefix('~') {
        _ if text == "*" => None,
        Some(pattern) => Some(TextMatch::Regex(pattern.into())),
        None => Some(TextMatch::Exact(text.into())),
    };
    let path = PathMatch::Grpc { service: part(service), method: part(method) };
    RouteMatch { path, ..matched(rest) }
}

fn to(calls: &[&str], backend: &str) -> RouteRule {
    let matches = calls.iter().map(|text| call(text)).collect();
    RouteRule { matches, backends: vec![self::backend(backend, 1)], ..RouteRule::default() }
}

fn grpc(name: &str, rules: Vec<RouteRule>) -> Route {
    Route { kind: RouteKind::Grpc, ..route(name, rules) }
}

/// The Gateway API's conformance test GRPCExactMethodMatching, and paths that are not exactly `/service/method`.
#[test]
fn grpc_exact_method_matching() {
    let rules = vec![to(&["echo.GrpcEcho/Echo"], "v1"), to(&["echo.GrpcEcho/EchoTwo"], "v2")];
    let table = table(vec![grpc("exact", rules)]);
    for (request, expected) in [
        ("POST /echo.GrpcEcho/Echo", "v1"),
        ("POST /echo.GrpcEcho/EchoTwo", "v2"),
        ("POST /echo.GrpcEcho/EchoThree", "404"),
        ("POST /echo.GrpcEcho/Echo/", "404"),
        ("POST /echo.Other/Echo", "404"),
        ("POST /", "404"),
        ("OPTIONS *", "404"),
    ] {
        assert_eq!(goes(&table, request), expected, "{request}");
    }
}

/// The Gateway API's conformance test GRPCRouteHeaderMatching: all headers of a match are required, and a match with
/// more headers ranks first.
#[test]
fn grpc_route_header_matching() {
    let rules = vec![
        to(&["*/* version=one"], "v1"),
        to(&["*/* version=two"], "v2"),
        to(&["*/* version=two color=orange"], "v1"),
        to(&["*/* color=blue", "*/* color=green"], "v1"),
    ];
    let table = table(vec![grpc("headers", rules)]);
    for (request, expected) in [
        ("POST /a/b version=one", "v1"),
        ("POST /a/b version=two", "v2"),
        ("POST /a/b version=two color=orange", "v1"),
        ("POST /a/b version=two color=blue", "v2"),
        ("POST /a/b color=green", "v1"),
        ("POST /a/b color=orange", "404"),
    ] {
        assert_eq!(goes(&table, request), expected, "{request}");
    }
}

#[test]
fn the_service_counts_before_the_method_and_both_before_headers() {
    let rules = vec![
        to(&["*/* a=1 b=2 c=3"], "headers"),
        to(&["*/Get"], "method"),
        to(&["*/~G.*"], "method-pattern"),
        to(&["~shop\\..*/*"], "service-pattern"),
        to(&["shop.Cart/*"], "service"),
        to(&["shop.Cart/~Li.*"], "service-and-pattern"),
        to(&["shop.Cart/Get"], "both"),
        to(&["shop.Cart/Get beta=1"], "both-and-header"),
    ];
    let table = table(vec![grpc("order", rules)]);
    for (request, expected) in [
        ("POST /shop.Cart/Get", "both"),
        ("POST /shop.Cart/Get beta=1", "both-and-header"),
        ("POST /shop.Cart/List", "service-and-pattern"),
        ("POST /shop.Cart/Put", "service"),
        ("POST /shop.Order/Get", "service-pattern"),
        ("POST /other/Get", "method"),
        ("POST /other/Give", "method-pattern"),
        ("POST /other/Put a=1 b=2 c=3", "headers"),
        ("POST /other/Put", "404"),
    ] {
        assert_eq!(goes(&table, request), expected, "{request}");
    }
}

#[test]
fn a_rule_without_matches_takes_everything() {
    let table = table(vec![grpc("all", vec![to(&[], "v1")])]);
    for request in ["POST /a/b", "GET /", "POST /a/b/c", "OPTIONS *"] {
        assert_eq!(goes(&table, request), "v1", "{request}");
    }
}

#[test]
fn of_both_kinds_on_one_port_the_more_specific_holds() {
    let http = route("http", vec![rule(&[], "http")]);
    let grpc = Route { ports: vec![80], ..grpc("grpc", vec![to(&["a/b"], "grpc")]) };
    let routes = [Arc::new(http), Arc::new(grpc)];
    let at_80 = RouteTable::compile(&routes, 80).unwrap();
    assert_eq!(at_80.kind(), RouteKind::Grpc);
    assert_eq!(goes(&at_80, "POST /a/b"), "grpc");
    assert_eq!(goes(&at_80, "GET /"), "404");
    assert!(matches!(at_80.ignored(), [IgnoredRoute::Kind(route)] if &*route.name == "http"));
    let at_81 = RouteTable::compile(&routes, 81).unwrap();
    assert_eq!(goes(&at_81, "GET /"), "http");
}
