//! `leno analyze`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_analysis::{Finding, Severity};
use serde::Serialize;

use super::{MeshName, Output, print, print_json};

/// Finds mistakes in documents before they are run: each with file, line, reason and remedy
///
/// References that lead nowhere or are not granted, rules without a backend, matches that no request
/// reaches, routes, selectors and grants that concern nobody, fields that there are not. Exits 1 where
/// there are errors, with --strict also where there are warnings.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno analyze examples/shop/shop.yaml\n  \
                  leno analyze --strict -o json manifests/\n  \
                  sudo leno analyze            # the files of the mesh that runs")]
pub(crate) struct Analyze {
    /// YAML files or directories; "-" reads standard input; without one, those of the mesh that runs
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    mesh: MeshName,

    /// Takes warnings for errors
    #[arg(long)]
    strict: bool,

    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Serialize)]
struct Report<'a> {
    errors: usize,
    warnings: usize,
    findings: &'a [Finding],
}

pub(crate) fn run(analyze: &Analyze) -> Result<bool> {
    let files = match analyze.files.as_slice() {
        [] => leno_local::analysis::files_of(&analyze.mesh.name)?,
        files => files.to_vec(),
    };
    let findings = leno_local::analysis::findings(&files);
    let errors = findings.iter().filter(|one| one.severity == Severity::Error).count();
    let warnings = findings.len() - errors;
    if analyze.output == Output::Json {
        print_json(&Report { errors, warnings, findings: &findings })?;
    } else {
        print(&text(&findings, (errors, warnings)))?;
    }
    Ok(errors == 0 && !(analyze.strict && warnings > 0))
}

fn text(findings: &[Finding], (errors, warnings): (usize, usize)) -> String {
    if findings.is_empty() {
        return "no mistakes found\n".to_owned();
    }
    let mut text = String::new();
    for finding in findings {
        text += &format!("{finding}\n");
    }
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    text + &format!("{}, {}\n", counted(errors, "error"), counted(warnings, "warning"))
}
