//! Requests for 10,000 paths by 5,000 clients: the number of series and the memory stay bounded, and the sums include
//! every request.

#![expect(clippy::unwrap_used, reason = "test code")]

use leno_telemetry::{
    Arrival, Counter, Direction, EdgeLabels, MAX_EDGES, Outcome, Registry, Snapshot, render,
};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::{ALLOCATIONS, BYTES};

const CLIENTS: usize = 5_000;
const PATHS: usize = 10_000;
/// A page with the most edges has some 40 series for each.
const MAX_SERIES: usize = 40 * (MAX_EDGES + 1) + 500;
/// The most edges with their rows and native histograms take about 10 kB each.
const MAX_BYTES: i64 = 4 * 1024 * 1024;

fn edge(client: usize) -> EdgeLabels {
    EdgeLabels {
        direction: Direction::Inbound,
        client: format!("client-{client}").into(),
        client_namespace: format!("team-{}", client % 50).into(),
        client_trust_domain: "".into(),
        server: "cart-0".into(),
        server_namespace: "shop".into(),
        service: "".into(),
        mtls: true,
    }
}

/// The sum of all samples of a metric.
fn sum(page: &str, family: &str) -> u64 {
    let samples = page.lines().filter(|line| line.starts_with(family));
    samples.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() as u64).sum()
}

#[test]
fn paths_and_clients_fill_neither_the_page_nor_the_memory() {
    let registry = Registry::new();
    let before = BYTES.get();
    for nth in 0..PATHS {
        let counted = registry.edge(&edge(nth % CLIENTS));
        let target = format!("/items/{nth}?id={nth}");
        let line = ("HTTP/1.1", "GET", target.as_bytes());
        let begun =
            registry.begin(Arrival::INBOUND, line, || ("", std::iter::empty()), std::iter::empty);
        registry.end(&counted, &begun, &Outcome { status: 200, ..Outcome::default() });
    }
    let held = BYTES.get() - before;
    assert!(held < MAX_BYTES, "{held} bytes, {} allocations", ALLOCATIONS.get());
    let page = render(&registry.snapshot(), &[], false);
    assert_eq!(sum(&page, "leno_requests_total{"), PATHS as u64);
    assert_eq!(sum(&page, "leno_request_duration_seconds_count{"), PATHS as u64);
    let series = page.lines().filter(|line| !line.starts_with('#')).count();
    assert!(series < MAX_SERIES, "{series} series");
    assert!(!page.contains("/items"), "a path is a label");
    assert!(
        sum(&page, "leno_series_over_budget_total") >= (CLIENTS - MAX_EDGES) as u64,
        "{series}"
    );
    // Further clients cause neither more series nor more memory.
    for client in CLIENTS..2 * CLIENTS {
        registry.edge(&edge(client)).request(200, std::time::Duration::ZERO);
    }
    assert!(BYTES.get() - before < MAX_BYTES, "{} bytes", BYTES.get() - before);
}

/// Regression: for each scrape of a proxy, the counts of one thread took as much memory as all rows of a worker, 265 KiB.
#[test]
fn one_counter_and_its_page_take_little_memory() {
    let before = BYTES.get();
    let counted = Snapshot::of_counter(Counter::Panics, 3);
    let held = BYTES.get() - before;
    assert!(held < 4 * 1024, "{held} bytes");
    for page in [render(&counted, &[], false), render(&counted, &[], true)] {
        assert_eq!(sum(&page, "leno_panics_total"), 3);
        assert_eq!(page.capacity(), page.len());
    }
}
