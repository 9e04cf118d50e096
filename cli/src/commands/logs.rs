//! Implements the command `leno logs`.

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use leno_console::note;
use leno_local::layout::Layout;
use leno_local::log::{DroppedLines, LogEntry, LogReader, OWN_NAMES};
use leno_local::output::LENO;
use leno_local::record;
use leno_local::status::MeshStatus;

use super::{RunningMesh, escaped};

/// How often to check for new lines.
const POLL: Duration = Duration::from_millis(100);

/// Prints the output of the workloads of a mesh of `leno up`
///
/// The log keeps the newest 4 to 8 MiB of all workloads together; the command reports how many older lines were
/// dropped. Each line begins with the instance's name, unless one instance is selected. The name `leno` selects the
/// lines of `leno up` itself, which are kept separately, and `controller` those of the control plane. Needs root.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo leno logs -f web\n  sudo leno logs --tail 20 -t shop/web-1 cart\n  \
                        sudo leno logs --proxy web"
)]
pub(crate) struct Logs {
    /// Instances (web-1) or workloads (web), with a namespace if needed (shop/web) [default: all]
    workloads: Vec<String>,

    #[command(flatten)]
    mesh: RunningMesh,

    /// Namespace of the workloads. Not needed if each name is in only one namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Prints new lines as they are written, until Ctrl-C or the end of the mesh
    #[arg(short, long)]
    follow: bool,

    /// Prints only this many of the newest lines
    #[arg(long, value_name = "LINES", value_parser = lines, allow_negative_numbers = true)]
    tail: Option<usize>,

    /// Begins each line with its time in UTC
    #[arg(short, long)]
    timestamps: bool,

    /// Prints the lines of the workloads' proxies instead
    #[arg(long)]
    proxy: bool,
}

fn lines(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "not a number of lines: write for example 20".to_owned())
}

pub(crate) fn run(logs: &Logs) -> Result<bool> {
    let layout = Layout::new(&logs.mesh.name()?)?;
    let status = MeshStatus::read(&layout)?;
    let wanted = wanted(logs, &status)?;
    let labelled = wanted.as_ref().is_none_or(|wanted| wanted.len() > 1);
    let fits = |entry: &LogEntry| wanted.as_ref().is_none_or(|wanted| wanted.contains(&entry.name));
    // A file or a pipe gets exactly the bytes that the workloads have printed.
    let is_terminal = io::stdout().is_terminal();
    let show = |entry: &LogEntry| -> Result<bool> {
        let mut line = Vec::new();
        if logs.timestamps {
            write!(line, "{} ", entry.at)?;
        }
        if labelled {
            write!(line, "{} | ", entry.name)?;
        }
        match is_terminal {
            true => line.extend(escaped(&String::from_utf8_lossy(&entry.text)).bytes()),
            false => line.extend_from_slice(&entry.text),
        }
        line.push(b'\n');
        match io::stdout().lock().write_all(&line) {
            // The reader, such as `head`, has closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            other => other.map(|()| true).context("cannot write to standard output"),
        }
    };
    let mut reader = LogReader::new(layout.log());
    let more = |reader: &mut LogReader| {
        reader.more().with_context(|| format!("cannot read {}", layout.log().display()))
    };
    let mut entries: VecDeque<LogEntry> = more(&mut reader)?.into_iter().filter(fits).collect();
    let dropped = of_wanted(reader.dropped(), wanted.as_deref());
    match logs.tail {
        Some(tail) if tail <= entries.len() => drop(entries.drain(..entries.len() - tail)),
        _ if dropped > 0 => complain_of(dropped),
        _ => {}
    }
    loop {
        for entry in &entries {
            if !show(entry)? {
                return Ok(true);
            }
        }
        // This is checked before the log is read, so that the last lines are not missed.
        let runs = record::owner(&layout).is_some();
        entries = more(&mut reader)?.into_iter().filter(fits).collect();
        if !logs.follow || (!runs && entries.is_empty()) {
            return Ok(true);
        }
        if entries.is_empty() {
            std::thread::sleep(POLL);
        }
    }
}

/// How many of the dropped lines may have been requested ones.
fn of_wanted(dropped: DroppedLines, wanted: Option<&[String]>) -> u64 {
    let (mut own, mut others) = (wanted.is_none(), wanted.is_none());
    for name in wanted.unwrap_or_default() {
        own |= name == LENO;
        others |= name != LENO;
    }
    u64::from(own) * dropped.own + u64::from(others) * dropped.others
}

fn complain_of(dropped: u64) {
    note!(
        "leno: {dropped} older lines, of all workloads together, were dropped: the log keeps the newest 4 to 8 MiB"
    );
}

/// The names in the log that the user means; `None` for all names.
fn wanted(logs: &Logs, status: &MeshStatus) -> Result<Option<Vec<String>>> {
    if logs.workloads.is_empty() && logs.namespace.is_none() && !logs.proxy {
        return Ok(None);
    }
    let namespace = logs.namespace.as_deref();
    let mut names = Vec::new();
    let mut add = |workload: Option<&str>| -> Result<()> {
        for instance in status.meant(namespace, workload)? {
            let proxy = if logs.proxy { " proxy" } else { "" };
            names.push(format!("{}/{}{proxy}", instance.namespace, instance.name));
        }
        Ok(())
    };
    if logs.workloads.is_empty() {
        add(None)?;
    }
    let mut own = Vec::new();
    for workload in &logs.workloads {
        match OWN_NAMES.contains(&workload.as_str()) {
            true => own.push(workload.clone()),
            false => add(Some(workload))?,
        }
    }
    names.extend(own);
    Ok(Some(names))
}
