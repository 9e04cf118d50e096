//! Implements the command `leno check`.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use leno_admission::ProxiesOfNamespace;
use leno_capture::Preflight;
use leno_checks::{CheckResult, is_well, table};
use leno_local::Error;
use leno_local::check::MachineHealth;
use leno_local::hint::command;
use leno_local::layout::{DEFAULT_MESH, Layout};

use super::{Cluster, OutputForm, RunningMesh, block_on, print, print_json};

/// Checks what this machine or a cluster can do for the mesh, and whether the mesh there is healthy
///
/// Exits 1 if traffic cannot be captured on this machine, or if a part of the mesh is unhealthy or could not be
/// checked. Each finding has its remedy.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno check           # this machine\n  \
                  leno check --pre          # a cluster, before Leno is installed\n  \
                  sudo leno check --pre --ebpf   # this machine's kernel: each program, tried\n  \
                  leno check --cluster      # a cluster that has it")]
pub(crate) struct Check {
    /// Checks the cluster that the kubeconfig names, instead of this machine
    #[arg(long)]
    cluster: bool,

    /// Checks whether Leno can be installed in the cluster
    #[arg(long)]
    pre: bool,

    /// With --pre, checks whether this machine's kernel can run Leno's programs. Loads and attaches each of them in a
    /// temporary control group and network namespace
    #[arg(long, requires = "pre", conflicts_with = "cluster")]
    ebpf: bool,

    #[command(flatten)]
    which: Cluster,

    /// Namespace of the control plane in the cluster
    #[arg(long, short, default_value = leno_charts::NAMESPACE)]
    namespace: String,

    #[command(flatten)]
    mesh: RunningMesh,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

pub(crate) fn run(check: &Check) -> Result<bool> {
    if check.ebpf {
        return of_kernel(check.output);
    }
    if check.pre || check.cluster || check.which.is_named() {
        return of_cluster(check);
    }
    let name = match check.mesh.name() {
        // The machine is checked even without a mesh, and so are the remains of a killed run with the default
        // name.
        Err(Error::NotNamed(none)) if none.is_empty() => DEFAULT_MESH.to_owned(),
        other => other?,
    };
    let layout = Layout::new(&name)?;
    let found = block_on(async { Ok(MachineHealth::run(&layout).await?) })?;
    if check.output == OutputForm::Json {
        print_json(&found)?;
    } else {
        print(&found.table())?;
    }
    match (&found.mesh, &check.mesh.name) {
        (None, Some(_)) => {
            let running = leno_local::record::running();
            return Err(Error::NotRunning { mesh: name, was_killed: false, running }.into());
        }
        (None, None) if check.output == OutputForm::Table => {
            let up = command(&name, "up FILE");
            print(&format!("\nmesh {name} does not run on this machine: start it with `{up}`\n"))?;
        }
        _ => {}
    }
    Ok(found.is_well())
}

fn of_kernel(output: OutputForm) -> Result<bool> {
    let found = Preflight::run();
    if output == OutputForm::Json {
        print_json(&found)?;
        return Ok(found.ready);
    }
    print(&table(&found.findings))?;
    Ok(found.ready)
}

/// Checks the settings of namespaces about proxies. Returns a warning if pods are refused because a setting is
/// invalid, and `None` if all settings are valid. Also `None` if the user may not list namespaces, because the
/// refusal of a pod states the reason as well.
fn modes(
    settings: Result<BTreeMap<String, BTreeMap<String, String>>, leno_operate::Error>,
) -> Result<Option<CheckResult>> {
    let check = leno_checks::Check::new("mode", "Does a cluster have the mode of each namespace?");
    let settings = match settings {
        Err(error) if error.is_forbidden() => return Ok(None),
        settings => settings?,
    };
    let mut refused = settings.iter().filter_map(|(name, settings)| {
        Some((name, ProxiesOfNamespace::new(settings).check().err()?.to_string()))
    });
    let Some((name, reason)) = refused.next() else { return Ok(None) };
    let more = match refused.count() {
        0 => String::new(),
        more => format!(", and {more} more namespaces"),
    };
    Ok(Some(check.warning(format!("namespace {name}{more}: a pod is refused: {reason}"))))
}

fn of_cluster(check: &Check) -> Result<bool> {
    let found = block_on(async {
        let client = leno_operate::connect(&check.which.target()).await?;
        Ok(match check.pre {
            true => leno_operate::before(&client, &check.namespace).await?,
            false => of_installation(&client, &check.namespace).await?,
        })
    })?;
    if check.output == OutputForm::Json {
        print_json(&found)?;
    } else {
        print(&table(&found))?;
    }
    Ok(is_well(&found))
}

/// The results of the checks of an installation.
pub(crate) async fn of_installation(
    client: &leno_kube::Client,
    namespace: &str,
) -> Result<Vec<CheckResult>> {
    let mut found = leno_operate::after(client, namespace).await?;
    found.extend(modes(leno_operate::namespace_settings(client).await)?);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_refuses_its_pods_by_their_mode_is_named_with_the_remedy() {
        let finding = |namespaces: &[(&str, &[(&str, &str)])]| {
            let own = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let of = |(name, settings): &(&str, &[(&str, &str)])| {
                ((*name).to_owned(), settings.iter().map(own).collect())
            };
            modes(Ok(namespaces.iter().map(of).collect())).unwrap().map(|found| found.words())
        };
        let good: &[_] = &[("leno.dev/inject", "enabled"), ("leno.dev/mode", "sidecar")];
        let node: &[_] = &[("leno.dev/mode", "node")];
        let misspelt: &[_] = &[("leno.dev/share", "pods")];
        assert_eq!(finding(&[("bank", node), ("default", &[]), ("shop", good)]), None);
        let wrong: &[_] = &[("leno.dev/mode", "Node")];
        let words = finding(&[("bank", misspelt), ("shop", wrong)]).unwrap();
        assert!(words.starts_with("namespace bank, and 1 more namespaces:"), "{words}");
        assert!(words.contains("\"pods\", which its namespace sets, is not one of"), "{words}");
    }
}
