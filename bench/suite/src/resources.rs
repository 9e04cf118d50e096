//! The analysis of the sidecar debate, for any folder of CSV files of its shape.
//!
//! A folder is a sequence; its files are named `RATE-RUN-metrics.csv` and hold a sample a line.
//! For each column and run, samples under the mean are dropped (a cluster at rest at either end of
//! a run says nothing about load), then those more than one standard deviation from the mean of
//! what stays. A rate's average is the mean of its runs' means; a parabola is fitted over the rates.

mod plot;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::error::Result;
use crate::statistics::{deviation, mean, quadratic};

pub use read::{Run, read};

/// Rounding of sums of a few hundred samples, relative to their size: what differs by less is
/// equal.
const ROUNDING: f64 = 1e-12;

/// The outcome; with `-o json`, the output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// One a folder, in the order given.
    pub sequences: Vec<Sequence>,
}

/// One folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sequence {
    /// The folder's name.
    pub name: String,
    /// By the columns' names; those without any sample are left out.
    pub columns: BTreeMap<String, Column>,
}

/// One column of a sequence, in the file's own units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// By rate, then run.
    pub runs: Vec<RunMean>,
    /// The mean of a rate's runs, by requests/s.
    pub mean_by_rate: BTreeMap<Rate, f64>,
    /// `[c0, c1, c2]` of c0 + c1 x + c2 x² over requests/s; none below three rates.
    pub fit: Option<[f64; 3]>,
}

/// A rate as a key: requests a second, whole numbers as whole numbers.
pub type Rate = u64;

/// What is left of one column of one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RunMean {
    /// Requests a second.
    pub rate: Rate,
    /// The run's number.
    pub run: u32,
    /// Samples there were.
    pub samples: usize,
    /// Samples that stayed.
    pub kept: usize,
    /// Their mean.
    pub mean: f64,
}

/// Analyses folders.
///
/// # Errors
/// When a folder or a file cannot be read, or holds no run.
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

/// Every column of these runs.
#[must_use]
pub fn columns(runs: &[Run]) -> BTreeMap<String, Column> {
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

fn column(mut runs: Vec<RunMean>) -> Column {
    runs.sort_by_key(|one| (one.rate, one.run));
    let mut means: BTreeMap<Rate, Vec<f64>> = BTreeMap::new();
    for one in &runs {
        means.entry(one.rate).or_default().push(one.mean);
    }
    let mean_by_rate: BTreeMap<Rate, f64> =
        means.into_iter().map(|(rate, means)| (rate, mean(&means))).collect();
    let points: Vec<_> = mean_by_rate.iter().map(|(rate, mean)| (*rate as f64, *mean)).collect();
    Column { runs, mean_by_rate, fit: quadratic(&points) }
}

/// What stays of the samples of one run. Never nothing, unless there was nothing.
#[must_use]
pub fn filter(samples: &[f64]) -> Vec<f64> {
    let middle = mean(samples);
    let high = keep(samples, |sample| sample >= middle - slack(sample, middle));
    let (middle, limit) = (mean(&high), deviation(&high));
    keep(&high, |sample| (sample - middle).abs() <= limit + slack(sample, middle))
}

fn slack(sample: f64, middle: f64) -> f64 {
    ROUNDING * sample.abs().max(middle.abs())
}

/// Those that are wanted, or all when none is.
fn keep(samples: &[f64], wanted: impl Fn(f64) -> bool) -> Vec<f64> {
    let kept: Vec<f64> = samples.iter().copied().filter(|sample| wanted(*sample)).collect();
    if kept.is_empty() { samples.to_vec() } else { kept }
}
