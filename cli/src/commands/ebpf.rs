//! Implements the command `leno ebpf`.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use leno_bpf::PinRoot;
use leno_flows::report::{self, MapRow, OwnerRow, PriceColumns, ProgramRow};

use super::{NodeOfCluster, OutputForm, RunningMesh, print, print_json, table};

/// Shows Leno's kernel programs and maps on this machine or a node, and removes unused ones
#[derive(Debug, Args)]
pub(crate) struct Ebpf {
    #[command(subcommand)]
    of: EbpfCommand,
}

#[derive(Debug, Subcommand)]
enum EbpfCommand {
    Status(Status),
    Programs(Programs),
    Maps(Maps),
    Resize(Resize),
    Upgrade(Upgrade),
    Prune(Prune),
}

/// Lists the captured workloads and the meshes with flow metrics, for which programs are attached
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno ebpf status\n  leno ebpf status --node worker-1")]
struct Status {
    #[command(flatten)]
    of: NodeOfCluster,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// Lists the programs: what each is attached to, and its runs and time per run if the kernel counts them (sysctl
/// kernel.bpf_stats_enabled=1)
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  sudo sysctl kernel.bpf_stats_enabled=1; sudo leno ebpf programs"
)]
struct Programs {
    #[command(flatten)]
    of: NodeOfCluster,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// Lists the maps: type, capacity and kernel memory
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno ebpf maps -o json")]
struct Maps {
    #[command(flatten)]
    of: NodeOfCluster,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// Changes the size of the flow table or of the ring of changes while they are in use
///
/// The connections in the table and all counters are kept. The next `leno up` of the mesh uses the sizes of its own
/// options again.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno ebpf resize --flow-map-size 65536")]
struct Resize {
    #[command(flatten)]
    mesh: RunningMesh,

    /// Number of connections that the flow table can hold, from 1 to 1048576 [default: unchanged]
    #[arg(long, value_name = "COUNT", required_unless_present = "flow_ring_size")]
    flow_map_size: Option<u32>,

    /// Number of connection changes that are buffered for `leno flows --follow`, from 1 to 1048576 [default:
    /// unchanged]
    #[arg(long, value_name = "COUNT")]
    flow_ring_size: Option<u32>,
}

/// Replaces the programs that count flows by those of this version, without a gap in the counters
///
/// The new programs are first tested with a connection. If they count it wrongly, or the kernel rejects them, the old
/// programs stay. Programs that capture traffic are replaced by the next `leno up`, and on Kubernetes by the agent.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno ebpf upgrade")]
struct Upgrade {
    #[command(flatten)]
    mesh: RunningMesh,
}

/// Removes the pins of programs whose control group or network namespace no longer exists
///
/// Attached programs stay. `leno cleanup` removes those of a killed `leno up`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  sudo leno ebpf prune")]
struct Prune {}

pub(crate) fn run(ebpf: &Ebpf) -> Result<bool> {
    match &ebpf.of {
        EbpfCommand::Status(status) if status.of.is_named() => {
            show_status(&status.of.get::<Vec<_>>("/ebpf/status")?, status.output)?;
            return Ok(true);
        }
        EbpfCommand::Programs(programs) if programs.of.is_named() => {
            show_programs(&programs.of.get::<Vec<_>>("/ebpf/programs")?, programs.output)?;
            return Ok(true);
        }
        EbpfCommand::Maps(maps) if maps.of.is_named() => {
            show_maps(&maps.of.get::<Vec<_>>("/ebpf/maps")?, maps.output)?;
            return Ok(true);
        }
        _ => {}
    }
    if !nix::unistd::geteuid().is_root() {
        return Err(leno_local::Error::NeedsRoot.into());
    }
    let root = PinRoot::find().context("cannot read Leno's pins below /sys/fs/bpf")?;
    match &ebpf.of {
        EbpfCommand::Status(status) => show_status(&report::owners()?, status.output)?,
        EbpfCommand::Programs(programs) => show_programs(&report::programs()?, programs.output)?,
        EbpfCommand::Maps(maps) => show_maps(&report::maps()?, maps.output)?,
        EbpfCommand::Resize(resize) => run_resize(resize)?,
        EbpfCommand::Upgrade(upgrade) => run_upgrade(upgrade)?,
        EbpfCommand::Prune(_) => prune(&root)?,
    }
    Ok(true)
}

fn run_resize(resize: &Resize) -> Result<()> {
    super::flows::view(&resize.mesh)?
        .resize(resize.flow_map_size, resize.flow_ring_size)
        .context("cannot change the sizes; the earlier sizes remain in effect")?;
    let sizes = [("flows", resize.flow_map_size), ("changes", resize.flow_ring_size)];
    for (what, size) in sizes {
        if let Some(size) = size {
            print(&format!("room for {size} {what}\n"))?;
        }
    }
    Ok(())
}

fn run_upgrade(upgrade: &Upgrade) -> Result<()> {
    super::flows::view(&upgrade.mesh)?
        .upgrade(leno_flows::self_test)
        .context("cannot replace the programs; the earlier programs continue to count")?;
    print(&format!("the programs are now those of version {}\n", env!("CARGO_PKG_VERSION")))
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

fn show_status(rows: &[OwnerRow], output: OutputForm) -> Result<()> {
    if output == OutputForm::Json {
        return print_json(&rows);
    }
    let wide = table::width("OWNER", rows.iter().map(|row| &*row.owner));
    let mut text = format!(
        "{:<wide$}{:<9}{:<9}{:<10}{:<12}{:<16}{}\n",
        "OWNER", "DOES", "VERSION", "ATTACHED", "LEVEL", "CPU % (MOST)", "PINS"
    );
    for row in rows {
        let attached = if row.attached { "yes" } else { "no" };
        let level = row.price.as_ref().map_or("-", |price| &*price.level);
        let cost = row.price.as_ref().map_or_else(|| "-".to_owned(), cost);
        text += &format!(
            "{:<wide$}{:<9}{:<9}{attached:<10}{level:<12}{cost:<16}{}\n",
            row.owner, row.does, row.version, row.pins
        );
    }
    for row in rows {
        for one in row.price.iter().flat_map(|price| &price.workloads) {
            text += &format!(
                "{}: {}/{} has the level {} by its own budget: {} ({})\n",
                row.owner,
                one.namespace,
                one.workload,
                one.level,
                one.cpu_percent,
                one.cpu_budget_percent
            );
        }
        if let Some(why) = &row.drops_not_counted {
            text += &format!("{}: dropped packets are not counted: {why}\n", row.owner);
        }
    }
    print(&text)
}

fn cost(price: &PriceColumns) -> String {
    match price.cpu_budget_percent {
        Some(most) => format!("{} ({most})", price.cpu_percent),
        None => "-".to_owned(),
    }
}

fn show_programs(rows: &[ProgramRow], output: OutputForm) -> Result<()> {
    if output == OutputForm::Json {
        return print_json(&rows);
    }
    let owners = table::width("OWNER", rows.iter().map(|row| &*row.owner));
    let names = table::width("PROGRAM", rows.iter().map(|row| &*row.name));
    let places = table::width("ATTACHED TO", rows.iter().map(|row| &*row.attached_to));
    let mut text = format!(
        "{:<owners$}{:<names$}{:>8}  {:<places$}{:>10}{:>12}{:>10}\n",
        "OWNER", "PROGRAM", "ID", "ATTACHED TO", "VERIFIED", "RUNS", "NS/RUN"
    );
    for row in rows {
        text += &format!(
            "{:<owners$}{:<names$}{:>8}  {:<places$}{:>10}{:>12}{:>10}\n",
            row.owner,
            row.name,
            row.id,
            row.attached_to,
            row.verified_instructions,
            row.runs,
            row.ns_per_run.map_or_else(|| "-".to_owned(), |ns| ns.to_string()),
        );
    }
    print(&text)
}

fn show_maps(rows: &[MapRow], output: OutputForm) -> Result<()> {
    if output == OutputForm::Json {
        return print_json(&rows);
    }
    let owners = table::width("OWNER", rows.iter().map(|row| &*row.owner));
    let names = table::width("MAP", rows.iter().map(|row| &*row.name));
    let kinds = table::width("TYPE", rows.iter().map(|row| &*row.kind));
    let mut text = format!(
        "{:<owners$}{:<names$}{:>8}  {:<kinds$}{:>12}{:>12}\n",
        "OWNER", "MAP", "ID", "TYPE", "CAPACITY", "KIB"
    );
    for row in rows {
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
