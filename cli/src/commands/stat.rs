//! `leno stat`.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use leno_local::layout::Layout;
use leno_local::status::Status;
use leno_observe::stat::{Report, Scrape};

use super::order::Order;
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
                  sudo leno stat --since 10m --sort p99\n  \
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

    #[command(flatten)]
    order: Order,

    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// The window: a rate over a shorter one means nothing, and a longer one takes too long to wait for.
pub(crate) fn window(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (Duration::from_millis(100), Duration::from_hours(1)))
}

/// What the history holds.
fn since(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (leno_dashboard::hub::TICK, Duration::from_hours(24)))
}

pub(crate) fn run(stat: &Stat) -> Result<bool> {
    let shown = |report: Report| {
        let report = stat.order.of(report);
        if stat.watch && stat.output == Output::Table && std::io::stdout().is_terminal() {
            super::print_raw(HOME_AND_CLEAR)?;
        }
        show(&report, stat.output)
    };
    if let Some(since) = stat.since {
        let ChosenMesh::Machine(name) = stat.mesh.choose()? else {
            anyhow::bail!("--since is for a mesh of `leno up`: a cluster has no history yet");
        };
        shown(past(stat, &name, since)?)?;
        return Ok(true);
    }
    let wanted = Wanted {
        mesh: &stat.mesh,
        namespace: stat.namespace.as_deref(),
        window: stat.window,
        goes_on: stat.watch,
    };
    block_on(reports(&wanted, shown))?;
    Ok(true)
}

/// The report of the time up to now.
fn past(stat: &Stat, mesh: &str, since: Duration) -> Result<Report> {
    let layout = of_machine(mesh, stat.namespace.as_deref())?;
    let target = format!("/api/v1/topology?window={}", since.as_millis());
    let topology = block_on(async { Ok(leno_local::observer::ask(&layout, &target).await?) })?;
    Ok(of_namespace(super::past::report(topology), stat.namespace.as_deref()))
}

/// The paths of a mesh of this machine that has this namespace.
fn of_machine(mesh: &str, namespace: Option<&str>) -> Result<Layout> {
    if !nix::unistd::geteuid().is_root() {
        return Err(leno_local::Error::NeedsRoot.into());
    }
    let layout = Layout::new(mesh)?;
    if let Some(namespace) = namespace {
        Status::read(&layout)?.has_namespace(namespace)?;
    }
    Ok(layout)
}

fn of_namespace(report: Report, namespace: Option<&str>) -> Report {
    match namespace {
        Some(namespace) => report.of_namespace(namespace),
        None => report,
    }
}

/// Reports that are wanted: of which mesh, and how long each looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) mesh: &'a AnyMesh,
    /// What concerns this namespace only.
    pub(crate) namespace: Option<&'a str>,
    pub(crate) window: Duration,
    /// Whether a report follows the first.
    pub(crate) goes_on: bool,
}

/// Calls `shown` with the report of each window.
///
/// # Errors
/// If there is no such mesh, or `shown` fails.
pub(crate) async fn reports(
    wanted: &Wanted<'_>,
    shown: impl FnMut(Report) -> Result<()>,
) -> Result<()> {
    let namespace = wanted.namespace;
    match wanted.mesh.choose()? {
        ChosenMesh::Machine(name) => {
            let layout = of_machine(&name, namespace)?;
            let take = async |before: Option<&Scrape>| {
                Ok(leno_local::stat::scrape(&layout, before).await?)
            };
            follow(wanted, take, |report| report, shown).await
        }
        ChosenMesh::Cluster(target) => {
            let client = leno_operate::connect(&target).await?;
            let name = target.name();
            let take = async |_: Option<&Scrape>| {
                Ok(leno_operate::scrape(&client, namespace, &name).await?)
            };
            follow(wanted, take, meshed, shown).await
        }
    }
}

/// A cluster may run much that is none of the mesh's.
fn meshed(mut report: Report) -> Report {
    report.workloads.retain(|workload| workload.meshed);
    report
}

async fn follow(
    wanted: &Wanted<'_>,
    take: impl AsyncFn(Option<&Scrape>) -> Result<Scrape>,
    of: impl Fn(Report) -> Report,
    mut shown: impl FnMut(Report) -> Result<()>,
) -> Result<()> {
    // A proxy that does not answer makes the first round longer, but not the window.
    let mut end = Instant::now() + wanted.window;
    let mut before = take(None).await?;
    loop {
        tokio::time::sleep_until(end.into()).await;
        end = Instant::now() + wanted.window;
        // Where more follow, a proxy that answers again is asked again.
        let now = take((!wanted.goes_on).then_some(&before)).await?;
        shown(of_namespace(of(now.since(&before)), wanted.namespace))?;
        if !wanted.goes_on {
            return Ok(());
        }
        before = now;
    }
}

fn show(report: &Report, output: Output) -> anyhow::Result<()> {
    if output == Output::Json {
        return print_json(report);
    }
    let mut text = table::workloads(report);
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
