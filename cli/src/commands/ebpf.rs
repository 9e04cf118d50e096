//! `leno ebpf`.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use leno_bpf::inspect::{self, PinnedMap, PinnedProgram};
use leno_bpf::{Leftover, PinRoot};
use serde::Serialize;

use super::{Output, print, print_json, table};

/// Shows the kernel programs and maps of this machine that are Leno's, and removes those without use
#[derive(Debug, Args)]
pub(crate) struct Ebpf {
    #[command(subcommand)]
    of: Of,
}

#[derive(Debug, Subcommand)]
enum Of {
    Status(Status),
    Programs(Programs),
    Maps(Maps),
    Prune(Prune),
}

/// Lists what has programs: captured workloads, and meshes whose flows are accounted for
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno ebpf status")]
struct Status {
    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Lists the programs: what each is attached to, and its runs while the kernel counts them
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  sudo sysctl kernel.bpf_stats_enabled=1; sudo leno ebpf programs"
)]
struct Programs {
    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Lists the maps: type, capacity and kernel memory
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno ebpf maps -o json")]
struct Maps {
    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Removes the pins of programs whose control group or network namespace is gone
///
/// Programs that are attached stay: `leno cleanup` removes those of a killed `leno up`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno ebpf prune")]
struct Prune {}

/// What has programs.
#[derive(Serialize)]
struct OwnerRow<'a> {
    owner: &'a str,
    does: &'static str,
    version: &'a str,
    attached: bool,
    pins: String,
}

#[derive(Serialize)]
struct ProgramRow<'a> {
    owner: &'a str,
    name: &'a str,
    id: u32,
    attached_to: &'a str,
    runs: u64,
    ns_per_run: Option<u64>,
}

#[derive(Serialize)]
struct MapRow<'a> {
    owner: &'a str,
    name: &'a str,
    id: u32,
    #[serde(rename = "type")]
    kind: &'a str,
    capacity: u32,
    memory_bytes: u64,
}

pub(crate) fn run(ebpf: &Ebpf) -> Result<bool> {
    if !nix::unistd::geteuid().is_root() {
        return Err(leno_local::Error::NeedsRoot.into());
    }
    let root = PinRoot::find().context("cannot find the pins")?;
    match &ebpf.of {
        Of::Status(status) => show_status(&leno_bpf::list(&root)?, status.output)?,
        Of::Programs(programs) => show_programs(&inspect::programs(&root)?, programs.output)?,
        Of::Maps(maps) => show_maps(&inspect::maps(&root)?, maps.output)?,
        Of::Prune(_) => prune(&root)?,
    }
    Ok(true)
}

fn prune(root: &PinRoot) -> Result<()> {
    let removed = leno_bpf::prune(root, |leftover| leftover.attached)?;
    if removed.is_empty() {
        print("nothing to remove\n")?;
    }
    for leftover in removed {
        print(&format!("removed the pins of {}\n", leftover.owner))?;
    }
    Ok(())
}

fn show_status(all: &[Leftover], output: Output) -> Result<()> {
    let rows: Vec<OwnerRow<'_>> = all
        .iter()
        .map(|one| OwnerRow {
            owner: &one.owner,
            does: if one.flows { "flows" } else { "capture" },
            version: &one.version,
            attached: one.attached,
            pins: one.directory.display().to_string(),
        })
        .collect();
    if output == Output::Json {
        return print_json(&rows);
    }
    let wide = table::width("OWNER", rows.iter().map(|row| row.owner));
    let mut text =
        format!("{:<wide$}{:<9}{:<9}{:<10}{}\n", "OWNER", "DOES", "VERSION", "ATTACHED", "PINS");
    for row in &rows {
        let attached = if row.attached { "yes" } else { "no" };
        text += &format!(
            "{:<wide$}{:<9}{:<9}{attached:<10}{}\n",
            row.owner, row.does, row.version, row.pins
        );
    }
    print(&text)
}

fn show_programs(all: &[PinnedProgram], output: Output) -> Result<()> {
    let rows: Vec<ProgramRow<'_>> = all.iter().map(program_row).collect();
    if output == Output::Json {
        return print_json(&rows);
    }
    let owners = table::width("OWNER", rows.iter().map(|row| row.owner));
    let names = table::width("PROGRAM", rows.iter().map(|row| row.name));
    let places = table::width("ATTACHED TO", rows.iter().map(|row| row.attached_to));
    let mut text = format!(
        "{:<owners$}{:<names$}{:>8}  {:<places$}{:>12}{:>10}\n",
        "OWNER", "PROGRAM", "ID", "ATTACHED TO", "RUNS", "NS/RUN"
    );
    for row in &rows {
        text += &format!(
            "{:<owners$}{:<names$}{:>8}  {:<places$}{:>12}{:>10}\n",
            row.owner,
            row.name,
            row.id,
            row.attached_to,
            row.runs,
            row.ns_per_run.map_or_else(|| "-".to_owned(), |ns| ns.to_string()),
        );
    }
    print(&text)
}

fn show_maps(all: &[PinnedMap], output: Output) -> Result<()> {
    let rows: Vec<MapRow<'_>> = all.iter().map(map_row).collect();
    if output == Output::Json {
        return print_json(&rows);
    }
    let owners = table::width("OWNER", rows.iter().map(|row| row.owner));
    let names = table::width("MAP", rows.iter().map(|row| row.name));
    let kinds = table::width("TYPE", rows.iter().map(|row| row.kind));
    let mut text = format!(
        "{:<owners$}{:<names$}{:>8}  {:<kinds$}{:>12}{:>12}\n",
        "OWNER", "MAP", "ID", "TYPE", "CAPACITY", "KIB"
    );
    for row in &rows {
        text += &format!(
            "{:<owners$}{:<names$}{:>8}  {:<kinds$}{:>12}{:>12}\n",
            row.owner,
            row.name,
            row.id,
            row.kind,
            row.capacity,
            row.memory_bytes.div_ceil(1024),
        );
    }
    print(&text)
}

fn program_row(one: &PinnedProgram) -> ProgramRow<'_> {
    let PinnedProgram { owner, name, id, attached_to, runs, took } = one;
    let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    let ns_per_run = ns.checked_div(*runs);
    ProgramRow { owner, name, id: *id, attached_to, runs: *runs, ns_per_run }
}

fn map_row(one: &PinnedMap) -> MapRow<'_> {
    let PinnedMap { owner, name, id, kind, capacity, memory_bytes } = one;
    MapRow { owner, name, id: *id, kind, capacity: *capacity, memory_bytes: *memory_bytes }
}
