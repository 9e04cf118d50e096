//! Measures how a slow endpoint affects latency: at first three endpoints are equal, then one of them is slower by a
//! factor. The same load runs both times, at a fixed rate.
//!
//! The servers sleep instead of working, so that a machine with two CPUs does not become the bottleneck.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_console::{print_line, print_text};
use leno_suite::tabular::{Column, markdown, rows};
use leno_testkit::load::{Plan, Report, run as load};
use leno_testkit::peer::{Faulty, FaultyAct};
use leno_testkit::proxy::Proxy;
use minijinja::context;
use minijinja::value::Serde;

use crate::documents::{BALANCE, from_template};

/// Number of endpoints of the service.
const ENDPOINTS: usize = 3;
/// Load before each measurement, so that the balancer knows the latencies of the endpoints.
const WARM_UP: Duration = Duration::from_secs(2);
/// Connections of the load: more than the number of requests that are ever in flight.
const CONNECTIONS: usize = 64;

/// The options of the measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Rate of the load, in requests per second
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Time that a normal endpoint takes to answer, in milliseconds
    #[arg(long, default_value_t = 5)]
    takes_ms: u64,
    /// Factor by which the slow endpoint takes longer
    #[arg(long, default_value_t = 20)]
    slower: u32,
    /// Number of rounds; the result is their median
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Largest allowed ratio of the p99 with a slow endpoint to the p99 without one
    #[arg(long, default_value_t = 1.5)]
    bound: f64,
}

/// The algorithm that applies without a policy. The result of the command depends on this one alone.
const DEFAULT: &str = "PeakEwma";

/// Measures each algorithm with equal endpoints and with a slow one, and prints the ratio of the
/// p99s. Returns whether the default's ratio is within the bound.
pub(crate) fn run(args: Args) -> Result<bool> {
    let medians = [DEFAULT, "LeastRequest", "RoundRobin"].map(|algorithm| {
        let rounds = (0..args.rounds.max(1)).map(|_| round(algorithm, args));
        let mut rounds = rounds.collect::<Result<Vec<Round>>>()?;
        rounds.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        Ok((algorithm, rounds.swap_remove(rounds.len() / 2)))
    });
    let medians = medians.into_iter().collect::<Result<Vec<_>>>()?;
    let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
    let columns: [Column<'_, (&str, Round)>; 5] = [
        ("algorithm", &|(algorithm, _)| (*algorithm).to_owned()),
        ("p99 alike", &|(_, median)| ms(median.alike_us)),
        ("p99 with one slow", &|(_, median)| ms(median.slow_us)),
        ("ratio", &|(_, median)| format!("{:.2}", median.ratio())),
        ("the slow one's share", &|(_, median)| format!("{:.1} %", median.share * 100.0)),
    ];
    print_text!("{}", markdown(&rows(&medians, &columns)));
    let of_default = medians[0].1.ratio();
    let holds = of_default <= args.bound;
    let verdict = if holds { "within" } else { "OVER" };
    print_line!("\n{DEFAULT}: {of_default:.2}, {verdict} the bound of {:.2}", args.bound);
    Ok(holds)
}

/// The results of two measurements, one after the other: first with equal endpoints, then with a slow one.
struct Round {
    alike_us: u64,
    slow_us: u64,
    /// The share of the requests that the slow endpoint received.
    share: f64,
}

impl Round {
    fn ratio(&self) -> f64 {
        self.slow_us as f64 / self.alike_us.max(1) as f64
    }
}

fn round(algorithm: &str, args: Args) -> Result<Round> {
    let (alike, _) = measure(algorithm, args, 1)?;
    let (slow, share) = measure(algorithm, args, args.slower)?;
    Ok(Round { alike_us: alike.latency_us.p99, slow_us: slow.latency_us.p99, share })
}

/// Returns the load's report and the share of the requests that the last endpoint received.
fn measure(algorithm: &str, args: Args, slower: u32) -> Result<(Report, f64)> {
    let takes = Duration::from_millis(args.takes_ms);
    let listen = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = |takes| Faulty::start(listen, move |_| FaultyAct::After(takes));
    let mut servers: Vec<Faulty> = (1..ENDPOINTS).map(|_| server(takes)).collect::<Result<_>>()?;
    servers.push(server(takes * slower)?);
    let proxy = Proxy::start_with(|address, admin| {
        let at = |server: &Faulty| (server.address().ip().to_string(), server.address().port());
        let servers: Vec<_> = servers.iter().map(at).collect();
        let (address, admin) = (address.to_string(), admin.to_string());
        from_template(BALANCE, context! { algorithm, address, admin, servers => Serde(servers) })
    })?;
    let duration = Duration::from_secs(args.seconds);
    let plan = Plan {
        warm_up: WARM_UP,
        connections: CONNECTIONS,
        ..Plan::new(format!("http://{}/", proxy.address()), args.rate, duration)
    };
    let report = load(&plan)?;
    ensure!(report.errors == 0, "{} requests failed: {:?}", report.errors, report.errors_by_kind);
    let seen: Vec<usize> = servers.iter().map(|server| server.seen().len()).collect();
    let all: usize = seen.iter().sum();
    Ok((report, seen[ENDPOINTS - 1] as f64 / all.max(1) as f64))
}
