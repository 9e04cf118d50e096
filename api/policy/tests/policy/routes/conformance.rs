//! The matching cases of the Gateway API's conformance suite, named like the suite's tests.

use super::support::{goes, route, rule, table};

#[track_caller]
fn check(table: &leno_policy::RouteTable, cases: &[(&str, &str)]) {
    for (request, expected) in cases {
        assert_eq!(goes(table, request), *expected, "{request}");
    }
}

/// The suite's tests HTTPRouteMatching and MeshHTTPRouteMatching: of two matches of a rule, either is enough; a longer
/// prefix wins, and a prefix ends at a slash.
#[test]
fn http_route_matching() {
    let rules = vec![rule(&["/", "version=one"], "v1"), rule(&["/v2", "version=two"], "v2")];
    let cases = [
        ("GET /", "v1"),
        ("GET /example", "v1"),
        ("GET / Version=one", "v1"),
        ("GET /v2", "v2"),
        ("GET /v2/example", "v2"),
        ("GET / Version=two", "v2"),
        ("GET /v2/", "v2"),
        ("GET /v2example", "v1"),
        ("GET /foo/v2/example", "v1"),
    ];
    check(&table(vec![route("matching", rules)]), &cases);
}

/// The suite's test HTTPRouteMatchingAcrossRoutes: the rules of two routes rank as if they were in one route.
#[test]
fn http_route_matching_across_routes() {
    let one = route("part1", vec![rule(&["/", "version=one"], "v1")]);
    let two = route("part2", vec![rule(&["/v2", "version=two"], "v2")]);
    let cases = [
        ("GET /", "v1"),
        ("GET /example", "v1"),
        ("GET /example Version=one", "v1"),
        ("GET /v2", "v2"),
        ("GET /v2/example", "v2"),
        ("GET / Version=two", "v2"),
    ];
    check(&table(vec![one, two]), &cases);
}

/// The suite's tests HTTPRouteExactPathMatching and MeshTrafficSplit: an exact path does not match a path below it, a
/// slash at the end, or another case.
#[test]
fn http_route_exact_path_matching() {
    let rules = vec![rule(&["=/one"], "v1"), rule(&["=/two"], "v2")];
    let cases = [
        ("GET /one", "v1"),
        ("GET /two", "v2"),
        ("GET /", "404"),
        ("GET /one/example", "404"),
        ("GET /two/", "404"),
        ("GET /Two", "404"),
    ];
    check(&table(vec![route("exact", rules)]), &cases);
}

/// The suite's test HTTPRoutePathMatchOrder: exact paths rank before prefixes, and longer prefixes before shorter ones.
#[test]
fn http_route_path_match_order() {
    let rules = vec![
        rule(&["=/match"], "v1"),
        rule(&["=/match/exact"], "v2"),
        rule(&["=/match/exact/one"], "v3"),
        rule(&["/match/"], "v3"),
        rule(&["/match/prefix/"], "v1"),
        rule(&["/match/prefix/one"], "v2"),
    ];
    let cases = [
        ("GET /match/exact/one", "v3"),
        ("GET /match/exact", "v2"),
        ("GET /match", "v1"),
        ("GET /match/prefix/one/any", "v2"),
        ("GET /match/prefix/any", "v1"),
        ("GET /match/any", "v3"),
    ];
    check(&table(vec![route("order", rules)]), &cases);
}

/// The suite's test HTTPRouteHeaderMatching: all headers of a match are required, and a match with more headers ranks
/// first.
#[test]
fn http_route_header_matching() {
    let rules = vec![
        rule(&["version=one"], "v1"),
        rule(&["version=two"], "v2"),
        rule(&["version=two color=orange"], "v1"),
        rule(&["color=blue", "color=green"], "v1"),
        rule(&["color=red", "color=yellow"], "v2"),
    ];
    let cases = [
        ("GET / Version=one", "v1"),
        ("GET / Version=two", "v2"),
        ("GET / Version=two Color=orange", "v1"),
        ("GET / Version=two Color=blue", "v2"),
        ("GET / Color=orange", "404"),
        ("GET / Some-Other-Header=one", "404"),
        ("GET / Color=blue", "v1"),
        ("GET / Color=green", "v1"),
        ("GET / Color=red", "v2"),
        ("GET / Color=yellow", "v2"),
        ("GET / Color=purple", "404"),
    ];
    check(&table(vec![route("headers", rules)]), &cases);
}

/// The suite's test HTTPRouteMethodMatching: methods rank after paths and before headers.
#[test]
fn http_route_method_matching() {
    let rules = vec![
        rule(&["method:POST"], "v1"),
        rule(&["method:GET"], "v2"),
        rule(&["/path1 method:GET"], "v1"),
        rule(&["method:PUT version=one"], "v2"),
        rule(&["/path2 method:POST version=two"], "v3"),
        rule(&["/path3 method:PATCH", "/path4 method:DELETE version=three"], "v1"),
        rule(&["/path5"], "v1"),
        rule(&["method:PATCH"], "v2"),
        rule(&["version=four"], "v3"),
    ];
    let cases = [
        ("POST /", "v1"),
        ("GET /", "v2"),
        ("HEAD /", "404"),
        ("GET /path1", "v1"),
        ("PUT / version=one", "v2"),
        ("POST /path2 version=two", "v3"),
        ("PATCH /path3", "v1"),
        ("DELETE /path4 version=three", "v1"),
        ("PUT /", "404"),
        ("DELETE /path4", "404"),
        ("PATCH /path5", "v1"),
        ("PATCH / version=four", "v2"),
    ];
    check(&table(vec![route("methods", rules)]), &cases);
}

/// The suite's tests HTTPRouteQueryParamMatching and MeshHTTPRouteQueryParamMatching: names and values are compared
/// case-sensitively, and query parameters rank after headers.
#[test]
fn http_route_query_param_matching() {
    let rules = vec![
        rule(&["?animal=whale"], "v1"),
        rule(&["?animal=dolphin"], "v2"),
        rule(&["?animal=dolphin ?color=blue", "?ANIMAL=Whale"], "v3"),
        rule(&["/path1 ?animal=whale"], "v1"),
        rule(&["version=one ?animal=whale"], "v2"),
        rule(&["/path2 version=two ?animal=whale"], "v3"),
        rule(&["/path3 ?animal=shark", "/path4 version=three ?animal=kraken"], "v1"),
        rule(&["/path5"], "v1"),
        rule(&["?animal=hydra"], "v2"),
        rule(&["version=four"], "v3"),
    ];
    let cases = [
        ("GET /?animal=whale", "v1"),
        ("GET /?animal=dolphin", "v2"),
        ("GET /?animal=dolphin&color=blue", "v3"),
        ("GET /?ANIMAL=Whale", "v3"),
        ("GET /?animal=whale&otherparam=irrelevant", "v1"),
        ("GET /?animal=dolphin&color=yellow", "v2"),
        ("GET /?color=blue", "404"),
        ("GET /?animal=dog", "404"),
        ("GET /?animal=whaledolphin", "404"),
        ("GET /", "404"),
        ("GET /path1?animal=whale", "v1"),
        ("GET /?animal=whale version=one", "v2"),
        ("GET /path2?animal=whale version=two", "v3"),
        ("GET /path3?animal=shark", "v1"),
        ("GET /path4?animal=kraken version=three", "v1"),
        ("GET /?animal=shark", "404"),
        ("GET /path4?animal=kraken", "404"),
        ("GET /path5?animal=hydra", "v1"),
        ("GET /?animal=hydra version=four", "v3"),
    ];
    check(&table(vec![route("query", rules)]), &cases);
}
