//! Tests the contents of a table, except matching.

use std::sync::Arc;

use leno_policy::{Choice, IgnoredRoute, RouteTable};
use leno_types::routes::{InvalidTarget, Route, RouteBackend, RouteRule, RouteTarget};

use super::support::{backend, goes, route, rule, sent, table};

/// As in the conformance test MeshPorts: a route for port 80 leaves other ports without routes.
#[test]
fn a_route_of_a_port_says_nothing_of_the_others() {
    let route = Route { ports: vec![80], ..route("ports", vec![rule(&[], "v1")]) };
    let routes = [Arc::new(route)];
    assert!(RouteTable::compile(&routes, 80).is_some());
    assert!(RouteTable::compile(&routes, 8080).is_none());
    assert!(RouteTable::compile(&[], 80).is_none());
}

#[test]
fn of_equal_rules_the_oldest_route_then_the_first_by_name_then_the_first_rule_holds() {
    let aged = |name: &str, created| {
        let rules = vec![rule(&["/"], &format!("{name}-1")), rule(&["/"], &format!("{name}-2"))];
        Route { created, ..route(name, rules) }
    };
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let routes = [aged("c", 10), aged("b", 20), aged("a", 20)];
        let table = |from: usize| {
            let taken = order.iter().filter(|place| **place >= from);
            table(taken.map(|place| routes[*place].clone()).collect())
        };
        assert_eq!(goes(&table(0), "GET /"), "c-1");
        assert_eq!(goes(&table(1), "GET /"), "a-1");
    }
}

#[test]
fn expressions_go_between_exact_paths_and_prefixes() {
    let rules = vec![
        rule(&["/items"], "prefix"),
        rule(&["~/items/[0-9]+"], "pattern"),
        rule(&["~/items/[0-9]+/reviews"], "longer"),
        rule(&["=/items/7"], "exact"),
        rule(&["/ id~[a-f]+"], "header"),
        rule(&["/ ?page~[0-9]+"], "query"),
    ];
    let table = table(vec![route("patterns", rules)]);
    for (request, expected) in [
        ("GET /items/7", "exact"),
        ("GET /items/8", "pattern"),
        ("GET /items/8/reviews", "longer"),
        ("GET /items/x", "prefix"),
        ("GET / id=abc", "header"),
        ("GET / id=abcg", "404"),
        ("GET /?page=12", "query"),
        ("GET /?page=", "404"),
    ] {
        assert_eq!(goes(&table, request), expected, "{request}");
    }
}

#[test]
fn an_expression_that_cannot_be_used_is_left_out_and_told() {
    let table = table(vec![route("bad", vec![rule(&["~("], "bad"), rule(&["=/good"], "good")])]);
    assert_eq!(goes(&table, "GET /good"), "good");
    assert_eq!(goes(&table, "GET /("), "404");
    assert!(matches!(table.ignored(), [IgnoredRoute::Pattern(..)]));
}

#[test]
fn the_first_of_repeated_names_counts() {
    let table = table(vec![route("twice", vec![rule(&["a=1 A=2 ?q=1 ?q=2"], "v1")])]);
    assert_eq!(goes(&table, "GET /?q=1 a=1"), "v1");
    assert_eq!(goes(&table, "GET /?q=1&q=2 a=1"), "v1");
    assert_eq!(goes(&table, "GET /?q=2&q=1 a=1"), "404");
}

#[test]
fn explanations_name_what_each_match_lacks() {
    let rules = vec![
        rule(&["=/a"], "v1"),
        rule(&["/b method:PUT version=two ?page~[0-9]+"], "v2"),
        RouteRule { name: Some("rest".into()), ..rule(&["/"], "v3") },
    ];
    let table = table(vec![route("why", rules)]);
    let lines = |request: &str| -> Vec<String> {
        let explanation = table.explain(&sent(request));
        explanation.considered.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        lines("GET /b"),
        [
            "HTTPRoute shop/why rule 0 match 0: the path is not /a",
            "HTTPRoute shop/why rule 1 match 0: the method is not PUT",
            "HTTPRoute shop/why rule rest match 0: holds",
        ]
    );
    assert!(lines("PUT /b version=one")[1].ends_with("the header version is not \"two\""));
    assert!(
        lines("PUT /b version=two")[1]
            .ends_with("the query parameter page is not of the form [0-9]+")
    );
}

/// As in the conformance tests HTTPRouteNoBackendRefs and HTTPRouteInvalidNonExistentBackendRef, and with weights of
/// zero: an invalid backend gets its share of the requests, which fail. So do all requests of a rule without backends
/// or with only weights of zero.
#[test]
fn what_leads_nowhere_is_chosen_by_its_weight_and_fails() {
    let invalid = |weight| RouteBackend {
        target: RouteTarget::Invalid(InvalidTarget::NotFound),
        weight,
        filters: Vec::new(),
    };
    let choices = |backends: Vec<RouteBackend>| {
        let rule = RouteRule { backends, ..RouteRule::default() };
        let table = table(vec![route("backends", vec![rule])]);
        let found = table.find(&sent("GET /")).unwrap();
        [0, u64::MAX / 2 + 2, u64::MAX].map(|random| found.rule.choose(random))
    };
    assert_eq!(choices(Vec::new()), [Choice::NoBackend; 3]);
    assert_eq!(choices(vec![backend("v1", 0), backend("v2", 0)]), [Choice::NoBackend; 3]);
    let nowhere = Choice::Invalid(0, InvalidTarget::NotFound);
    assert_eq!(choices(vec![invalid(1)]), [nowhere; 3]);
    let half = choices(vec![invalid(1), backend("v2", 1)]);
    assert_eq!(half, [nowhere, Choice::Backend(1), Choice::Backend(1)]);
    let none = choices(vec![invalid(0), backend("v2", 1)]);
    assert_eq!(none, [Choice::Backend(1); 3]);
}

#[test]
fn matches_that_are_outranked_are_told_too() {
    let table = table(vec![route("why", vec![rule(&["/a"], "v1"), rule(&["/", "/b"], "v2")])]);
    let explanation = table.explain(&sent("GET /a"));
    let lines = |list: &[leno_policy::MatchResult<'_>]| -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    };
    assert_eq!(lines(&explanation.considered), ["HTTPRoute shop/why rule 0 match 0: holds"]);
    assert_eq!(
        lines(&explanation.outranked),
        [
            "HTTPRoute shop/why rule 1 match 1: the path does not begin with /b",
            "HTTPRoute shop/why rule 1 match 0: holds",
        ]
    );
}

/// No request reaches the matches in `shadowed`, and some request reaches each of the others.
#[test]
fn matches_that_no_request_reaches_are_named() {
    let shadowed = |first: &[&str], second: &[&str]| -> Vec<String> {
        let routes =
            vec![route("a", vec![rule(first, "v1")]), route("b", vec![rule(second, "v2")])];
        let table = table(routes);
        let one = |one: &leno_policy::ShadowedMatch<'_>| {
            let by = |(by, place): &(&leno_policy::TableRule, usize)| {
                format!("{}{place}", by.route().name)
            };
            let by: Vec<String> = one.by.iter().map(by).collect();
            format!("{}{} by {}", one.rule.route().name, one.place, by.join("+"))
        };
        table.shadowed().iter().map(one).collect()
    };
    for (first, second, expected) in [
        ("/a", "/a", "b0 by a0"),
        ("=/a", "=/a", "b0 by a0"),
        ("/a", "/a/", "b0 by a0"),
        ("/a x=1", "/a X=1", "b0 by a0"),
        ("/a x~.*", "/a x=1", "b0 by a0"),
        ("~/a.*", "/a/b", "b0 by a0"),
        ("~.*", "/", "b0 by a0"),
        ("~/.*", "/", "b0 by a0"),
        ("/", "~.*", "a0 by b0"),
        // Each of these is reached by some request.
        ("/a", "/a/b", ""),
        ("/", "/ method:GET", ""),
        ("/ method:GET", "/ method:PUT", ""),
        ("/ x=1", "/ x=2", ""),
        ("/ x=1", "/ y=1", ""),
        ("/ x=1", "/", ""),
        ("/ ?q=1", "/ ?Q=1", ""),
        ("~/a+.*", "/a", ""),
        ("~/b.*", "/a", ""),
        ("~a.*", "/", ""),
        ("=/a", "/a", ""),
        ("/ x=1", "/ x~.*", ""),
    ] {
        assert_eq!(shadowed(&[first], &[second]).join(""), expected, "{first} and {second}");
    }
    assert_eq!(shadowed(&["/", "/"], &[]), ["a1 by a0", "b0 by a0"]);
    // Several matches together take the few texts that an expression stands for.
    for (first, second, expected) in [
        (vec!["/ x=1", "/ x=2"], "/ x~[12]", "b0 by a0+a1"),
        (vec!["=/a", "=/b"], "~/(a|b)", "b0 by a0+a1"),
        (vec!["=/a x~1|2", "=/b x=1", "=/b x=2"], "~/(a|b) x~[12]", "b0 by a0+a1+a2"),
        (vec!["/ ?q=1", "/ ?q=2"], "/a ?q~[12] y=1", ""),
        // Some requests of the expression remain.
        (vec!["/ x=1", "/ x=2"], "/ x~[123]", ""),
        (vec!["/ x=1", "/ y=2"], "/ x~[12]", ""),
        (vec!["/ x=1", "/ x=2"], "/ x~[12]+", ""),
        (vec!["=/a", "=/b method:GET"], "~/(a|b)", ""),
    ] {
        assert_eq!(shadowed(&first, &[second]).join(""), expected, "{first:?} and {second}");
    }
}
