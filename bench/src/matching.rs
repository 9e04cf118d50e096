//! What finding the rule for a request costs, by how many rules there are.
//!
//! Three shapes of the same number of routes: each with paths of its own, all of them on one path and told
//! apart by the value of a header, and the same with an expression beside each value, which nothing but
//! trying one by one can tell apart.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use leno_policy::{Request, RouteTable};
use leno_types::routes::{Match, PathMatch, Route, RouteKind, Rule, TextMatch, ValueMatch};

/// How many routes one service has, in steps of ten.
const ROUTES: [usize; 4] = [5, 50, 500, 5_000];
/// What of the time below grows with nothing is below this: a lookup is a call, a hash or two, a comparison.
const LEAST_NS: f64 = 20.0;

/// What is measured.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Lookups of a round
    #[arg(long, default_value_t = 200_000)]
    lookups: usize,
    /// Rounds, of which the median counts
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

/// How the routes of a table differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Paths,
    Headers,
    Expressions,
}

struct Get {
    path: String,
    tenant: String,
}

impl Request for Get {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn query(&self) -> Option<&[u8]> {
        None
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        name.eq_ignore_ascii_case("x-tenant").then_some(self.tenant.as_bytes())
    }
}

/// Prints the median of each shape by the number of routes. Whether what is looked up grows no faster than
/// the logarithm of their number; expressions are shown, and are no part of it.
pub(crate) fn run(args: Args) -> bool {
    println!("| routes of one service | ns by path | ns by header | ns by expression |");
    println!("|---|---|---|---|");
    let (mut first, mut holds) = (None, true);
    for routes in ROUTES {
        let cost = |shape| cost(shape, routes, args);
        let (paths, headers) = (cost(Shape::Paths), cost(Shape::Headers));
        // Each of them tries all: fewer lookups say as much.
        let tried = Args { lookups: (args.lookups / routes).max(1_000), ..args };
        let expressions = self::cost(Shape::Expressions, routes, tried);
        println!("| {routes} | {paths:.0} | {headers:.0} | {expressions:.0} |");
        let (few, by_path, by_header) = *first.get_or_insert((routes, paths, headers));
        let allowed = (routes as f64).log2() / (few as f64).log2();
        let within = |now: f64, then: f64| now <= then.max(LEAST_NS) * allowed;
        holds &= within(paths, by_path) && within(headers, by_header);
    }
    let verdict = if holds { "no faster" } else { "FASTER" };
    println!(
        "\nLookups by path and by header grow {verdict} than the logarithm of the number of routes"
    );
    holds
}

/// Nanoseconds of a lookup.
fn cost(shape: Shape, routes: usize, args: Args) -> f64 {
    let all: Vec<_> = (0..routes).map(|number| Arc::new(route(shape, number))).collect();
    let table = RouteTable::compile(&all, 80).expect("there are routes");
    let requests: Vec<Get> = (0..1_000).map(|number| request(shape, number, routes)).collect();
    let round = |_| {
        let started = Instant::now();
        for number in 0..args.lookups {
            let found = table.find(&requests[number % requests.len()]);
            assert!(black_box(found).is_some());
        }
        started.elapsed().as_nanos() as f64 / args.lookups as f64
    };
    let mut rounds: Vec<f64> = (0..args.rounds.max(1)).map(round).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

fn route(shape: Shape, number: usize) -> Route {
    let rule = |one: Match| Rule { matches: vec![one], ..Rule::default() };
    let of_path = |path| rule(Match { path, ..Match::default() });
    let of_header = |value| {
        let headers = vec![ValueMatch { name: "x-tenant".into(), value }];
        rule(Match { headers, ..Match::default() })
    };
    let rules = match shape {
        Shape::Paths => vec![
            of_path(PathMatch::Exact(format!("/api/v1/things{number}/all").into())),
            of_path(PathMatch::Prefix(format!("/api/v2/things{number}").into())),
        ],
        Shape::Headers => vec![of_header(TextMatch::Exact(format!("tenant-{number}").into()))],
        Shape::Expressions => vec![of_header(TextMatch::Regex(format!("tenant-{number}").into()))],
    };
    Route {
        kind: RouteKind::Http,
        namespace: "shop".into(),
        name: format!("route-{number}").into(),
        created: 0,
        ports: Vec::new(),
        hostnames: Vec::new(),
        rules,
    }
}

/// Of those by path, half find an exact one and half a prefix.
fn request(shape: Shape, number: usize, routes: usize) -> Get {
    let place = number * 7919 % routes;
    let path = match (shape, number % 2) {
        (Shape::Paths, 0) => format!("/api/v1/things{place}/all"),
        (Shape::Paths, _) => format!("/api/v2/things{place}/items/42"),
        _ => "/api".to_owned(),
    };
    Get { path, tenant: format!("tenant-{place}") }
}
