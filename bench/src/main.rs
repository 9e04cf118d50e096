//! `leno-bench`, which `leno bench` starts: measures what meshes and proxies cost, and keeps the raw records.
//!
//! There are two kinds of commands. Those of the suite ([`suite`], [`one_proxy`], the crate `leno-suite`) start whole
//! meshes, one proxy, or none, on this machine or in a cluster, and make reports from records. The others measure one
//! decision or one property. Except for the cost of decisions ([`matching`], [`authorizing`]), all treat every proxy as
//! a black box, of which they know a command, a configuration that the bench writes, and a port.

mod authorizing;
mod balance;
mod client_address;
mod completion;
mod connecting;
mod documents;
mod flows;
mod matching;
mod memory;
mod one_proxy;
mod rounds;
mod routes;
mod suite;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser, Subcommand};

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
    /// CPU per request, throughput and latency of one hop in plaintext, one worker each
    ///
    /// Each scenario of one proxy is measured as fast as it goes and at a rate. Its records are those of a run of the suite.
    Http(one_proxy::HttpOptions),
    /// CPU per request of two proxies, throughput and latency through mTLS (needs root)
    ///
    /// The same scenarios in namespaces of `leno up`, through the proxies of a client and of its server: Leno's, or those of
    /// Envoy or HAProxy in their place, with the same TLS. CPU is that of both proxies together.
    Mesh(one_proxy::MeshOptions),
    /// Private, proportional and resident memory of proxies: idle, with connections open, and after them
    Memory(memory::Args),
    /// Effect of one slow endpoint of three on latency, for each balancing algorithm
    ///
    /// Exits with 1 if the default algorithm's p99 with the slow endpoint exceeds the bound, a
    /// multiple of its p99 without it.
    Balance(balance::Args),
    /// Cost of finding the rule for a request, by number of rules
    ///
    /// Exits with 1 if it grows faster than the logarithm of their number.
    Match(matching::Args),
    /// Cost of authorizing: a request by number of policies, a token, a handshake beside rustls alone and Envoy
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
    /// Cost of accounting for flows, by where they are read, beside none and beside other agents (needs root)
    ///
    /// HTTP at a rate, over kept and over new connections, and Redis at saturation, in a mesh without proxies for each
    /// measurement. CPU is that of client and server.
    Flows(flows::Args),
    /// Prints the tables of a file of records: of `memory`, or of `http` and `mesh` in versions that wrote one file
    Tables {
        /// The file of records
        file: PathBuf,
    },
    #[command(hide = true)]
    ConnectAsProxy(connecting::ConnectingPlan),
}

fn main() -> ExitCode {
    completion::complete(Args::command);
    match Args::try_parse() {
        Ok(args) => leno_console::ended("leno-bench", &run(args.command)),
        Err(error) => leno_console::not_parsed(error),
    }
}

/// Runs a command; `false` means a negative result, for example that a limit was exceeded.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::Suite(command) => suite::run(&command),
        Command::Http(args) => one_proxy::http(&args),
        Command::Mesh(args) => one_proxy::mesh(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Balance(args) => balance::run(args),
        Command::Match(args) => Ok(matching::run(args)),
        Command::Authorize(args) => authorizing::run(args),
        Command::Routes(args) => routes::run(args),
        Command::Flows(args) => flows::run(&args),
        Command::Tables { file } => tables::print(&file),
        Command::ClientAddress(args) => client_address::run(args),
        Command::ConnectAsProxy(plan) => connecting::run(&plan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_every_option() {
        let page = leno_testkit::reference::page(Args::command(), "leno bench");
        leno_testkit::reference::check("leno-bench.md", &page);
    }
}
