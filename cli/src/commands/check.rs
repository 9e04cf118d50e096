//! `leno check`.

use anyhow::Result;
use clap::Args;
use leno_capture::{Level as Ability, Preflight};
use leno_local::Error;
use leno_local::check::Finding;
use leno_local::layout::{DEFAULT_MESH, Layout};
use leno_operate::Level;

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
    let found = block_on(async { Ok(leno_local::check::Check::run(&layout).await?) })?;
    if check.output == Output::Json {
        print_json(&found)?;
    } else {
        print(&text(&found))?;
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
    Ok(found.healthy())
}

fn of_kernel(output: Output) -> Result<bool> {
    let found = Preflight::run();
    if output == Output::Json {
        print_json(&found)?;
        return Ok(found.ready);
    }
    let row = |one: &leno_capture::Finding| {
        let mark = match one.level {
            Ability::Good => "ok  ",
            Ability::FallsBack => "warn",
            Ability::Missing => "BAD ",
        };
        (format!("{mark} {}", one.subject), one.text.clone())
    };
    let rows: Vec<(String, String)> = found.findings.iter().map(row).collect();
    print(&columns(&rows))?;
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
        let rows: Vec<(String, String)> = found.iter().map(row_of).collect();
        print(&columns(&rows))?;
    }
    Ok(found.iter().all(|one| one.level.is_well()))
}

fn row_of(finding: &leno_operate::Finding) -> (String, String) {
    let mark = match finding.level {
        Level::Good => "ok  ",
        Level::Warning => "warn",
        Level::Bad => "BAD ",
        Level::Unknown => "????",
    };
    (format!("{mark} {}", finding.subject), finding.text.clone())
}

fn text(found: &leno_local::check::Check) -> String {
    let machine = &found.machine;
    let missing: Vec<&str> =
        machine.capabilities.iter().filter(|one| !one.held).map(|one| one.name).collect();
    let capabilities = if missing.is_empty() {
        "all held".to_owned()
    } else {
        format!("missing: {} (run as root)", missing.join(", "))
    };
    let mut rows = vec![
        ("kernel".to_owned(), machine.kernel.clone()),
        ("BTF".to_owned(), if machine.btf { "yes" } else { "no" }.to_owned()),
        ("cgroup2".to_owned(), machine.cgroup2.to_string()),
        ("bpffs".to_owned(), machine.bpffs.to_string()),
        ("capabilities".to_owned(), capabilities),
    ];
    for backend in &machine.backends {
        let usable = if backend.usable { "usable" } else { "not usable" };
        rows.push((backend.backend.to_string(), format!("{usable}: {}", backend.reason)));
    }
    let chosen = machine.chosen.map_or_else(|| "none".to_owned(), |chosen| chosen.to_string());
    rows.push(("capture".to_owned(), format!("{chosen}: {}", machine.why)));
    let mut text = columns(&rows);
    if let Some(findings) = &found.mesh {
        let row = |finding: &Finding| {
            let mark = if finding.healthy { "ok " } else { "BAD" };
            (format!("{mark} {}", finding.subject), finding.text.clone())
        };
        let rows: Vec<(String, String)> = findings.iter().map(row).collect();
        text += &format!("\n{}", columns(&rows));
    }
    text
}

/// Two columns, the first as wide as it needs to be.
fn columns(rows: &[(String, String)]) -> String {
    let width = rows.iter().map(|(left, _)| left.chars().count()).max().unwrap_or_default();
    let row = |(left, right): &(String, String)| format!("{left:width$}  {right}\n");
    rows.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_their_distance() {
        let rows = [("web".to_owned(), "runs".to_owned()), ("w".repeat(70), "waits".to_owned())];
        let text = columns(&rows);
        assert!(text.ends_with("w  waits\n"), "{text}");
        assert!(text.starts_with(&format!("web{}  runs\n", " ".repeat(67))), "{text}");
    }
}
