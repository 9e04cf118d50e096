//! The analysis of the published sidecar comparison, for any folder of CSV files in its format.
//!
//! A folder is a sequence. Its files are named `RATE-RUN-metrics.csv` and have one sample per line. For each column and
//! run, samples below the mean are dropped, because an idle cluster at the start or end of a run shows nothing about
//! load. Then samples more than one standard deviation away from the mean of the rest are dropped. The average of a
//! rate is the mean of its runs' means, and a parabola is fitted over the rates.

mod read;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::chart::{Chart, Scale, Series, as_preferred, colour};
use crate::statistics::{deviation, fitted, mean, quadratic};

pub use read::{Rate, SampleRun, read};

/// The rounding error of sums of a few hundred samples, relative to their size. Values whose difference is smaller
/// count as equal.
const ROUNDING: f64 = 1e-12;

/// The result of the analysis, and the output of `-o json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// One sequence per folder, in the given order.
    pub sequences: Vec<Sequence>,
}

/// The analysis of one folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sequence {
    /// The folder's name.
    pub name: String,
    /// The columns by name, without those that have no samples.
    pub columns: BTreeMap<String, SampleColumn>,
}

/// One column of a sequence, in the file's own units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampleColumn {
    /// The means of the runs, by rate and then by run.
    pub runs: Vec<RunMean>,
    /// The mean of a rate's runs, by rate in requests/s.
    pub mean_by_rate: BTreeMap<Rate, f64>,
    /// `[c0, c1, c2]` of c0 + c1 x + c2 x² over requests/s; `None` with fewer than three rates.
    pub fit: Option<[f64; 3]>,
}

/// The filtered samples of one column and run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunMean {
    /// Requests a second.
    pub rate: Rate,
    /// The number of the run.
    pub run: u32,
    /// The number of samples before filtering.
    pub samples: usize,
    /// The number of samples after filtering.
    pub kept: usize,
    /// The mean of the filtered samples.
    pub mean: f64,
}

/// Analyses folders.
pub fn analyse(folders: &[impl AsRef<Path>]) -> Result<Analysis> {
    let sequence = |folder: &_| {
        let folder: &Path = AsRef::as_ref(folder);
        let runs = read(folder)?;
        let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let name = absolute.file_name().map_or_else(|| "/".into(), |name| name.to_string_lossy());
        Ok(Sequence { name: name.into_owned(), columns: columns(&runs) })
    };
    Ok(Analysis { sequences: folders.iter().map(sequence).collect::<Result<_>>()? })
}

/// Analyses every column of these runs.
pub fn columns(runs: &[SampleRun]) -> BTreeMap<String, SampleColumn> {
    let mut found: BTreeMap<String, Vec<RunMean>> = BTreeMap::new();
    for run in runs {
        for (name, samples) in &run.columns {
            let kept = filter(samples);
            if kept.is_empty() {
                continue;
            }
            let (rate, number) = (run.rate, run.number);
            let (samples, count) = (samples.len(), kept.len());
            let one = RunMean { rate, run: number, samples, kept: count, mean: mean(&kept) };
            found.entry(name.clone()).or_default().push(one);
        }
    }
    found.into_iter().map(|(name, runs)| (name, column(runs))).collect()
}

fn column(mut runs: Vec<RunMean>) -> SampleColumn {
    runs.sort_by_key(|one| (one.rate, one.run));
    let mut means: BTreeMap<Rate, Vec<f64>> = BTreeMap::new();
    for one in &runs {
        means.entry(one.rate).or_default().push(one.mean);
    }
    let mean_by_rate: BTreeMap<Rate, f64> =
        means.into_iter().map(|(rate, means)| (rate, mean(&means))).collect();
    let points: Vec<_> = mean_by_rate.iter().map(|(rate, mean)| (*rate as f64, *mean)).collect();
    SampleColumn { runs, mean_by_rate, fit: quadratic(&points) }
}

/// Filters the samples of one run. The result is empty only if `samples` is empty.
pub fn filter(samples: &[f64]) -> Vec<f64> {
    let middle = mean(samples);
    let high = keep(samples, |sample| sample >= middle - slack(sample, middle));
    let (middle, limit) = (mean(&high), deviation(&high));
    keep(&high, |sample| (sample - middle).abs() <= limit + slack(sample, middle))
}

fn slack(sample: f64, middle: f64) -> f64 {
    ROUNDING * sample.abs().max(middle.abs())
}

/// The samples that satisfy `wanted`, or all samples if none does.
fn keep(samples: &[f64], wanted: impl Fn(f64) -> bool) -> Vec<f64> {
    let kept: Vec<f64> = samples.iter().copied().filter(|sample| wanted(*sample)).collect();
    if kept.is_empty() { samples.to_vec() } else { kept }
}

impl Analysis {
    /// The names of all columns, sorted.
    pub fn columns(&self) -> Vec<&str> {
        let all = self.sequences.iter().flat_map(|one| one.columns.keys());
        all.map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The chart of one column as SVG, without the sequences that lack it.
    ///
    /// # Errors
    /// If no sequence has such a column; the error lists the columns.
    pub fn plot(&self, column: &str) -> Result<String> {
        let series: Vec<Series> = self
            .sequences
            .iter()
            .enumerate()
            .filter_map(|(nth, one)| Some((nth, &one.name, one.columns.get(column)?)))
            .map(|(nth, name, column)| series(name, nth, column))
            .collect();
        let there = self.columns().join(", ");
        ensure!(!series.is_empty(), "there is no column {column:?}: use one of {there}");
        let unit = if column.ends_with("CPU") { "nanocores" } else { "bytes" };
        let chart = Chart {
            title: format!("{column} by requests/s"),
            x: "requests/s".into(),
            scale: Scale::Linear,
            y: format!("{column}, {unit}"),
            series,
        };
        Ok(as_preferred(&chart.svg()))
    }
}

fn series(name: &str, nth: usize, column: &SampleColumn) -> Series {
    let points = column.runs.iter().map(|run| (run.rate as f64, run.mean)).collect();
    let means: Vec<(f64, f64)> =
        column.mean_by_rate.iter().map(|(rate, mean)| (*rate as f64, *mean)).collect();
    let curve = fitted(&means);
    Series { name: name.to_owned(), colour: colour(name, nth), points, curve }
}
