//! `leno bench http` and `leno bench mesh`: runs of the suite with the scenarios for one proxy, each measured twice: as
//! fast as the proxy goes, and at a rate. Proxies have CPUs of their own.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use leno_console::print_line;
use leno_suite::interrupt::Interrupt;
use leno_suite::lab::mesh::{self, Choices};
use leno_suite::lab::{self, LabRun};
use leno_suite::measurement::options::Options;
use leno_suite::record;
use leno_suite::report::{Form, Summary};
use leno_suite::scenario::{self, Scenario};

/// How long load runs before each measurement, so that pools are full and code is warm.
const WARM_UP: Duration = Duration::from_secs(1);
/// The rate that most scenarios have in their file. Other rates in the file are multiplied by the same factor when the
/// command line has a rate.
const RATE: f64 = 8000.0;
/// The number of connections of the scenarios in their file that `--connections` replaces.
const CONNECTIONS: usize = 32;

/// The proxies that `http` measures, each alone.
pub(crate) const PROXIES: [&str; 7] =
    ["leno", "leno-proxy", "before", "haproxy", "nginx", "envoy", "none"];
/// What `mesh` measures: these proxies, and Leno with each of its ways of observing requests.
const MESHES: [&str; 11] = [
    "leno",
    "leno-access-log",
    "leno-traces-1",
    "leno-traces-100",
    "leno-tap",
    "leno-proxy",
    "before",
    "haproxy",
    "nginx",
    "envoy",
    "none",
];

/// Options that both commands have.
#[derive(Debug, clap::Args)]
pub(crate) struct Rounds {
    /// Scenarios to measure, separated by commas [default: all of one proxy]
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Number of rounds; each measures the proxies in another order
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Duration of each measurement, in seconds
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Number of connections of the load
    #[arg(long, default_value_t = CONNECTIONS)]
    connections: usize,
    /// Lets the kernel place the processes, instead of pinning the proxies to one CPU and the rest to another
    #[arg(long)]
    no_pin: bool,
    /// Directory for the records [default: a new directory below target]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// An earlier build of leno-proxy, for the proxy "before"
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct HttpOptions {
    /// Which proxies; none measures the server alone
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,nginx,envoy,none",
          value_parser = PROXIES)]
    proxies: Vec<String>,
    #[command(flatten)]
    rounds: Rounds,
    /// Requests a second at a fixed rate; for new connections a quarter of it
    #[arg(long, default_value_t = RATE)]
    rate: f64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct MeshOptions {
    /// Which proxies; none measures the server alone
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,envoy,none",
          value_parser = MESHES)]
    proxies: Vec<String>,
    #[command(flatten)]
    rounds: Rounds,
    /// Requests a second at a fixed rate; for new connections a quarter of it
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// How Leno captures the client's connections
    #[arg(long, default_value = "ebpf", value_parser = ["ebpf", "nftables", "iptables"])]
    capture: String,
}

/// One hop in plaintext.
pub(crate) fn http(args: &HttpOptions) -> Result<bool> {
    run(("http", true), (&args.proxies, args.rate), &args.rounds)
}

/// Two hops with mTLS, in namespaces.
pub(crate) fn mesh(args: &MeshOptions) -> Result<bool> {
    let captured = format!("leno-{}", args.capture);
    let names = args.proxies.iter();
    let names: Vec<String> =
        names.map(|one| if one == "leno" { captured.clone() } else { one.clone() }).collect();
    run(("mesh", false), (&names, args.rate), &args.rounds)
}

fn run(
    (command, one_hop): (&str, bool),
    (proxies, rate): (&[String], f64),
    args: &Rounds,
) -> Result<bool> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let out = args.out.clone().unwrap_or_else(|| format!("target/bench/{command}-{since}").into());
    let options = Options {
        scenarios: scenarios(args, rate)?,
        rounds: args.rounds,
        duration: Duration::from_secs(args.seconds),
        warm_up: WARM_UP,
        scale: 1.0,
        generators: Vec::new(),
        application: None,
        out: out.clone(),
        resume: false,
        one_hop,
        pinned: !args.no_pin,
        interrupt: Interrupt::by_signals()?,
    };
    let choices = Choices { before: args.before.clone(), ..Choices::default() };
    let meshes = proxies.iter().map(|name| mesh::named(name, &choices));
    let mut run = LabRun { options, meshes: meshes.collect::<Result<_, _>>()? };
    lab::run(&mut run)?;
    print_line!("{}", Form::TERMINAL.of(&Summary::of(&record::read(&out)?), &[]));
    print_line!("\nrecords: {0}\nreport:  leno bench report {0}", out.display());
    Ok(true)
}

/// The scenarios of one proxy, with the connections and the rate of the command line.
fn scenarios(args: &Rounds, rate: f64) -> Result<Vec<Scenario>> {
    let all = scenario::all()?.into_iter().filter(|one| one.one_proxy);
    let mut all: Vec<Scenario> = all.collect();
    let known: Vec<String> = all.iter().map(|one| one.name.clone()).collect();
    if let Some(unknown) = args.scenarios.iter().find(|name| !known.contains(name)) {
        bail!("{unknown:?} is not a scenario of one proxy: use one of {}", known.join(", "));
    }
    all.retain(|one| args.scenarios.is_empty() || args.scenarios.contains(&one.name));
    for one in &mut all {
        one.also_at = one.also_at.map(|at| at / RATE * rate);
        if one.connections == CONNECTIONS {
            one.connections = args.connections;
        }
    }
    Ok(all)
}
