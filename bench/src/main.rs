//! `leno-bench`, which `leno bench` starts: measures what meshes and proxies cost, in one run, and
//! keeps the raw records.
//!
//! There are two kinds of commands. Those of the suite ([`suite`], the crate `leno-suite`) start
//! whole meshes, or none, on this machine or in a cluster, and make reports from records. The
//! others compare one proxy, or a pair of proxies, with other products on CPUs of their own:
//!
//! ```text
//!   wrk, h2load, leno-bench ─► proxy under test (CPU 0) ──► nginx, h2 or echo server
//!        (CPU 1)                 │                             (CPU 1)
//!                                └── /proc/PID/stat before and after: CPU per request
//! ```
//! Except for the cost of decisions ([`matching`], [`authorizing`]), these commands treat every proxy as a black box:
//! a command, a configuration that the bench writes, and a port. Tables are made from records alone
//! (`leno-bench tables`), so an interrupted run is still a result. Read [`scenario::Scenario`],
//! [`proxy::Contender`], [`hop`], [`mesh`] and [`record::Record`] first.

mod authorizing;
mod backend;
mod balance;
mod client_address;
mod hop;
mod load;
mod matching;
mod measure;
mod memory;
mod mesh;
mod process;
mod proxy;
mod record;
mod report;
mod routes;
mod scenario;
mod suite;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

/// Measures meshes, or none, under the same load, and reports what they cost
///
/// Every report is made from the records of a run, one JSON file each, so that it can be made
/// again, checked, and compared with another machine's.
#[derive(Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "Examples:\n  sudo leno bench run http-1k --mesh none,leno,envoy --out bench\n  \
                  leno bench report bench\n  \
                  leno bench run http-1k --context staging --mesh none,leno,istio --out cluster\n  \
                  leno bench http --proxies leno,haproxy"
)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Suite(Box<suite::Command>),
    /// CPU per request and throughput of one hop in plaintext, one worker each
    Http(HttpArgs),
    /// CPU per request of two proxies, throughput and latency through mTLS (needs root)
    ///
    /// Starts a mesh with `leno up`, whose client calls its servers through two proxies. Envoy and
    /// HAProxy run as pairs in workloads of the same mesh that have no Leno proxies, with the same
    /// TLS: version 1.3, P-256 certificates checked on both sides, HTTP/2 inside for HTTP. CPU is
    /// that of both proxies together. Latency is that of an open loop, from the moment a request
    /// was due.
    Mesh(MeshArgs),
    /// Private, proportional and resident memory of proxies: idle, with connections open, and after them
    Memory(MemoryArgs),
    /// Effect of one slow endpoint of three on latency, for each balancing algorithm
    ///
    /// Exits with 1 if the default algorithm's p99 with the slow endpoint exceeds the bound, a
    /// multiple of its p99 without it.
    Balance(balance::Args),
    /// Cost of finding the rule for a request, by number of rules
    ///
    /// Exits with 1 if it grows faster than the logarithm of their number.
    Match(matching::Args),
    /// Cost of authorizing a request, by number of policies
    ///
    /// Exits with 1 if it takes more than half a microsecond among 100 of them.
    Authorize(authorizing::Args),
    /// Whether a route that changes many times a second loses a request or cuts a stream (needs
    /// root)
    ///
    /// Exits with 1 if it does, or if the rate is not held.
    Routes(routes::Args),
    /// Cost of showing an application its client's address, by what it is shown (needs root)
    ///
    /// Connects as the proxy of a workload does, which eBPF captures: from the workload's own address, from
    /// the stand-in address, and with the client named.
    ClientAddress(client_address::Args),
    /// Prints the tables of `http`, `mesh` or `memory` again, from their file of records
    Tables {
        /// The file of records
        file: PathBuf,
    },
    /// Load that no other generator makes (the other commands start it)
    #[command(hide = true, subcommand)]
    Load(Generator),
}

#[derive(Subcommand)]
enum Generator {
    Tcp(load::tcp::Plan),
    ClientAddress(load::client_address::Plan),
}

#[derive(clap::Args)]
struct HttpArgs {
    /// Which proxies; none measures the backend alone
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,nginx,envoy,none")]
    proxies: Vec<proxy::Contender>,
    #[command(flatten)]
    rounds: RoundsArgs,
    /// Requests a second at a fixed rate; for new connections a quarter of it
    #[arg(long, default_value_t = 8000.0)]
    rate: f64,
    /// Where the records go
    #[arg(long, default_value = "target/bench-http.json")]
    out: PathBuf,
}

#[derive(clap::Args)]
struct MeshArgs {
    /// Which proxies; none measures the server alone
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,envoy,none")]
    proxies: Vec<proxy::Contender>,
    #[command(flatten)]
    rounds: RoundsArgs,
    /// Requests a second at a fixed rate; for new connections a quarter of it
    #[arg(long, default_value_t = 1000.0)]
    rate: f64,
    /// How Leno captures the client's connections
    #[arg(long, value_enum, default_value_t = Capture::Ebpf)]
    capture: Capture,
    /// Where the records go
    #[arg(long, default_value = "target/bench-mesh.json")]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Capture {
    Ebpf,
    Nftables,
    Iptables,
}

/// Options that all rounds share.
#[derive(clap::Args)]
struct RoundsArgs {
    /// Which scenarios; all of them by default
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<scenario::Scenario>,
    /// Rounds; in each, the proxies take turns in another order
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Connections of the load
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Let the kernel place the processes instead of one CPU for the proxies and one for the rest
    #[arg(long)]
    no_pin: bool,
}

impl RoundsArgs {
    fn options(&self, rate: f64, out: PathBuf) -> measure::Options {
        let all = || scenario::Scenario::value_variants().to_vec();
        measure::Options {
            scenarios: if self.scenarios.is_empty() { all() } else { self.scenarios.clone() },
            rounds: self.rounds,
            duration: Duration::from_secs(self.seconds),
            connections: self.connections,
            rate,
            out,
        }
    }
}

#[derive(clap::Args)]
struct MemoryArgs {
    /// Which proxies
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,nginx")]
    proxies: Vec<proxy::Contender>,
    /// Idle connections to hold open to each proxy; each has carried a request
    #[arg(long, default_value_t = 500)]
    connections: usize,
    /// Proxies of each kind that run beside each other, as on a node; figures are those of all together
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=200))]
    copies: u16,
    /// Where the records go
    #[arg(long, default_value = "target/bench-memory.json")]
    out: PathBuf,
}

fn main() -> ExitCode {
    match Args::try_parse() {
        Ok(args) => leno_console::ended("leno-bench", &run(args.command)),
        Err(error) => leno_console::not_parsed(error),
    }
}

/// Runs a command; `false` means a negative result, such as a bench whose verdict does not hold.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Suite(command) => return suite::run(&command),
        Command::Http(args) => {
            let options = args.rounds.options(args.rate, args.out);
            hop::run(&args.proxies, !args.rounds.no_pin, &options)?;
        }
        Command::Mesh(args) => {
            let options = args.rounds.options(args.rate, args.out);
            let capture = match args.capture {
                Capture::Ebpf => leno_testkit::lab::Capture::Ebpf,
                Capture::Nftables => leno_testkit::lab::Capture::Nftables,
                Capture::Iptables => leno_testkit::lab::Capture::Iptables,
            };
            mesh::run(&args.proxies, capture, !args.rounds.no_pin, &options)?;
        }
        Command::Memory(args) => {
            memory::run(&args.proxies, args.copies.into(), args.connections, &args.out)?
        }
        Command::Balance(args) => return balance::run(args),
        Command::Match(args) => return Ok(matching::run(args)),
        Command::Authorize(args) => return Ok(authorizing::run(args)),
        Command::Routes(args) => return routes::run(args),
        Command::Tables { file } => print!("{}", report::tables(&record::read(&file)?)),
        Command::ClientAddress(args) => client_address::run(args)?,
        Command::Load(Generator::ClientAddress(plan)) => {
            println!("{}", serde_json::to_string(&load::client_address::run(&plan)?)?);
        }
        Command::Load(Generator::Tcp(plan)) => {
            println!("{}", serde_json::to_string(&load::tcp::run(&plan)?)?);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_reference_has_every_option() {
        let page = leno_testkit::reference::page(Args::command(), "leno bench");
        leno_testkit::reference::check("leno-bench.md", &page);
    }
}
