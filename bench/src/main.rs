//! `leno-bench`: measures Leno's proxy beside others, in one run, and keeps the raw records.
//!
//! It knows no proxy from inside: each is a command, a configuration it writes and a port, driven
//! by the same load against the same backend. A run writes one JSON record a measurement; tables
//! are made from records alone (`leno-bench report`), so an interrupted run is still a result.
//!
//! ```text
//!   wrk, h2load, leno-load ──► proxy under test (CPU 0) ──► nginx, h2 or echo server
//!        (CPU 1)                 │                             (CPU 1)
//!                                └── /proc/PID/stat before and after: CPU a request
//! ```
//! Read [`scenario::Scenario`], [`proxy::Contender`], [`hop`] and [`record::Record`] first.

mod backend;
mod hop;
mod load;
mod memory;
mod process;
mod proxy;
mod record;
mod report;
mod scenario;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

/// Measure Leno's proxy beside HAProxy, nginx and Envoy.
#[derive(Parser)]
#[command(name = "leno-bench", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// CPU per request and throughput of one hop in plaintext, one worker each
    Http(HttpArgs),
    /// Resident memory of one proxy: idle, and with connections open
    Memory(MemoryArgs),
    /// The HTTP/2 server behind the proxies (the other commands start it)
    #[command(hide = true)]
    Serve {
        /// Address to listen on
        listen: SocketAddr,
    },
    /// Make the tables again from a file of records
    Report {
        /// Where the records are
        file: PathBuf,
    },
}

#[derive(clap::Args)]
struct HttpArgs {
    /// Which proxies; none is the backend alone
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,nginx,envoy,none")]
    proxies: Vec<proxy::Contender>,
    /// Which work; all of it without this
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<scenario::Scenario>,
    /// Rounds; in each, every proxy has its turn in another order
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Connections of the load
    #[arg(long, default_value_t = 32)]
    connections: usize,
    /// Requests a second where the rate is fixed; for new connections a quarter of it
    #[arg(long, default_value_t = 8000.0)]
    rate: f64,
    /// Let the kernel place the processes instead of one CPU for the proxy and one for the rest
    #[arg(long)]
    no_pin: bool,
    /// Where the records go
    #[arg(long, default_value = "target/bench-http.json")]
    out: PathBuf,
}

#[derive(clap::Args)]
struct MemoryArgs {
    /// Which proxies
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,nginx")]
    proxies: Vec<proxy::Contender>,
    /// Idle connections to hold open
    #[arg(long, default_value_t = 500)]
    connections: usize,
    /// Where the records go
    #[arg(long, default_value = "target/bench-memory.json")]
    out: PathBuf,
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Http(args) => hop::run(&hop::Options {
            proxies: args.proxies,
            scenarios: if args.scenarios.is_empty() {
                scenario::Scenario::value_variants().to_vec()
            } else {
                args.scenarios
            },
            rounds: args.rounds,
            duration: Duration::from_secs(args.seconds),
            connections: args.connections,
            rate: args.rate,
            pin: !args.no_pin,
            out: args.out,
        }),
        Command::Memory(args) => memory::run(&args.proxies, args.connections, &args.out),
        Command::Serve { listen } => server::run(listen),
        Command::Report { file } => {
            print!("{}", report::tables(&record::read(&file)?));
            Ok(())
        }
    }
}
