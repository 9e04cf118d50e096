//! `leno bench compare`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_console::{Output, print, print_json};
use leno_suite::{compare, record};

use leno_suite::tabular::aligned;

/// Compares two runs, and first reports where machines or versions differ
///
/// For every scenario and mesh that both runs have: latency, CPU, memory and rate, with the 95 %
/// confidence interval of the ratio over the rounds.
#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// The directory of the earlier run
    before: PathBuf,

    /// The directory of the later run
    after: PathBuf,

    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: &Compare) -> Result<bool> {
    let compared = compare::compare(&record::read(&args.before)?, &record::read(&args.after)?);
    if args.output == Output::Json {
        return print_json(&compared).map(|()| true);
    }
    let mut text = String::new();
    for caveat in &compared.caveats {
        text += &format!("NOT THE SAME: {caveat}\n");
    }
    if !compared.caveats.is_empty() {
        text += "The ratios below may come from that.\n\n";
    }
    let heading = ["SCENARIO", "MESH", "FIGURE", "BEFORE", "AFTER", "RATIO", "95 %"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for row in &compared.rows {
        let ratio = &row.ratio;
        rows.push(vec![
            row.scenario.clone(),
            row.mesh.clone(),
            row.figure.to_owned(),
            format!("{:.1}", row.before),
            format!("{:.1}", row.after),
            format!("{:.3}", ratio.value),
            match row.rounds {
                1 => "- (one round)".to_owned(),
                _ => format!("{:.3} to {:.3}", ratio.low, ratio.high),
            },
        ]);
    }
    if compared.rows.is_empty() {
        text += "There is no scenario with the same mesh in both.\n";
    } else {
        text += &aligned(&rows);
    }
    print(&text).map(|()| true)
}
