//! `leno stat`.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use leno_local::layout::Layout;
use leno_local::status::Status;
use leno_observe::stat::{Report, Scrape, WorkloadReport};

use super::{AnyMesh, ChosenMesh, Output, block_on, print_json, table};
use leno_console::{duration, within};

/// Moves to the first line of the terminal and clears it: the next report takes the place of the last.
const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";

/// Shows workloads and edges: success rate, requests/s, latency, mTLS or not
///
/// The figures are those of a window of time, from what the proxies of the mesh that runs here, or of a
/// cluster, count. JSON output has workloads[] and edges[] with success_rate (0 to 1), requests_per_s and
/// latency_ms. With --since they are those of the time up to now, from the history that `leno up` keeps.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno stat --window 5s -o json\n  \
                  sudo leno stat --since 10m\n  \
                  leno stat --context prod -n shop")]
pub(crate) struct Stat {
    #[command(flatten)]
    mesh: AnyMesh,

    /// What concerns this namespace only
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// How long to look, from 100ms to 1h
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = window)]
    window: Duration,

    /// The time up to now instead of the time from now, from 5s to 24h
    #[arg(long, value_name = "DURATION", value_parser = since, conflicts_with_all = ["window", "watch"])]
    since: Option<Duration>,

    /// Goes on until Ctrl-C, a report for each window
    #[arg(short, long)]
    watch: bool,

    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// The window: a rate over a shorter one means nothing, and a longer one takes too long to wait for.
fn window(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (Duration::from_millis(100), Duration::from_hours(1)))
}

/// What the history holds.
fn since(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (leno_dashboard::hub::TICK, Duration::from_hours(24)))
}

pub(crate) fn run(stat: &Stat) -> Result<bool> {
    match stat.mesh.choose()? {
        ChosenMesh::Machine(name) => {
            if !nix::unistd::geteuid().is_root() {
                return Err(leno_local::Error::NeedsRoot.into());
            }
            let layout = Layout::new(&name)?;
            if let Some(namespace) = &stat.namespace {
                Status::read(&layout)?.has_namespace(namespace)?;
            }
            if let Some(since) = stat.since {
                return past(stat, &layout, since);
            }
            let take = async |before: Option<&Scrape>| {
                Ok(leno_local::stat::scrape(&layout, before).await?)
            };
            block_on(reports(stat, take, |report| report))
        }
        ChosenMesh::Cluster(_) if stat.since.is_some() => {
            anyhow::bail!("--since is for a mesh of `leno up`: a cluster has no history yet")
        }
        ChosenMesh::Cluster(target) => block_on(async {
            let client = leno_operate::connect(&target).await?;
            let (namespace, name) = (stat.namespace.as_deref(), target.name());
            let take = async |_: Option<&Scrape>| {
                Ok(leno_operate::scrape(&client, namespace, &name).await?)
            };
            reports(stat, take, meshed).await
        }),
    }
}

/// The report of the time up to now.
fn past(stat: &Stat, layout: &Layout, since: Duration) -> Result<bool> {
    let target = format!("/api/v1/topology?window={}", since.as_millis());
    let topology = block_on(async { Ok(leno_local::observer::ask(layout, &target).await?) })?;
    let report = super::past::report(topology);
    let report = match &stat.namespace {
        Some(namespace) => report.of_namespace(namespace),
        None => report,
    };
    show(&report, stat.output)?;
    Ok(true)
}

/// A cluster may run much that is none of the mesh's.
fn meshed(mut report: Report) -> Report {
    report.workloads.retain(|workload| workload.meshed);
    report
}

async fn reports(
    stat: &Stat,
    take: impl AsyncFn(Option<&Scrape>) -> Result<Scrape>,
    of: impl Fn(Report) -> Report,
) -> Result<bool> {
    // A proxy that does not answer makes the first round longer, but not the window.
    let mut end = Instant::now() + stat.window;
    let mut before = take(None).await?;
    loop {
        tokio::time::sleep_until(end.into()).await;
        end = Instant::now() + stat.window;
        // With --watch a proxy that answers again is asked again.
        let now = take((!stat.watch).then_some(&before)).await?;
        let report = of(now.since(&before));
        let report = match &stat.namespace {
            Some(namespace) => report.of_namespace(namespace),
            None => report,
        };
        if stat.watch && stat.output == Output::Table && std::io::stdout().is_terminal() {
            super::print_raw(HOME_AND_CLEAR)?;
        }
        show(&report, stat.output)?;
        if !stat.watch {
            return Ok(true);
        }
        before = now;
    }
}

fn show(report: &Report, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return print_json(report);
    }
    let all = || report.workloads.iter();
    let namespaces = table::width("NAMESPACE", all().map(|one| one.namespace.as_str()));
    let names = table::width("WORKLOAD", all().map(|one| one.name.as_str()));
    let mut text = format!(
        "{:<namespaces$}{:<names$}{:>10}{:>9}{:>12}{:>9}{:>9}{:>9}  MESHED\n",
        "NAMESPACE", "WORKLOAD", "INSTANCES", "SUCCESS", "REQUESTS/S", "P50 MS", "P95 MS", "P99 MS"
    );
    for one in all() {
        text += &format!("{:<namespaces$}{:<names$}{}\n", one.namespace, one.name, row(one));
    }
    text += "\n";
    text += &match report.edges.is_empty() {
        true => format!("no traffic in {:.1} s\n", report.window_s),
        false => table::edges(report),
    };
    let unanswered = table::unanswered(report);
    if !unanswered.is_empty() {
        text += &format!("\n{unanswered}");
    }
    for ejected in &report.ejected {
        text += &format!("\n{ejected}");
    }
    if !report.ejected.is_empty() {
        text += "\n";
    }
    super::print(&text)?;
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
        "{:>10}{:>9}{:>12.1}{:>9}{:>9}{:>9}  {}",
        format!("{ready}/{all}"),
        signals.success_rate.map_or_else(|| "-".to_owned(), table::percent),
        signals.requests_per_s,
        table::ms(latency.p50),
        table::ms(latency.p95),
        table::ms(latency.p99),
        if workload.meshed { "yes" } else { "no" },
    )
}
