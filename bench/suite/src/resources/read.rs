//! Reads the files of one sequence.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};

/// The suffix of the files' names.
const SUFFIX: &str = "-metrics.csv";
/// The column that is not a measurement.
const TIME: &str = "timestamp";

/// A rate as a key, in whole requests a second.
pub type Rate = u64;

/// One file: a run at a rate.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleRun {
    /// Requests a second.
    pub rate: Rate,
    /// The number of the run.
    pub number: u32,
    /// The samples of each column, without empty cells.
    pub columns: BTreeMap<String, Vec<f64>>,
}

/// Reads every `RATE-RUN-metrics.csv` of a folder and ignores other files.
pub fn read(folder: &Path) -> Result<Vec<SampleRun>> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read folder {}", folder.display()))?;
    let mut runs = Vec::new();
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read folder {}", folder.display()))?;
        if let Some((rate, number)) = entry.file_name().to_str().and_then(parse_name) {
            runs.push(SampleRun { rate, number, columns: table(&entry.path())? });
        }
    }
    if runs.is_empty() {
        return Err(anyhow!("{}: there is no file RATE-RUN-metrics.csv in it", folder.display()));
    }
    runs.sort_by_key(|run| (run.rate, run.number));
    Ok(runs)
}

/// Reads the rate and the run from a name: `600-5-metrics.csv` is 600 requests/s, run 5.
fn parse_name(name: &str) -> Option<(Rate, u32)> {
    let (rate, number) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    Some((rate.parse().ok()?, number.parse().ok()?))
}

fn table(path: &Path) -> Result<BTreeMap<String, Vec<f64>>> {
    let mut reader =
        csv::Reader::from_path(path).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    let names = reader.headers().map_err(|error| anyhow!("{}: {error}", path.display()))?.clone();
    let mut columns: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (line, row) in reader.records().enumerate() {
        let row = row.map_err(|error| anyhow!("{}: {error}", path.display()))?;
        for (name, cell) in names.iter().zip(&row) {
            let (name, cell) = (name.trim(), cell.trim());
            if name.eq_ignore_ascii_case(TIME) || cell.is_empty() {
                continue;
            }
            let sample: f64 =
                cell.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(
                    // The heading is line 1, so the first row is line 2.
                    || {
                        anyhow!(
                            "{}: line {}: {name}: {cell:?} is no number",
                            path.display(),
                            line + 2
                        )
                    },
                )?;
            columns.entry(name.to_owned()).or_default().push(sample);
        }
    }
    Ok(columns)
}
