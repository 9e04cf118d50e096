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

/// Measures what meshes cost: sends the same load through each mesh and without one, and compares the results
///
/// A run leaves one record per measurement, a JSON file. Every report is made from these records, so it can be
/// reproduced, checked, and compared with the report of another machine.
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
    /// Measures CPU per request, throughput and latency of one proxy in plaintext, with one worker thread each
    ///
    /// Measures each scenario of one proxy at saturation and at a fixed rate. Its records have the format of `leno
    /// bench run`.
    Http(one_proxy::HttpOptions),
    /// Measures CPU per request, throughput and latency through two proxies with mTLS. Needs root
    ///
    /// Runs the scenarios of `leno bench http` in network namespaces of `leno up`, through the proxies of a client
    /// and of its server: Leno's, or those of Envoy or HAProxy in their place, with the same TLS. CPU is the sum of
    /// both proxies.
    Mesh(one_proxy::MeshOptions),
    /// Measures private, proportional and resident memory of proxies: idle, with connections open, and after these
    /// have closed
    Memory(memory::Args),
    /// Measures how one slow endpoint of three affects latency, for each balancing algorithm
    ///
    /// Exits 1 if the default algorithm's p99 with the slow endpoint exceeds --bound times its p99 without it.
    Balance(balance::Args),
    /// Measures the time to find the rule of a request, by number of rules
    ///
    /// Exits 1 if the time grows faster than the logarithm of the number of rules.
    Match(matching::Args),
    /// Measures the time to authorize a request by number of policies, to verify a token, and to complete a
    /// handshake, beside rustls alone and Envoy
    ///
    /// Exits 1 if authorizing a request takes more than half a microsecond with 100 policies.
    Authorize(authorizing::Args),
    /// Checks that a route that changes many times per second loses no request and cuts no stream. Needs root
    ///
    /// Exits 1 if a request was lost, a stream was cut, or the load could not keep its rate.
    Routes(routes::Args),
    /// Measures what it costs to show an application the address of its client, by kind of address. Needs root
    ///
    /// Connects as the proxy of a workload does, with capture by eBPF: from the workload's own address, from the
    /// stand-in address, and with the client's address.
    ClientAddress(client_address::Args),
    /// Measures what flow metrics cost, by their source, compared with none and with other agents. Needs root
    ///
    /// Runs HTTP at a rate, over kept and over new connections, and Redis at saturation, each in a mesh without
    /// proxies. CPU is the sum of client and server.
    Flows(flows::Args),
    /// Prints the tables of a file of records: that of `memory`, or those of `http` and `mesh` from versions that
    /// wrote one file
    Tables {
        /// File of records
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
