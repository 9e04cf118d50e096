//! Reads files and plans them, or reports why they are rejected.

use std::path::PathBuf;

use leno_resources::{Documents, IgnoredDocument, Located, Problem};

use super::UpOptions;
use crate::analysis;
use crate::compose;
use crate::error::{Error, Result};
use crate::hint::command;
use crate::plan::{Plan, PlanDefaults};
use crate::program;

/// Reads the documents.
pub(super) fn load(files: &[PathBuf]) -> Result<Documents> {
    compose::load(files).map_err(|problems| refused(&problems))
}

/// Plans the documents of a mesh's files. Owners of addresses in the earlier plan `before` keep them.
pub(super) fn plan(
    options: &UpOptions,
    documents: &Documents,
    defaults: PlanDefaults,
    before: &Plan,
) -> Result<Plan> {
    let plan = Plan::make(documents, defaults, before).map_err(|problems| refused(&problems))?;
    if documents.objects.is_empty() && !before.instances.is_empty() {
        // An edit that removes everything is rejected. A program is probably about to write the files, so the
        // running mesh is not ended.
        let down = command(&options.mesh, "down");
        return Err(Error::Documents(format!(
            "the files have no document: to end the mesh, run `{down}`"
        )));
    }
    if plan.instances.is_empty() && before.instances.is_empty() {
        let silent = analysis::silent(&options.files, documents).into_iter();
        let silent = silent.map(|(path, reason)| format!("{}: {reason}", path.display()));
        let mut lines: Vec<String> = ignored(documents).into_iter().chain(silent).collect();
        let reason = "the files have no Workload document with replicas, so there is nothing to run: add one";
        lines.push(reason.to_owned());
        return Err(Error::Documents(lines.join("\n")));
    }
    if plan.meshed() {
        for name in ["leno-proxy", "leno-broker", "leno-controller"] {
            program::find(name).ok_or_else(|| program::missing(name))?;
        }
    }
    Ok(plan)
}

/// Rejects documents with errors that `leno analyze` reports, if the option for that is set.
pub(super) fn without_errors(
    options: &UpOptions,
    documents: &Documents,
    plan: &Plan,
) -> Result<()> {
    if !options.refuse_errors {
        return Ok(());
    }
    let mistakes = analysis::mistakes(documents, plan);
    let errors: Vec<String> =
        mistakes.into_iter().filter(|one| one.error).map(|one| one.text).collect();
    if errors.is_empty() { Ok(()) } else { Err(Error::Documents(errors.join("\n"))) }
}

/// One line for each document that Leno does not read.
pub(super) fn ignored(documents: &Documents) -> Vec<String> {
    let line = |ignored: &Located<IgnoredDocument>| {
        let Located { value, file, place } = ignored;
        format!("{file}:{place}: ignored {} {}", value.api_version, value.kind)
    };
    documents.ignored.iter().map(line).collect()
}

fn refused(problems: &[Problem]) -> Error {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Error::Documents(lines.join("\n"))
}
