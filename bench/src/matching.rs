//! Measures what it costs to find the rule for a request, by the number of rules.
//!
//! Four tables have the same number of routes: each route has a path of its own; all routes have the same path, and
//! differ in the value of a header; the same with another header before it that all routes share; and an expression for
//! each value, which can only be matched by trying the routes one by one.

use std::hint::black_box;
use std::sync::Arc;

use leno_console::{print_line, print_text};
use leno_policy::{Request, RouteTable};
use leno_suite::tabular::{Column, markdown, rows};
use leno_types::routes::{
    PathMatch, Route, RouteKind, RouteMatch, RouteRule, TextMatch, ValueMatch,
};

use crate::rounds::nanos_of;

/// Numbers of routes of one service, each ten times the one before it.
const ROUTES: [usize; 4] = [5, 50, 500, 5_000];
/// A shorter lookup counts as this long: a call, a hash or two and a comparison can take up to this long with any
/// number of routes.
const LEAST_NS: f64 = 20.0;

/// The header that all rules match, in the shape where all routes share a header.
const TEAM: &str = "x-team";

/// The options of the measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Number of lookups in a round
    #[arg(long, default_value_t = 200_000)]
    lookups: usize,
    /// Number of rounds; the result is their median
    #[arg(long, default_value_t = 9)]
    rounds: usize,
}

/// What distinguishes the routes of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Paths,
    Headers,
    Shared,
    Expressions,
}

struct LookupRequest {
    path: String,
    tenant: String,
}

impl Request for LookupRequest {
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
        match name {
            "x-tenant" => Some(self.tenant.as_bytes()),
            TEAM => Some(b"shop"),
            _ => None,
        }
    }
}

/// The number of routes, the nanoseconds of a lookup in each shape that has a limit, and those of a lookup by
/// expression.
type LookupCost = (usize, [f64; 3], f64);

/// Prints the median of each shape by the number of routes. Returns whether lookups grow no faster
/// than the logarithm of that number; expressions are printed but not judged.
pub(crate) fn run(args: Args) -> bool {
    let costs = ROUTES.map(|routes| {
        let looked_up =
            [Shape::Paths, Shape::Headers, Shape::Shared].map(|shape| cost(shape, routes, args));
        // Each of these lookups tries all routes, so fewer of them are as precise.
        let tried = Args { lookups: (args.lookups / routes).max(1_000), ..args };
        (routes, looked_up, cost(Shape::Expressions, routes, tried))
    });
    let columns: [Column<'_, LookupCost>; 5] = [
        ("routes of one service", &|(routes, ..)| routes.to_string()),
        ("ns by path", &|(_, [paths, ..], _)| format!("{paths:.0}")),
        ("by header", &|(_, [_, headers, _], _)| format!("{headers:.0}")),
        ("beside a shared one", &|(_, [.., shared], _)| format!("{shared:.0}")),
        ("by expression", &|(.., expressions)| format!("{expressions:.0}")),
    ];
    print_text!("{}", markdown(&rows(&costs, &columns)));
    let (few, then, _) = costs[0];
    let holds = costs.iter().all(|(routes, now, _)| {
        let allowed = (*routes as f64).log2() / (few as f64).log2();
        now.iter().zip(then).all(|(now, then)| *now <= then.max(LEAST_NS) * allowed)
    });
    let verdict = if holds { "no faster" } else { "FASTER" };
    print_line!(
        "\nLookups by path and by header grow {verdict} than the logarithm of the number of routes"
    );
    holds
}

/// Nanoseconds of one lookup.
fn cost(shape: Shape, routes: usize, args: Args) -> f64 {
    let all: Vec<_> = (0..routes).map(|number| Arc::new(route(shape, number))).collect();
    let table = RouteTable::compile(&all, 80).expect("there are routes");
    let requests: Vec<LookupRequest> =
        (0..1_000).map(|number| request(shape, number, routes)).collect();
    nanos_of(args.rounds, args.lookups, |number| {
        let found = table.find(&requests[number % requests.len()]);
        assert!(black_box(found).is_some());
    })
}

fn route(shape: Shape, number: usize) -> Route {
    let rule = |one: RouteMatch| RouteRule { matches: vec![one], ..RouteRule::default() };
    let of_path = |path| rule(RouteMatch { path, ..RouteMatch::default() });
    let exactly = |value: String| TextMatch::Exact(value.into());
    let of_header = |value| {
        let mut headers = vec![ValueMatch { name: "x-tenant".into(), value }];
        if shape == Shape::Shared {
            headers.insert(0, ValueMatch { name: TEAM.into(), value: exactly("shop".to_owned()) });
        }
        rule(RouteMatch { headers, ..RouteMatch::default() })
    };
    let rules = match shape {
        Shape::Paths => vec![
            of_path(PathMatch::Exact(format!("/api/v1/things{number}/all").into())),
            of_path(PathMatch::Prefix(format!("/api/v2/things{number}").into())),
        ],
        Shape::Headers | Shape::Shared => vec![of_header(exactly(format!("tenant-{number}")))],
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

/// In the shape `Paths`, half of the requests match an exact path and half a prefix.
fn request(shape: Shape, number: usize, routes: usize) -> LookupRequest {
    let place = number * 7919 % routes;
    let path = match (shape, number % 2) {
        (Shape::Paths, 0) => format!("/api/v1/things{place}/all"),
        (Shape::Paths, _) => format!("/api/v2/things{place}/items/42"),
        _ => "/api".to_owned(),
    };
    LookupRequest { path, tenant: format!("tenant-{place}") }
}
