//! The figures of a record, which a file defines. Tables, charts and claims use them as medians over rounds.

use std::sync::LazyLock;

use anyhow::{Result, anyhow};
use serde::Deserialize;
use serde_json::Value;

use crate::record::Record;
use crate::statistics::median;

/// The file of the figures, built into this program.
static FIGURES: LazyLock<Vec<Figure>> = LazyLock::new(|| {
    let all = serde_saphyr::from_str(include_str!("../data/figures.yaml"));
    all.expect("a test reads the built-in file")
});

/// A figure that records may have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Figure {
    pub(crate) name: String,
    /// The heading of the figure in tables, and the number of its digits after the decimal point.
    pub(crate) heading: String,
    pub(crate) digits: usize,
    pub(crate) unit: String,
    /// Whether the figure is a column of the second table of a scenario.
    #[serde(default)]
    column: bool,
    /// The fields whose sum is the figure.
    of: Fields,
    /// A factor for that sum.
    times: Option<f64>,
    /// The fields by whose product the result is divided.
    #[serde(default)]
    per: Vec<String>,
    /// If the figure has this value in every round, it was not measured.
    uncounted: Option<f64>,
}

/// Paths of fields in a record.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Fields {
    One(String),
    Sum(Vec<String>),
}

/// Finds a figure by a name from a file.
pub(crate) fn find(name: &str) -> Result<&'static Figure> {
    FIGURES
        .iter()
        .find(|one| one.name == name)
        .ok_or_else(|| anyhow!("there is no figure {name:?}"))
}

/// Finds a figure by a name in this program's code. Such a figure always exists.
pub(crate) fn named(name: &str) -> &'static Figure {
    find(name).expect("tests make every table and chart")
}

/// The columns of the second table of a scenario.
pub(crate) fn second() -> impl Iterator<Item = &'static Figure> {
    FIGURES.iter().filter(|one| one.column)
}

impl Figure {
    /// The median over rounds; `None` if it was measured in none of them. A round in which the figure is 0 counts like
    /// any other.
    pub(crate) fn median<'r>(&self, rounds: impl IntoIterator<Item = &'r Record>) -> Option<f64> {
        let values: Vec<f64> = rounds.into_iter().filter_map(|round| self.value(round)).collect();
        let is_measured = values.iter().any(|value| Some(*value) != self.uncounted);
        is_measured.then(|| median(&values))
    }

    fn value(&self, record: &Record) -> Option<f64> {
        let fields = serde_json::to_value(record).expect("a record has only text keys");
        let sum = match &self.of {
            Fields::One(path) => number(&fields, path)?,
            Fields::Sum(paths) => {
                paths.iter().map(|path| number(&fields, path)).sum::<Option<_>>()?
            }
        };
        let each = self.per.iter().map(|path| number(&fields, path)).product::<Option<f64>>()?;
        (each > 0.0).then(|| sum * self.times.unwrap_or(1.0) / each)
    }
}

/// Reads the number at a path such as `rss_kib.idle`. If an object is at this path, returns its largest number.
fn number(fields: &Value, path: &str) -> Option<f64> {
    match fields.pointer(&format!("/{}", path.replace('.', "/")))? {
        Value::Object(all) => all.values().filter_map(Value::as_f64).reduce(f64::max),
        one => one.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_zero_counts_and_a_figure_that_is_zero_in_all_was_not_measured() {
        let median = |name, all: &[u64]| {
            let one = |revisions: &u64| Record { revisions: *revisions, ..Record::default() };
            named(name).median(&all.iter().map(one).collect::<Vec<_>>())
        };
        assert_eq!(median("revisions", &[0, 0, 9]), Some(0.0));
        assert_eq!(median("revisions", &[0, 8, 9]), Some(8.0));
        assert_eq!((median("revisions", &[0, 0]), median("revisions", &[])), (None, None));
        assert_eq!(median("rate", &[0]), Some(0.0), "nothing was answered");
    }

    #[test]
    fn every_figure_is_of_fields_that_records_have() {
        let latency = serde_json::json!({"mean": 1.0, "p50": 1, "p75": 1, "p90": 1, "p95": 1, "p99": 1,
            "p99_9": 1, "max": 1});
        let optional = serde_json::json!({"proxies": 2, "duration_s": 1.0, "requests": 1,
            "requests_per_s": 1.0, "alone_latency_us": latency, "charged_bytes": {"s0": 1},
            "websockets": {}, "idle_memory": {}, "start_up_ms": 1.0, "binary_bytes": 1,
            "neighbour_requests_per_s": 1.0, "revisions_arrived": 1});
        let record: Record = serde_json::from_value(optional).unwrap();
        let missing: Vec<_> = FIGURES.iter().filter(|one| one.value(&record).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
