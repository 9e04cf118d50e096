//! `leno bench prometheus`.

use anyhow::Result;
use clap::Args;
use leno_console::{OutputForm, block_on, print, print_json};
use leno_suite::prometheus::{self, Question};
use leno_suite::tabular::aligned;

/// Queries a Prometheus for what a mesh costs: p99 with and without it, and memory and CPU of sidecars
///
/// Each figure is one query; use the options if metrics have other names. A query that fails temporarily is retried
/// with increasing pauses. A metric that does not exist is reported by its name.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  leno bench prometheus http://localhost:9090 --window 10m --csv > mesh.csv"
)]
pub(crate) struct Prometheus {
    /// Address of the Prometheus, http://HOST:PORT
    url: String,

    #[command(flatten)]
    question: Question,

    /// Prints CSV instead of a table
    #[arg(long)]
    csv: bool,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

pub(super) fn run(args: &Prometheus) -> Result<bool> {
    let answer = block_on(async { prometheus::ask(&args.url, &args.question).await })?;
    match (args.csv, args.output) {
        (true, _) => print(&answer.csv())?,
        (false, OutputForm::Json) => print_json(&answer)?,
        (false, OutputForm::Table) => {
            let rows: Vec<Vec<String>> = answer
                .figures()
                .into_iter()
                .map(|(name, value)| vec![name.to_owned(), format!("{value:.6}")])
                .collect();
            print(&aligned(&rows))?;
        }
    }
    Ok(true)
}
