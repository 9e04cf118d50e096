//! `leno bench resources`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_console::{OutputForm, print, print_json};
use leno_suite::picture;
use leno_suite::resources::{Analysis, analyse};
use leno_suite::tabular::{aligned, short};

/// Analyses samples of CPU and memory by request rate, with the method of the published sidecar comparisons
///
/// Each directory is one sequence, with files RATE-RUN-metrics.csv of one sample per line, in any unit. For every
/// column and run, samples below the mean are dropped, then those more than one standard deviation away. The average
/// of a rate is the mean of its runs' means, and a parabola is fitted over the rates. JSON output has sequences[]
/// with name and columns.NAME.runs[], .mean_by_rate and .fit = [c0, c1, c2].
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  leno bench resources ambient linkerd --column 'data-plane CPU' --plot cpu.svg"
)]
pub(crate) struct Resources {
    /// Directories of samples, one for each sequence
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,

    /// Shows only this column. Can be repeated [default: the table shows the mesh's columns]
    #[arg(long = "column", value_name = "NAME")]
    columns: Vec<String>,

    /// Draws the first column that is shown into this file, .svg or .png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// The columns that the table shows by default, if the samples have them.
const USUAL: [&str; 6] = [
    "data-plane CPU",
    "data-plane mem",
    "mesh CPU",
    "mesh mem",
    "ztunnel mesh CPU",
    "waypoint mesh CPU",
];

pub(super) fn run(args: &Resources) -> Result<bool> {
    let mut analysis = analyse(&args.directories)?;
    let shown = shown(args, &analysis)?;
    if !args.columns.is_empty() {
        for sequence in &mut analysis.sequences {
            sequence.columns.retain(|name, _| args.columns.contains(name));
        }
    }
    if let (Some(file), Some(column)) = (&args.plot, shown.first()) {
        picture::write(&analysis.plot(column)?, file)?;
    }
    match args.output {
        OutputForm::Json => print_json(&analysis)?,
        OutputForm::Table => print(&tables(&analysis, &shown))?,
    }
    Ok(true)
}

/// The columns to show, each of which occurs in at least one sequence.
fn shown(args: &Resources, analysis: &Analysis) -> Result<Vec<String>> {
    if !args.columns.is_empty() {
        for column in &args.columns {
            analysis.plot(column)?;
        }
        return Ok(args.columns.clone());
    }
    let all = analysis.columns();
    let usual: Vec<&str> = USUAL.into_iter().filter(|name| all.contains(name)).collect();
    let shown = if usual.is_empty() { all } else { usual };
    Ok(shown.into_iter().map(str::to_owned).collect())
}

fn tables(analysis: &Analysis, shown: &[String]) -> String {
    let mut text = String::new();
    for column in shown {
        let found =
            analysis.sequences.iter().filter_map(|one| Some((&one.name, one.columns.get(column)?)));
        let mut rows = vec![Vec::new()];
        for (name, column) in found {
            if rows[0].is_empty() {
                let rates = column.mean_by_rate.keys().map(|rate| format!("{rate}/s"));
                rows[0] = std::iter::once(String::new()).chain(rates).collect();
                rows[0].push("FIT OVER x REQUESTS/S".into());
            }
            let means = column.mean_by_rate.values().map(|mean| short(*mean));
            let mut row: Vec<String> = std::iter::once(name.clone()).chain(means).collect();
            row.push(column.fit.map_or_else(
                || "needs three rates".into(),
                |[c0, c1, c2]| format!("{c0:.6e} {c1:+.6e} x {c2:+.6e} x²"),
            ));
            rows.push(row);
        }
        text += &format!("{column}\n{}\n", aligned(&rows));
    }
    text
}
