//! The result of the analysis.

use std::collections::BTreeMap;

use serde::Serialize;

use super::read::Rate;

/// The result of the analysis, and the output of `-o json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// One per folder, in the given order.
    pub sequences: Vec<Sequence>,
}

/// One folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sequence {
    /// The folder's name.
    pub name: String,
    /// The columns by name, without those that have no samples.
    pub columns: BTreeMap<String, Column>,
}

/// One column of a sequence, in the file's own units.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
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
    /// Number of samples before filtering.
    pub samples: usize,
    /// Number of samples after filtering.
    pub kept: usize,
    /// The mean of the filtered samples.
    pub mean: f64,
}
