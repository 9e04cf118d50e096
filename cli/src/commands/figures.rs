//! The figures of `leno stat`, `leno edges`, `leno routes` and `leno top`: selects the mesh and the window of
//! time, and prints the report.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use leno_console::{duration, note, within};
use leno_dashboard::api::{Routes, Topology};
use leno_dashboard::series::MAX_SERIES;
use leno_local::layout::Layout;
use leno_local::status::MeshStatus;
use leno_observe::stat::{GoldenSignals, Scrape, StatReport};
use serde_json::json;

use super::history::MeshHistory;
use super::order::RowOrder;
use super::recorded::{PrometheusUrl, Recorded};
use super::{AnyMesh, ChosenMesh, block_on, past, print_json, table};

/// Moves the cursor to the first line of the terminal and clears the screen, so that the next report replaces the
/// last one.
const HOME_AND_CLEAR: &str = "\x1b[H\x1b[J";

/// The default window of a query to Prometheus: five scrapes at the usual interval.
const RECORDED: Duration = Duration::from_mins(5);

/// The shortest pause between two queries to Prometheus, which has nothing new before its next scrape.
const ASKED_AGAIN: Duration = Duration::from_secs(5);

/// The options that select figures and their form.
#[derive(Debug, Args)]
pub(crate) struct Figures {
    #[command(flatten)]
    mesh: AnyMesh,

    /// Shows only workloads of this namespace, edges to or from them, and routes of its services
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Length of the window of time in which requests are counted, from 100ms to 1h
    #[arg(long, default_value = "1s", value_name = "DURATION", value_parser = window)]
    window: Duration,

    /// Reports on this much time up to now, from the history, instead of on a window that begins now; from 5s to 24h
    #[arg(long, value_name = "DURATION", value_parser = since, conflicts_with_all = ["window", "watch"])]
    since: Option<Duration>,

    #[command(flatten)]
    recorded: Recorded,

    /// Prints a report after each window, until Ctrl-C
    #[arg(short, long)]
    watch: bool,

    #[command(flatten)]
    order: RowOrder,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// The forms of output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people
    #[default]
    Table,
    /// For people, with all columns
    Wide,
    /// For programs; names and units are stable
    Json,
}

/// The part of a report that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportView {
    /// Workloads and edges.
    Mesh,
    Edges,
    Routes,
}

/// Parses a window. In a shorter window a rate means nothing, and a longer one takes too long to wait for.
pub(crate) fn window(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (Duration::from_millis(100), Duration::from_hours(1)))
}

/// Parses how far back the history is read. The limits are those of the history.
pub(crate) fn since(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (leno_dashboard::hub::TICK, Duration::from_hours(24)))
}

impl Figures {
    /// Prints the figures of one window or, with `--watch`, of each window until Ctrl-C.
    pub(crate) fn run(&self, view: ReportView) -> Result<bool> {
        let shown = |report: StatReport| {
            let report = self.order.of(report);
            if self.watch && self.output != Form::Json && std::io::stdout().is_terminal() {
                super::print_raw(HOME_AND_CLEAR)?;
            }
            view.show(&report, self.output)
        };
        if let Some(url) = self.recorded.prometheus.as_ref().filter(|_| !self.watch) {
            let (namespace, since) = (self.namespace.as_deref(), self.since.unwrap_or(RECORDED));
            let report = block_on(url.report(&self.mesh, namespace, since))?;
            shown(report)?;
            return Ok(true);
        }
        if let Some(since) = self.since {
            let namespace = self.namespace.as_deref();
            let (report, left_out) = block_on(async {
                let history = MeshHistory::of(&self.mesh).await?;
                if let Some(namespace) = namespace {
                    history.has_namespace(namespace).await?;
                }
                before_now(&history, view, since).await
            })?;
            shown(of_namespace(report, namespace))?;
            if left_out > 0 {
                note!(
                    "leno: {left_out} workloads, edges and rules of routes are not shown: the history has room for {MAX_SERIES}"
                );
            }
            return Ok(true);
        }
        let wanted = ReportRequest {
            mesh: &self.mesh,
            namespace: self.namespace.as_deref(),
            window: self.window,
            goes_on: self.watch,
            prometheus: self.recorded.prometheus.as_ref(),
        };
        block_on(reports(&wanted, shown))?;
        Ok(true)
    }
}

impl ReportView {
    fn show(self, report: &StatReport, form: Form) -> Result<()> {
        if form == Form::Json {
            let StatReport { mesh, window_s, edges, routes, silent, .. } = report;
            return match self {
                Self::Mesh => print_json(report),
                Self::Edges => print_json(
                    &json!({"mesh": mesh, "window_s": window_s, "edges": edges, "silent": silent}),
                ),
                Self::Routes => print_json(
                    &json!({"mesh": mesh, "window_s": window_s, "routes": routes, "silent": silent}),
                ),
            };
        }
        let is_wide = form == Form::Wide;
        let text = match self {
            Self::Mesh => mesh(report, is_wide),
            Self::Edges if report.edges.is_empty() => nothing(report, "no traffic"),
            Self::Edges => table::identified(report, is_wide),
            Self::Routes if report.routes.is_empty() => {
                nothing(report, "no request to a service with an HTTPRoute or a GRPCRoute")
            }
            Self::Routes => table::routes(report, is_wide),
        };
        super::print(&text)?;
        for silent in &report.silent {
            note!("leno: no answer from the proxy of {silent}");
        }
        let missing = table::missing_percentiles(self.signals(report));
        if !missing.is_empty() {
            note!("leno: {missing}");
        }
        Ok(())
    }
}

impl ReportView {
    /// The signals of all rows that the view shows.
    fn signals(self, report: &StatReport) -> impl Iterator<Item = &GoldenSignals> {
        let workloads = report.workloads.iter().map(|one| &one.signals);
        let edges = report.edges.iter().map(|one| &one.signals);
        let routes = report.routes.iter().map(|one| &one.signals);
        let (is_mesh, is_routes) = (self == Self::Mesh, self == Self::Routes);
        let workloads = workloads.filter(move |_| is_mesh);
        workloads.chain(edges.filter(move |_| !is_routes)).chain(routes.filter(move |_| is_routes))
    }
}

fn nothing(report: &StatReport, what: &str) -> String {
    format!("{what} in {:.1} s\n", report.window_s)
}

/// Workloads and edges, and problems that success rates do not show.
fn mesh(report: &StatReport, is_wide: bool) -> String {
    let mut text = table::workloads(report, is_wide);
    text += "\n";
    text += &match report.edges.is_empty() {
        true => nothing(report, "no traffic"),
        false if is_wide => table::identified(report, true),
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
    text
}

/// The report on the time up to now from the history of a mesh, and how many workloads, edges (pairs of client and
/// server) or rules of routes the history had no room for.
///
/// # Errors
/// The observer of the mesh does not answer.
async fn before_now(
    history: &MeshHistory,
    view: ReportView,
    since: Duration,
) -> Result<(StatReport, u64)> {
    let window = since.as_millis();
    let (report, left_out) = match view {
        ReportView::Mesh | ReportView::Edges => {
            let target = format!("/api/v1/topology?window={window}");
            let topology = history.ask::<Topology>(&target).await?;
            let left_out = topology.left_out;
            (past::report(topology), left_out)
        }
        ReportView::Routes => {
            let target = format!("/api/v1/routes?window={window}");
            let routes = history.ask::<Routes>(&target).await?;
            let left_out = routes.left_out;
            (past::routes(routes), left_out)
        }
    };
    Ok((StatReport { mesh: history.name(report.mesh.clone()), ..report }, left_out))
}

/// The paths of a mesh on this machine. Fails if the mesh does not have this namespace.
fn of_machine(mesh: &str, namespace: Option<&str>) -> Result<Layout> {
    if !nix::unistd::geteuid().is_root() {
        return Err(leno_local::Error::NeedsRoot.into());
    }
    let layout = Layout::new(mesh)?;
    if let Some(namespace) = namespace {
        MeshStatus::read(&layout)?.has_namespace(namespace)?;
    }
    Ok(layout)
}

fn of_namespace(report: StatReport, namespace: Option<&str>) -> StatReport {
    match namespace {
        Some(namespace) => report.of_namespace(namespace),
        None => report,
    }
}

/// A request for reports: about which mesh, and how long the window of each report is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportRequest<'a> {
    pub(crate) mesh: &'a AnyMesh,
    /// Reduces the reports to this namespace.
    pub(crate) namespace: Option<&'a str>,
    pub(crate) window: Duration,
    /// Whether more reports follow the first.
    pub(crate) goes_on: bool,
    /// The Prometheus server that is queried instead of proxies, once after each window.
    pub(crate) prometheus: Option<&'a PrometheusUrl>,
}

/// Calls `shown` with the report of each window.
///
/// # Errors
/// There is no such mesh, or `shown` fails.
pub(crate) async fn reports(
    wanted: &ReportRequest<'_>,
    mut shown: impl FnMut(StatReport) -> Result<()>,
) -> Result<()> {
    let namespace = wanted.namespace;
    if let Some(url) = wanted.prometheus {
        loop {
            shown(url.report(wanted.mesh, namespace, RECORDED.max(wanted.window)).await?)?;
            if !wanted.goes_on {
                return Ok(());
            }
            tokio::time::sleep(wanted.window.max(ASKED_AGAIN)).await;
        }
    }
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
            let (name, system) = (target.name(), wanted.mesh.system_namespace.as_str());
            let take = async |_: Option<&Scrape>| {
                Ok(leno_operate::scrape(&client, namespace, (&name, system)).await?)
            };
            follow(wanted, take, meshed, shown).await
        }
    }
}

/// Leaves out workloads that do not belong to the mesh, because a cluster may run many others.
fn meshed(mut report: StatReport) -> StatReport {
    report.workloads.retain(|workload| workload.meshed);
    report
}

async fn follow(
    wanted: &ReportRequest<'_>,
    take: impl AsyncFn(Option<&Scrape>) -> Result<Scrape>,
    of: impl Fn(StatReport) -> StatReport,
    mut shown: impl FnMut(StatReport) -> Result<()>,
) -> Result<()> {
    // A proxy that does not answer lengthens the first round of queries, but not the window.
    let mut end = Instant::now() + wanted.window;
    let mut before = take(None).await?;
    loop {
        tokio::time::sleep_until(end.into()).await;
        end = Instant::now() + wanted.window;
        // If more reports follow, proxies that did not answer are queried again.
        let now = take((!wanted.goes_on).then_some(&before)).await?;
        shown(of_namespace(of(now.since(&before)), wanted.namespace))?;
        if !wanted.goes_on {
            return Ok(());
        }
        before = now;
    }
}
