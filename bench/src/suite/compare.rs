//! `leno bench compare`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_console::{OutputForm, print, print_json};
use leno_suite::compare::{self, ComparisonRow};
use leno_suite::record;
use leno_suite::tabular::{Column, aligned, rows};

/// Compares two runs, after a list of the differences between their machines and versions
///
/// Shows latency, CPU, memory and rate of every scenario and mesh that both runs have, with the 95 % confidence
/// interval of the ratio over the rounds.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Directory with the records of the earlier run
    before: PathBuf,

    /// Directory with the records of the later run
    after: PathBuf,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

pub(super) fn run(args: &Compare) -> Result<bool> {
    let compared = compare::compare(&record::read(&args.before)?, &record::read(&args.after)?);
    if args.output == OutputForm::Json {
        return print_json(&compared).map(|()| true);
    }
    let mut text = String::new();
    for caveat in &compared.caveats {
        text += &format!("DIFFERENT: {caveat}\n");
    }
    if !compared.caveats.is_empty() {
        text += "The ratios below may come from that.\n\n";
    }
    let columns: [Column<'_, ComparisonRow>; 7] = [
        ("SCENARIO", &|row| row.scenario.clone()),
        ("MESH", &|row| row.mesh.clone()),
        ("FIGURE", &|row| row.figure.to_owned()),
        ("BEFORE", &|row| format!("{:.1}", row.before)),
        ("AFTER", &|row| format!("{:.1}", row.after)),
        ("RATIO", &|row| format!("{:.3}", row.ratio.value)),
        ("95 %", &|row| match row.rounds {
            1 => "- (one round)".to_owned(),
            _ => format!("{:.3} to {:.3}", row.ratio.low, row.ratio.high),
        }),
    ];
    if compared.rows.is_empty() {
        text += "The two runs have no scenario with the same mesh.\n";
    } else {
        text += &aligned(&rows(&compared.rows, &columns));
    }
    print(&text).map(|()| true)
}
