//! `leno check`.

use anyhow::Result;
use clap::Args;
use leno_capture::Preflight;
use leno_checks::{is_well, table};
use leno_local::Error;
use leno_local::check::Health;
use leno_local::layout::{DEFAULT_MESH, Layout};

use super::{Cluster, Output, RunningMesh, block_on, print, print_json};

/// Says what this machine, or a cluster, can do, and whether the mesh there is healthy
///
/// Exits 1 when traffic cannot be captured here, or something of the mesh is not well or could not be looked at.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno check           # this machine\n  \
                  leno check --pre          # a cluster, before Leno is installed\n  \
                  sudo leno check --pre --ebpf   # this machine's kernel: each program, tried\n  \
                  leno check --cluster      # a cluster that has it")]
pub(crate) struct Check {
    /// Looks at the cluster that the kubeconfig names, instead of at this machine
    #[arg(long)]
    cluster: bool,

    /// Says whether Leno can be installed in the cluster
    #[arg(long)]
    pre: bool,

    /// With --pre: says whether this machine's kernel can run Leno's programs, by loading and attaching each
    /// in a control group and a namespace that end with the command
    #[arg(long, requires = "pre", conflicts_with = "cluster")]
    ebpf: bool,

    #[command(flatten)]
    which: Cluster,

    /// The namespace of the control plane in the cluster
    #[arg(long, short, default_value = leno_charts::NAMESPACE)]
    namespace: String,

    #[command(flatten)]
    mesh: RunningMesh,

    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(crate) fn run(check: &Check) -> Result<bool> {
    if check.ebpf {
        return of_kernel(check.output);
    }
    if check.pre || check.cluster || check.which.is_named() {
        return of_cluster(check);
    }
    let name = match check.mesh.name() {
        // The machine is looked at all the same, and what a killed run of this name left.
        Err(Error::NotNamed(none)) if none.is_empty() => DEFAULT_MESH.to_owned(),
        other => other?,
    };
    let layout = Layout::new(&name)?;
    let found = block_on(async { Ok(Health::run(&layout).await?) })?;
    if check.output == Output::Json {
        print_json(&found)?;
    } else {
        print(&found.table())?;
    }
    match (&found.mesh, &check.mesh.name) {
        (None, Some(_)) => {
            let running = leno_local::record::running();
            return Err(Error::NotRunning { mesh: name, running }.into());
        }
        (None, None) if check.output == Output::Table => {
            print(&format!("\nno mesh {name} here: `leno up FILE` starts one\n"))?;
        }
        _ => {}
    }
    Ok(found.is_well())
}

fn of_kernel(output: Output) -> Result<bool> {
    let found = Preflight::run();
    if output == Output::Json {
        print_json(&found)?;
        return Ok(found.ready);
    }
    print(&table(&found.findings))?;
    Ok(found.ready)
}

fn of_cluster(check: &Check) -> Result<bool> {
    let found = block_on(async {
        let client = leno_operate::connect(&check.which.target()).await?;
        Ok(match check.pre {
            true => leno_operate::before(&client, &check.namespace).await?,
            false => leno_operate::after(&client, &check.namespace).await?,
        })
    })?;
    if check.output == Output::Json {
        print_json(&found)?;
    } else {
        print(&table(&found))?;
    }
    Ok(is_well(&found))
}
