//! `leno-bench`: measures Leno's proxy beside others, in one run, and keeps the raw records.
//!
//! It knows no proxy from inside: each is a command, a configuration it writes and a port, driven
//! by the same load against the same backend. A run writes one JSON record a measurement; tables
//! are made from records alone (`leno-bench report`), so an interrupted run is still a result.
//!
//! ```text
//!   wrk / leno-load ──► proxy under test (CPU 0) ──► nginx worker, files in memory
//!        (CPU 1)          │                             (CPU 1)
//!                         └── /proc/PID/stat before and after: CPU a request
//! ```
//! Read [`proxy::Contender`], [`http1`] and [`record::Record`] first.

mod backend;
mod http1;
mod memory;
mod process;
mod proxy;
mod record;
mod report;
mod wrk;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Measure Leno's proxy beside HAProxy and nginx.
#[derive(Parser)]
#[command(name = "leno-bench", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// CPU per request and throughput of one HTTP/1.1 hop in plaintext, one worker each
    Http1(Http1Args),
    /// Resident memory of one proxy: idle, and with connections open
    Memory(MemoryArgs),
    /// Make the tables again from a file of records
    Report {
        /// Where the records are
        file: PathBuf,
    },
}

#[derive(clap::Args)]
struct Http1Args {
    /// Which proxies: leno, haproxy, nginx, and none for the backend alone
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,nginx,none")]
    proxies: Vec<proxy::Contender>,
    /// Which work: keepalive-1k, keepalive-10k, new-connection
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "keepalive-1k,keepalive-10k,new-connection"
    )]
    scenarios: Vec<http1::Scenario>,
    /// Rounds; in each, every proxy has its turn in another order
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 4)]
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
    #[arg(long, default_value = "target/bench-http1.json")]
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
        Command::Http1(args) => http1::run(&http1::Options {
            proxies: args.proxies,
            scenarios: args.scenarios,
            rounds: args.rounds,
            duration: Duration::from_secs(args.seconds),
            connections: args.connections,
            rate: args.rate,
            pin: !args.no_pin,
            out: args.out,
        }),
        Command::Memory(args) => memory::run(&args.proxies, args.connections, &args.out),
        Command::Report { file } => {
            print!("{}", report::tables(&record::read(&file)?));
            Ok(())
        }
    }
}
