//! Checks that a lookup allocates nothing.

use std::sync::Arc;

use leno_policy::{Request, RouteTable};
use leno_types::routes::{
    PathMatch, Route, RouteKind, RouteMatch, RouteRule, TextMatch, ValueMatch,
};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

struct Get(&'static str, &'static str);

impl Request for Get {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn query(&self) -> Option<&[u8]> {
        Some(b"a=1&page=7")
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        name.eq_ignore_ascii_case("version").then_some(self.1.as_bytes())
    }
}

#[test]
fn a_lookup_allocates_nothing() {
    let value = |name: &str, value| ValueMatch { name: name.into(), value };
    let matches = [
        RouteMatch { path: PathMatch::Exact("/a".into()), ..RouteMatch::default() },
        RouteMatch { path: PathMatch::Regex("/items/[0-9]+".into()), ..RouteMatch::default() },
        RouteMatch {
            path: PathMatch::Prefix("/b/c".into()),
            headers: vec![value("Version", TextMatch::Exact("two".into()))],
            query: vec![value("page", TextMatch::Regex("[0-9]".into()))],
            ..RouteMatch::default()
        },
        RouteMatch { method: Some("GET".into()), ..RouteMatch::default() },
    ];
    let rule = |wanted| RouteRule { matches: vec![wanted], ..RouteRule::default() };
    let route = Route {
        kind: RouteKind::Http,
        namespace: "shop".into(),
        name: "web".into(),
        created: 0,
        ports: Vec::new(),
        hostnames: Vec::new(),
        rules: matches.into_iter().map(rule).collect(),
    };
    let table = RouteTable::compile(&[Arc::new(route)], 80).expect("a route");
    let requests = [
        (Get("/a", ""), 0),
        (Get("/items/12", ""), 1),
        (Get("/b/c/d", "two"), 2),
        (Get("/b/c/d", "one"), 3),
        (Get("/else", ""), 3),
    ];
    // An expression allocates its cache when it is first matched, so only the second round is checked.
    for counted in [false, true] {
        let before = ALLOCATIONS.get();
        for (request, rule) in &requests {
            assert_eq!(table.find(request).expect("a rule").place, *rule);
        }
        if counted {
            assert_eq!(ALLOCATIONS.get() - before, 0);
        }
    }
}
