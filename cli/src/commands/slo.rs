//! Implements the command `leno slo`.

mod gate;
mod report;

use anyhow::Result;
use clap::{Args, Subcommand};
use leno_local::layout::Layout;
use leno_local::objectives::{self, MeshObjective};
use leno_local::status::MeshStatus;

use super::{OutputForm, RunningMesh, block_on, print, print_json};
use report::Report;

/// Shows the service level objectives of a mesh of `leno up`: the error budget that is left, and how fast it is spent
///
/// Objectives are the ServiceLevelObjective documents of the mesh. The requests are those in the mesh's history, as
/// the proxies of the clients counted them. Exits 1 if a budget is used up or is spent too fast. Needs root.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:\n  sudo leno slo\n  sudo leno slo -n shop -o json\n  \
                        sudo leno slo gate cart --until 5m")]
pub(crate) struct Slo {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    wanted: ObjectiveFilter,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

#[derive(Debug, Subcommand)]
enum Action {
    Gate(gate::Gate),
}

/// The options that select objectives.
#[derive(Debug, Args)]
struct ObjectiveFilter {
    #[command(flatten)]
    mesh: RunningMesh,

    /// Shows or checks only the objectives of this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
}

impl ObjectiveFilter {
    fn layout(&self) -> Result<Layout> {
        Ok(Layout::new(&self.mesh.name()?)?)
    }

    /// The objectives with these names; all objectives if there are no names.
    fn find(&self, layout: &Layout, names: &[String]) -> Result<Vec<MeshObjective>> {
        let found = objectives::running(layout, |one| {
            let is_there = self.namespace.as_ref().is_none_or(|own| one.metadata.namespace == *own);
            is_there && (names.is_empty() || names.contains(&one.metadata.name))
        })?;
        if let Some(namespace) = self.namespace.as_deref().filter(|_| found.is_empty()) {
            MeshStatus::read(layout)?.has_namespace(namespace)?;
        }
        for name in names {
            if !found.iter().any(|one| one.object.metadata.name == *name) {
                anyhow::bail!(
                    "there is no ServiceLevelObjective {name:?}: `leno slo` lists those \
                     of the mesh"
                );
            }
        }
        Ok(found)
    }
}

pub(crate) fn run(slo: &Slo) -> Result<bool> {
    match &slo.action {
        Some(Action::Gate(gate)) => gate::run(gate),
        None => list(slo),
    }
}

fn list(slo: &Slo) -> Result<bool> {
    let layout = slo.wanted.layout()?;
    let objectives = slo.wanted.find(&layout, &[])?;
    let reports = block_on(Report::of_all(&layout, &objectives))?;
    if slo.output == OutputForm::Json {
        print_json(&reports)?;
    } else {
        print(&report::table(&reports))?;
    }
    Ok(!reports.iter().any(Report::fails))
}
