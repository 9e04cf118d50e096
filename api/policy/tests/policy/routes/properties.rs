//! Tests properties that hold for every table and every request.

use std::cmp::Reverse;
use std::sync::Arc;

use leno_policy::{Choice, Request, RouteTable, Weights, sampled};
use leno_types::routes::{PathMatch, Route, RouteRule};
use proptest::prelude::*;

use super::support::{TestRequest, backend, goes, matched, route, rule, sent, table};

const WORDS: [&str; 18] = [
    "=/",
    "=/a",
    "=/a/b",
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/b",
    "~/a.*",
    "~/a/[bc]",
    "x~[12]",
    "x=2",
    "method:GET",
    "method:PUT",
    "x=1",
    "y=1",
    "?q=1",
    "?r~[12]",
];

fn words() -> impl Strategy<Value = String> {
    let word = prop::sample::select(WORDS.to_vec());
    prop::collection::vec(word, 0..5).prop_map(|words| words.join(" "))
}

fn rules() -> impl Strategy<Value = Vec<RouteRule>> {
    let matches = prop::collection::vec(words(), 0..4);
    prop::collection::vec(matches, 1..5).prop_map(|rules| {
        let rule = |matches: &Vec<String>| RouteRule {
            matches: matches.iter().map(|text| matched(text)).collect(),
            backends: vec![backend("v1", 1)],
            ..RouteRule::default()
        };
        rules.iter().map(rule).collect()
    })
}

fn routes() -> impl Strategy<Value = Vec<Route>> {
    let one = (0_u64..3, rules());
    prop::collection::vec(one, 1..5).prop_map(|routes| {
        let named = |(index, (created, rules)): (usize, (u64, Vec<RouteRule>))| Route {
            created,
            ..route(&format!("r{index}"), rules)
        };
        routes.into_iter().enumerate().map(named).collect()
    })
}

fn request() -> impl Strategy<Value = TestRequest> {
    let path = prop::sample::select(vec![
        "/", "/a", "/a/", "/a/b", "/a/b/c", "/ab", "/b", "/c", "*", "//", "/a//b", "/a/c",
    ]);
    let query = prop::sample::select(vec!["", "?q=1", "?q=1&r=2", "?r=3", "?q"]);
    let method = prop::sample::select(vec!["GET", "PUT", "POST"]);
    let headers = prop::sample::select(vec!["", " x=1", " y=1", " X=1 y=1", " x=2"]);
    (method, path, query, headers).prop_map(|(m, p, q, h)| sent(&format!("{m} {p}{q}{h}")))
}

/// A reference implementation of the specification: of all matches that a request fulfils, the first in the order of
/// precedence.
fn by_the_book(routes: &[Arc<Route>], request: &TestRequest) -> Option<(String, usize)> {
    let mut held = Vec::new();
    for route in routes {
        for (index, rule) in route.rules.iter().enumerate() {
            let all = [matched("")];
            let matches = if rule.matches.is_empty() { &all[..] } else { &rule.matches };
            for (place, one) in matches.iter().enumerate() {
                // A match alone in its table competes with no other.
                let alone = RouteRule { matches: vec![one.clone()], ..RouteRule::default() };
                if table(vec![self::route("alone", vec![alone])]).find(request).is_none() {
                    continue;
                }
                let (class, length) = match &one.path {
                    PathMatch::Exact(path) => (0, path.len()),
                    PathMatch::Regex(path) => (1, path.len()),
                    PathMatch::Prefix(path) => (2, path.trim_end_matches('/').len()),
                    PathMatch::Grpc { .. } => unreachable!("none was made"),
                };
                let unique = |list: &[leno_types::routes::ValueMatch]| {
                    let mut names: Vec<_> =
                        list.iter().map(|one| one.name.to_lowercase()).collect();
                    names.sort();
                    names.dedup();
                    Reverse(names.len())
                };
                let rank = (class, Reverse(length), one.method.is_none(), unique(&one.headers));
                let tie = (unique(&one.query), route.created, route.name.to_string(), index, place);
                held.push((rank, tie));
            }
        }
    }
    held.sort();
    held.into_iter().next().map(|(_, tie)| (tie.2, tie.3))
}

fn found(table: &RouteTable, request: &TestRequest) -> Option<(String, usize)> {
    table.find(request).map(|found| (found.rule.route().name.to_string(), found.rule.index()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn precedence_is_the_specifications(routes in routes(), request in request()) {
        let routes: Vec<_> = routes.into_iter().map(Arc::new).collect();
        let table = RouteTable::compile(&routes, 80).expect("routes");
        prop_assert_eq!(found(&table, &request), by_the_book(&routes, &request));
    }

    #[test]
    fn precedence_is_total_and_stable(routes in routes(), request in request(), seed: u64) {
        let routes: Vec<_> = routes.into_iter().map(Arc::new).collect();
        let mut shuffled = routes.clone();
        for place in 0..shuffled.len() {
            let other = (seed.rotate_left(place as u32 * 7) as usize) % shuffled.len();
            shuffled.swap(place, other);
        }
        let (one, other) = (RouteTable::compile(&routes, 80), RouteTable::compile(&shuffled, 80));
        let (one, other) = (one.expect("routes"), other.expect("routes"));
        prop_assert_eq!(found(&one, &request), found(&other, &request));
        let explained = one.explain(&request).found.map(|f| f.place);
        prop_assert_eq!(explained, one.find(&request).map(|f| f.place));
    }

    #[test]
    fn what_is_shadowed_takes_no_request(routes in routes(), request in request()) {
        let routes: Vec<_> = routes.into_iter().map(Arc::new).collect();
        let table = RouteTable::compile(&routes, 80).expect("routes");
        let explanation = table.explain(&request);
        let Some(held) = explanation.considered.last().filter(|one| one.mismatch.is_none()) else {
            return Ok(());
        };
        for one in table.shadowed() {
            let same = std::ptr::eq(one.rule, held.rule) && one.place == held.place;
            prop_assert!(!same, "{held} is shadowed by {:?}", one.by);
        }
    }

    #[test]
    fn no_request_panics(target in "[/a*?&=%]{0,40}", method in "[A-Z]{0,7}") {
        let request = TestRequest { method, target, headers: Vec::new() };
        let rules = WORDS.map(|word| rule(&[word], "v1"));
        let _ = table(vec![route("all", rules.to_vec())]).find(&request);
        prop_assert!(request.query().is_none() || request.target.contains('?'));
    }
}

/// A random number generator whose statistics are known (splitmix64). It gives the same counts in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// There are so many rules with one path that they are looked up by header and not tried one by one.
#[test]
fn many_rules_of_one_path_keep_their_order() {
    const OF_PATH: [&str; 12] = [
        "x=1",
        "x=2",
        "X=1 y=2",
        "x~[12]",
        "y=1",
        "",
        "method:PUT x=2",
        "?q=1",
        "x=1 ?q=1",
        "y~.* x=1",
        "y=2 x=2",
        "method:PUT",
    ];
    let routes: Vec<_> = (0..40_usize)
        .map(|number| {
            let path = ["/a", "=/a", "/"][number % 3];
            let matches = [number, number * 5 + 1].map(|at| format!("{path} {}", OF_PATH[at % 12]));
            let matches: Vec<&str> = matches.iter().map(String::as_str).collect();
            let created = number as u64 * 7 % 5;
            Arc::new(Route { created, ..route(&format!("r{number}"), vec![rule(&matches, "v1")]) })
        })
        .collect();
    let table = RouteTable::compile(&routes, 80).expect("routes");
    for headers in ["", " x=1", " x=2", " x=3", " y=1", " y=2", " x=1 y=1", " x=1 y=2", " X=2 y=2"]
    {
        for target in ["GET /a", "PUT /a", "GET /a?q=1", "PUT /a/b", "GET /b", "PUT /b?q=1"] {
            let request = sent(&format!("{target}{headers}"));
            assert_eq!(
                found(&table, &request),
                by_the_book(&routes, &request),
                "{target}{headers}"
            );
        }
    }
}

/// In 100,000 choices, each weight is kept within four standard deviations of the binomial distribution.
#[test]
fn weights_are_kept() {
    const PICKS: u32 = 100_000;
    for weights in [&[1, 1][..], &[70, 30], &[90, 9, 1], &[0, 5, 0, 15], &[1_000_000, 1], &[3; 16]]
    {
        let table = Weights::new(weights.iter().copied());
        let mut random = Random(u64::from(weights[0]) + weights.len() as u64);
        let mut counts = vec![0_u32; weights.len()];
        for _ in 0..PICKS {
            counts[table.pick(random.next()).expect("a weight")] += 1;
        }
        let total: u32 = weights.iter().sum();
        for (weight, count) in weights.iter().zip(counts) {
            let part = f64::from(*weight) / f64::from(total);
            let expected = part * f64::from(PICKS);
            let deviation = (expected * (1.0 - part)).sqrt();
            let off = (f64::from(count) - expected).abs();
            assert!(off <= 4.0 * deviation, "{weights:?}: {count} for {expected}");
        }
    }
    assert_eq!(Weights::new([0, 0].into_iter()).pick(7), None);
}

/// Shares over 100,000 requests, as in the conformance test HTTPRouteRequestPercentageMirror.
#[test]
fn parts_are_kept() {
    for (numerator, denominator) in [(0, 100), (20, 100), (100, 100), (1, 3), (35, 1000)] {
        let mut random = Random(7);
        let mirrored = (0..100_000).filter(|_| sampled(random.next(), numerator, denominator));
        let part = f64::from(numerator) / f64::from(denominator);
        let expected = part * 100_000.0;
        let off = (mirrored.count() as f64 - expected).abs();
        assert!(off <= 4.0 * (expected * (1.0 - part)).sqrt(), "{numerator}/{denominator}: {off}");
    }
}

/// Weights of a table's rule, as in the conformance tests HTTPRouteWeight, MeshHTTPRouteWeight and MeshGRPCRouteWeight.
#[test]
fn a_rule_chooses_by_weight() {
    let rule = RouteRule {
        backends: vec![backend("v1", 70), backend("v2", 30), backend("v3", 0)],
        ..RouteRule::default()
    };
    let table = table(vec![route("weight", vec![rule])]);
    let found = table.find(&sent("GET /")).expect("a rule");
    let mut counts = [0; 3];
    let mut random = Random(1);
    for _ in 0..100_000 {
        let Choice::Backend(place) = found.rule.choose(random.next()) else { panic!("a backend") };
        counts[place] += 1;
    }
    assert!((69_400..=70_600).contains(&counts[0]) && counts[2] == 0, "{counts:?}");
    assert_eq!(goes(&table, "GET /"), "v1");
}

/// A path that only consists of slashes costs no more than the deepest prefix requires.
#[test]
fn deep_paths_are_looked_up_as_deep_as_rules_are() {
    let table = table(vec![route("deep", vec![rule(&["/a/b"], "v1"), rule(&["/"], "v2")])]);
    let deep = format!("GET /a/b{}", "/".repeat(60_000));
    assert_eq!(goes(&table, &deep), "v1");
    let slashes = format!("GET {}", "/".repeat(60_000));
    let request = sent(&slashes);
    // If each of 60,000 prefixes were looked up, this would take minutes.
    for _ in 0..1000 {
        assert!(table.find(&request).is_some());
    }
}
