//! The analysis of the sidecar debate, for any folder of CSV files in its format.
//!
//! A folder is a sequence. Its files are named `RATE-RUN-metrics.csv` and have one sample per line.
//! For each column and run, samples below the mean are dropped, because an idle cluster at the
//! start or end of a run shows nothing about load. Then samples more than one standard deviation
//! away from the mean of the rest are dropped. The average of a rate is the mean of its runs'
//! means, and a parabola is fitted over the rates.

mod analysis;
mod plot;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::statistics::{deviation, mean, quadratic};

pub use analysis::{Analysis, Column, RunMean, Sequence};
pub use read::{Rate, SampleRun, read};

/// Rounding error of sums of a few hundred samples, relative to their size. Values that differ by
/// less count as equal.
const ROUNDING: f64 = 1e-12;

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
pub fn columns(runs: &[SampleRun]) -> BTreeMap<String, Column> {
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

/// Filters the samples of one run. The result is only empty if `samples` is.
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
