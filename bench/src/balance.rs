//! The effect of a slow endpoint on latency: three equal endpoints first, then one of them slower
//! by a factor, under the same open loop.
//!
//! The servers sleep instead of working, so that a machine with two CPUs does not become the
//! bottleneck.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::load::{Plan, Report, run as load};
use leno_testkit::peer::{Act, Faulty};
use leno_testkit::proxy::Proxy;
use minijinja::context;
use minijinja::value::Serde;

use crate::documents::{BALANCE, from_template};

/// Number of endpoints of the service.
const ENDPOINTS: usize = 3;
/// Load before each measurement, so that the balancer has latency estimates.
const WARM_UP: Duration = Duration::from_secs(2);
/// Connections of the load: more than the number of requests that are ever in flight.
const CONNECTIONS: usize = 64;

/// The options of the measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Requests a second
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Milliseconds that a normal endpoint takes to answer
    #[arg(long, default_value_t = 5)]
    takes_ms: u64,
    /// How many times longer the slow endpoint takes
    #[arg(long, default_value_t = 20)]
    slower: u32,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Largest allowed ratio of the p99 with a slow endpoint to the p99 without one
    #[arg(long, default_value_t = 1.5)]
    bound: f64,
}

/// The algorithm that applies without a policy. The verdict is about this one.
const DEFAULT: &str = "PeakEwma";

/// Measures each algorithm with equal endpoints and with a slow one, and prints the ratio of the
/// p99s. Returns whether the default's ratio is within the bound.
pub(crate) fn run(args: Args) -> Result<bool> {
    let mut of_default = f64::INFINITY;
    println!("| algorithm | p99 alike | p99 with one slow | ratio | the slow one's share |");
    println!("|---|---|---|---|---|");
    for algorithm in [DEFAULT, "LeastRequest", "RoundRobin"] {
        let mut rounds: Vec<Round> =
            (0..args.rounds.max(1)).map(|_| round(algorithm, args)).collect::<Result<_>>()?;
        rounds.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        let median = &rounds[rounds.len() / 2];
        if algorithm == DEFAULT {
            of_default = median.ratio();
        }
        println!(
            "| {algorithm} | {:.1} ms | {:.1} ms | {:.2} | {:.1} % |",
            median.alike_us as f64 / 1000.0,
            median.slow_us as f64 / 1000.0,
            median.ratio(),
            median.share * 100.0
        );
    }
    let holds = of_default <= args.bound;
    let verdict = if holds { "within" } else { "OVER" };
    println!("\n{DEFAULT}: {of_default:.2}, {verdict} the bound of {:.2}", args.bound);
    Ok(holds)
}

/// The results of both measurements, which run one after the other.
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
    let server = |takes| Faulty::start(listen, move |_| Act::After(takes));
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
