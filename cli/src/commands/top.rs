//! Implements the command `leno top`.

mod screen;
mod terminal;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use tokio::signal::unix::{SignalKind, signal};

use super::figures::{ReportRequest, reports, window};
use super::order::RowOrder;
use super::recorded::Recorded;
use super::{AnyMesh, OutputForm, block_on, print, print_json};
use screen::{Key, RowKind, Screen};
use terminal::Terminal;

/// Shows edges or workloads live, sorted by rate, success or latency
///
/// Shows the figures of `leno stat`, refreshed after each window. Keys: s and S select the figure to sort by, w
/// switches between workloads and edges, / filters by a part of a name, j, k and the arrows scroll, q quits. With
/// --once, prints one window and ends, for scripts.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno top --sort p99\n  \
                  sudo leno top --once --workloads --sort success -o json\n  \
                  leno top --context prod -n shop")]
pub(crate) struct Top {
    #[command(flatten)]
    mesh: AnyMesh,

    /// Shows only workloads of this namespace, and edges to or from them
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    #[command(flatten)]
    order: RowOrder,

    #[command(flatten)]
    recorded: Recorded,

    /// Length of each window of time, from 100ms to 1h
    #[arg(long, default_value = "2s", value_name = "DURATION", value_parser = window)]
    window: Duration,

    /// Shows workloads instead of edges
    #[arg(long)]
    workloads: bool,

    /// Prints one window and ends
    #[arg(long)]
    once: bool,

    /// The output format; json needs --once
    #[arg(short, long, value_enum, default_value_t, requires_if("json", "once"))]
    output: OutputForm,
}

pub(crate) fn run(top: &Top) -> Result<bool> {
    let rows = if top.workloads { RowKind::Workloads } else { RowKind::Edges };
    let wanted = ReportRequest {
        mesh: &top.mesh,
        namespace: top.namespace.as_deref(),
        window: top.window,
        goes_on: !top.once,
        prometheus: top.recorded.prometheus.as_ref(),
    };
    if top.once {
        let shown = |report| {
            let report = top.order.of(report);
            match (top.output, rows) {
                (OutputForm::Json, RowKind::Edges) => print_json(&report.edges),
                (OutputForm::Json, RowKind::Workloads) => print_json(&report.workloads),
                (OutputForm::Table, _) => print(&rows.table(&report)),
            }
        };
        block_on(reports(&wanted, shown))?;
        return Ok(true);
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!(
            "leno top needs a terminal on standard input and output: use `leno top --once`, or \
             `leno stat -w`"
        );
    }
    block_on(live(&wanted, Screen::new(rows, top.order.clone())))
}

/// Shows the screen until a key or a signal ends it.
async fn live(wanted: &ReportRequest<'_>, screen: Screen) -> Result<bool> {
    let terminal = Terminal::enter()?;
    let screen = std::cell::RefCell::new(screen);
    let draw = || terminal.draw(&screen.borrow().lines(terminal.size()));
    draw()?;
    let mut keys = terminal::keys();
    let typed = async {
        while let Some(byte) = keys.recv().await {
            if screen.borrow_mut().typed(byte) == Key::End {
                break;
            }
            draw()?;
        }
        Ok(true)
    };
    let mut end = signal(SignalKind::terminate())?;
    let mut resized = signal(SignalKind::window_change())?;
    let again = async {
        while resized.recv().await.is_some() {
            draw()?;
        }
        Ok(true)
    };
    let followed = async {
        let shown = |report| {
            screen.borrow_mut().report = Some(report);
            draw()
        };
        reports(wanted, shown).await.map(|()| true)
    };
    tokio::select! {
        done = followed => done,
        done = typed => done,
        done = again => done,
        _ = end.recv() => Ok(true),
    }
}
