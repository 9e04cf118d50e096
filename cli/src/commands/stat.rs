//! `leno stat`.

use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use leno_local::layout::Layout;
use leno_local::stat::{Report, Scrape, WorkloadReport};

use super::up::duration;
use super::{MeshName, Output, block_on, print_json, table};

/// Shows workloads and edges: success rate, requests/s, latency, mTLS or not
///
/// The figures are those of a window of time, from what the proxies count. JSON output has
/// workloads[] and edges[] with success_rate (0 to 1), requests_per_s and latency_ms.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno stat --window 5s -o json")]
pub(crate) struct Stat {
    #[command(flatten)]
    mesh: MeshName,

    /// How long to look
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = duration)]
    window: Duration,

    /// Goes on until Ctrl-C, a report for each window
    #[arg(short, long)]
    watch: bool,

    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(crate) fn run(stat: &Stat) -> Result<bool> {
    if !nix::unistd::geteuid().is_root() {
        bail!("leno stat asks the proxies in their namespaces: run it as root");
    }
    let layout = Layout::new(&stat.mesh.name)?;
    block_on(async {
        let mut before = Scrape::take(&layout).await?;
        loop {
            tokio::time::sleep(stat.window).await;
            let now = Scrape::take(&layout).await?;
            print(&now.since(&before), stat.output)?;
            if !stat.watch {
                return Ok(true);
            }
            before = now;
        }
    })
}

fn print(report: &Report, output: Output) -> Result<()> {
    if output == Output::Json {
        return print_json(report);
    }
    println!(
        "{:<14}{:<16}{:>10}{:>9}{:>12}{:>9}{:>9}{:>9}  MESHED",
        "NAMESPACE", "WORKLOAD", "INSTANCES", "SUCCESS", "REQUESTS/S", "P50 MS", "P95 MS", "P99 MS"
    );
    for workload in &report.workloads {
        println!("{}", row(workload));
    }
    println!("\n{}", table::edges(report));
    for silent in &report.silent {
        eprintln!("leno: no answer from the proxy of {silent}");
    }
    Ok(())
}

fn row(workload: &WorkloadReport) -> String {
    let signals = &workload.signals;
    let (ready, all) = (workload.ready, workload.instances);
    let latency = &signals.latency_ms;
    format!(
        "{:<14}{:<16}{:>10}{:>9}{:>12.1}{:>9}{:>9}{:>9}  {}",
        workload.namespace,
        workload.name,
        format!("{ready}/{all}"),
        signals.success_rate.map_or_else(|| "-".to_owned(), table::percent),
        signals.requests_per_s,
        table::ms(latency.p50),
        table::ms(latency.p95),
        table::ms(latency.p99),
        if workload.meshed { "yes" } else { "no" },
    )
}
