//! `leno bench claims`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_console::{OutputForm, note_text, print, print_json};
use leno_suite::{claims, cost, record};

use super::output::caveats;

/// Compares published claims about meshes with what was measured here
///
/// Each claim holds, does not hold here, or cannot be measured here, with the reason. A figure holds if the measured
/// one is within a factor of 1.5 of it.
#[derive(Debug, Args)]
pub(crate) struct Claims {
    /// Directory with the records of a run. Without it, only claims that follow from arithmetic are checked
    directory: Option<PathBuf>,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

pub(super) fn run(args: &Claims) -> Result<bool> {
    let records = args.directory.as_deref().map(record::read).transpose()?.unwrap_or_default();
    let outcomes = claims::check(&claims::claims()?, &records, &cost::prices(None)?);
    let caveats = caveats(&records);
    if args.output == OutputForm::Json {
        note_text!("{caveats}");
        return print_json(&outcomes).map(|()| true);
    }
    let mut text = String::new();
    if let Some(cluster) = records.iter().find_map(|record| record.cluster.as_ref()) {
        text += &format!("measured in {}\n", cluster.line());
    }
    text += &caveats;
    for one in &outcomes {
        let verdict = one.verdict.to_string();
        text += &format!("{verdict:<20} {}  {}\n{:23}{}\n", one.source, one.says, "", one.because);
    }
    print(&text).map(|()| true)
}
