//! The commands of the suite: they measure any mesh, or none, under the same load, and evaluate the records.

mod claims;
mod clean;
mod compare;
mod cost;
mod in_cluster;
mod list;
mod output;
mod prometheus;
mod report;
mod resources;
mod run;

use std::io::{self, BufReader};

use anyhow::Result;
use clap::Subcommand;
use leno_suite::application::{self, Application};
use leno_suite::pod_program;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    List(list::List),
    Run(Box<run::Run>),
    Report(report::ReportOptions),
    Compare(compare::Compare),
    Resources(resources::Resources),
    Prometheus(prometheus::Prometheus),
    Cost(cost::CostOptions),
    Claims(claims::Claims),
    Clean(clean::Clean),
    #[command(hide = true)]
    Serve(Application),
    /// Makes load or watches a node, in a pod or a workload of a run
    #[command(hide = true)]
    Pod,
}

/// Runs a command; `false` means a negative result, such as a claim that does not hold.
pub(crate) fn run(command: &Command) -> Result<bool> {
    match command {
        Command::List(args) => list::run(args),
        Command::Run(args) => run::run(args),
        Command::Report(report) => report::run(report),
        Command::Prometheus(args) => prometheus::run(args),
        Command::Compare(compare) => compare::run(compare),
        Command::Resources(resources) => resources::run(resources),
        Command::Cost(cost) => cost::run(cost),
        Command::Claims(claims) => claims::run(claims),
        Command::Serve(args) => match application::serve(args)? {},
        Command::Clean(args) => clean::run(args),
        Command::Pod => {
            pod_program::answer(BufReader::new(io::stdin()), &mut io::stdout())?;
            Ok(true)
        }
    }
}
