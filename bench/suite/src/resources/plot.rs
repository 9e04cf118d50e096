//! One column of several sequences over the rate, with the fitted parabolas.

use super::{Analysis, Column};
use crate::chart::{Axis, Chart, Scale, Series, colour};
use crate::error::{Error, Result};

/// Points of a drawn parabola.
const STEPS: u32 = 60;

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
            return Err(Error::Refused(reason));
        }
        let unit = if column.ends_with("CPU") { "nanocores" } else { "bytes" };
        Ok(Chart {
            title: format!("{column} by requests/s"),
            x: Axis::new("requests/s", Scale::Linear),
            y: Axis::new(&format!("{column}, {unit}"), Scale::Linear),
            series,
        })
    }
}

fn series(name: &str, nth: usize, column: &Column) -> Series {
    let points = column.runs.iter().map(|run| (run.rate as f64, run.mean)).collect();
    let rates = || column.mean_by_rate.keys().map(|rate| *rate as f64);
    let (low, high) = (rates().fold(f64::INFINITY, f64::min), rates().fold(0.0, f64::max));
    let curve = column.fit.map_or_else(
        || column.mean_by_rate.iter().map(|(rate, mean)| (*rate as f64, *mean)).collect(),
        |[c0, c1, c2]| {
            let at = |step| low + (high - low) * f64::from(step) / f64::from(STEPS);
            (0..=STEPS).map(at).map(|x| (x, c0 + c1 * x + c2 * x * x)).collect()
        },
    );
    Series { name: name.to_owned(), colour: colour(name, nth), points, curve }
}
