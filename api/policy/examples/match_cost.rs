//! What matching a request costs, by how many routes there are: `cargo run --release -p leno-policy
//! --example match_cost`.
//!
//! 5,000 routes are spread over services, from one that has them all to 1,000 with five each. Every
//! route has a rule for an exact path and one for a prefix. Prints the time of a lookup, in
//! nanoseconds, the median of several rounds.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use leno_policy::{Request, RouteTable};
use leno_types::routes::{Match, PathMatch, Route, RouteKind, Rule};

/// Routes in all.
const ROUTES: usize = 5_000;
/// Lookups of a round.
const LOOKUPS: usize = 200_000;
/// Rounds, of which the median counts.
const ROUNDS: usize = 9;

struct Get(String);

impl Request for Get {
    fn method(&self) -> &str {
        "GET"
    }

    fn path(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn query(&self) -> Option<&[u8]> {
        None
    }

    fn header(&self, _name: &str) -> Option<&[u8]> {
        None
    }
}

fn main() {
    println!("services  routes each  matches each  ns a lookup (median of {ROUNDS})");
    for services in [1_000, 100, 10, 1] {
        let each = ROUTES / services;
        let tables: Vec<RouteTable> = (0..services).map(|_| table(each)).collect();
        let requests: Vec<Get> = (0..1_000).map(|number| request(number, each)).collect();
        let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round(&tables, &requests)).collect();
        rounds.sort_by(f64::total_cmp);
        println!("{services:>8} {each:>12} {:>13} {:>12.0}", each * 2, rounds[ROUNDS / 2]);
    }
}

fn table(routes: usize) -> RouteTable {
    let routes: Vec<_> = (0..routes).map(|number| Arc::new(route(number))).collect();
    RouteTable::compile(&routes, 80).expect("there are routes")
}

fn route(number: usize) -> Route {
    let rule = |path| Rule { matches: vec![Match { path, ..Match::default() }], ..Rule::default() };
    let exact = PathMatch::Exact(format!("/api/v1/things{number}/all").into());
    let prefix = PathMatch::Prefix(format!("/api/v2/things{number}").into());
    Route {
        kind: RouteKind::Http,
        namespace: "shop".into(),
        name: format!("route-{number}").into(),
        created: 0,
        ports: Vec::new(),
        hostnames: Vec::new(),
        rules: vec![rule(exact), rule(prefix)],
    }
}

/// Half of the requests find an exact path, half a prefix.
fn request(number: usize, routes: usize) -> Get {
    let place = number * 7919 % routes;
    Get(match number % 2 {
        0 => format!("/api/v1/things{place}/all"),
        _ => format!("/api/v2/things{place}/items/42"),
    })
}

fn round(tables: &[RouteTable], requests: &[Get]) -> f64 {
    let started = Instant::now();
    for number in 0..LOOKUPS {
        let table = &tables[number % tables.len()];
        let found = table.find(&requests[number % requests.len()]);
        assert!(black_box(found).is_some());
    }
    started.elapsed().as_nanos() as f64 / LOOKUPS as f64
}
