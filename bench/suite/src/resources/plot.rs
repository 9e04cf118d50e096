//! One column of several sequences over the rate, with the fitted parabolas.

use anyhow::{Result, bail};

use super::analysis::{Analysis, Column};
use crate::chart::{Axis, Chart, Scale, Series, colour};
use crate::statistics::fitted;

impl Analysis {
    /// The chart of one column, without the sequences that lack it.
    ///
    /// # Errors
    /// If no sequence has such a column; the error lists the columns.
    pub fn chart(&self, column: &str) -> Result<Chart> {
        let series: Vec<Series> = self
            .sequences
            .iter()
            .enumerate()
            .filter_map(|(nth, one)| Some((nth, &one.name, one.columns.get(column)?)))
            .map(|(nth, name, column)| series(name, nth, column))
            .collect();
        if series.is_empty() {
            let mut there: Vec<&str> = self
                .sequences
                .iter()
                .flat_map(|one| one.columns.keys())
                .map(String::as_str)
                .collect();
            there.sort_unstable();
            there.dedup();
            let reason = format!("there is no column {column:?}; there are: {}", there.join(", "));
            bail!("{}", reason);
        }
        let unit = if column.ends_with("CPU") { "nanocores" } else { "bytes" };
        Ok(Chart {
            title: format!("{column} by requests/s"),
            x: Axis("requests/s".into(), Scale::Linear),
            y: Axis(format!("{column}, {unit}"), Scale::Linear),
            series,
        })
    }
}

fn series(name: &str, nth: usize, column: &Column) -> Series {
    let points = column.runs.iter().map(|run| (run.rate as f64, run.mean)).collect();
    let means: Vec<(f64, f64)> =
        column.mean_by_rate.iter().map(|(rate, mean)| (*rate as f64, *mean)).collect();
    let curve = fitted(&means);
    Series { name: name.to_owned(), colour: colour(name, nth), points, curve }
}
