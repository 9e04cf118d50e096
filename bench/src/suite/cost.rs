//! `leno bench cost`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use leno_console::{OutputForm, note_text, print, print_json};
use leno_suite::tabular::{Column, aligned, rows};
use leno_suite::{cost, record};

use super::output::caveats;

/// Calculates what 100 sidecars cost per year, from the measured CPU and memory and a table of prices
///
/// The price of a sidecar is that of the larger of its two shares of a machine, CPU or memory. Savings are relative
/// to the most expensive mesh of the same scenario.
#[derive(Debug, Args)]
pub(crate) struct CostOptions {
    /// Directory with the records of a run
    #[arg(required_unless_present = "print_prices")]
    directory: Option<PathBuf>,

    /// File with a table of prices, instead of the built-in table
    #[arg(long, value_name = "FILE")]
    prices: Option<PathBuf>,

    /// Uses only this machine of the table
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,

    /// Prints the built-in table of prices, to edit and pass with --prices
    #[arg(long)]
    print_prices: bool,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

pub(super) fn run(args: &CostOptions) -> Result<bool> {
    if args.print_prices {
        return print(cost::PRICES).map(|()| true);
    }
    let directory = args.directory.as_ref().context("which run?")?;
    let mut prices = cost::prices(args.prices.as_deref())?;
    if let Some(machine) = &args.machine {
        let known: Vec<String> = prices.iter().map(|price| price.name.clone()).collect();
        prices.retain(|price| price.name == *machine);
        anyhow::ensure!(
            !prices.is_empty(),
            "{machine} is not in the table of prices: use one of {}",
            known.join(", ")
        );
    }
    let records = record::of_one_generator(&record::read(directory)?);
    let costs = cost::costs(&records, &prices);
    let uncounted = cost::uncounted(&records).into_iter().map(|line| format!("! {line}\n"));
    let said = caveats(&records) + &uncounted.collect::<String>();
    if args.output == OutputForm::Json {
        note_text!("{said}");
        return print_json(&costs).map(|()| true);
    }
    let columns: [Column<'_, cost::Cost>; 7] = [
        ("SCENARIO", &|cost| cost.scenario.clone()),
        ("MESH", &|cost| cost.mesh.clone()),
        ("MACHINE", &|cost| cost.machine.clone()),
        ("CPUS", &|cost| format!("{:.4}", cost.used.cpus)),
        ("MB", &|cost| format!("{:.1}", cost.used.rss_kib * 1024.0 / 1e6)),
        ("$ A YEAR, 100", &|cost| format!("{:.0}", cost.dollars_per_100_sidecars_year)),
        ("SAVED $", &|cost| format!("{:.0}", cost.saved_dollars)),
    ];
    print(&(said + &aligned(&rows(&costs, &columns)))).map(|()| true)
}
