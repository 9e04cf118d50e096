//! Prints the figures of a run in one table, beside those of an earlier run.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::text;
use crate::replica::Replica;

/// Figures, in the order in which they were measured.
pub(crate) struct Figures {
    rows: Vec<Row>,
    before: HashMap<String, String>,
    is_bounded: bool,
}

struct Row {
    name: String,
    value: String,
    bound: Option<Bound>,
}

/// The bound of a figure.
struct Bound {
    /// The bound in words.
    text: String,
    is_kept: bool,
    /// Whether the bound is checked on every machine and at every size, as bounds of counts and bytes are. Bounds
    /// of times and memory are only checked at the size that the design names.
    is_everywhere: bool,
}

impl Figures {
    /// `is_bounded` is whether bounds of time and memory are checked in this run.
    pub(crate) fn new(is_bounded: bool) -> Self {
        let before = text("LENO_SCALE_BEFORE").map(|path| std::fs::read_to_string(path).unwrap());
        let before = before.unwrap_or_default();
        let row =
            |line: &str| line.split_once('\t').map(|(name, value)| (name.into(), value.into()));
        Self { rows: Vec::new(), before: before.lines().filter_map(row).collect(), is_bounded }
    }

    pub(crate) fn count(&mut self, name: &str, number: u64, most: Option<u64>) {
        let bound = most.map(|most| Bound {
            text: most.to_string(),
            is_kept: number <= most,
            is_everywhere: true,
        });
        self.push(name, number.to_string(), bound);
    }

    /// Adds a time. `most` is its bound in milliseconds.
    pub(crate) fn time(&mut self, name: &str, time: Duration, most: Option<u64>) {
        let bound = most.map(|most| Bound {
            text: format!("{most} ms"),
            is_kept: time <= Duration::from_millis(most),
            is_everywhere: false,
        });
        self.push(name, format!("{:.3} ms", time.as_secs_f64() * 1e3), bound);
    }

    /// Adds the median, the 99th percentile and the longest of several times. The bound applies to the 99th percentile
    /// and, for fewer than 1,000 times, also to the longest.
    pub(crate) fn times(&mut self, name: &str, mut times: Vec<Duration>, most: Option<u64>) {
        const FEW: usize = 1_000;
        times.sort();
        let at =
            |share: f64| times.get(((times.len().max(1) - 1) as f64 * share) as usize).copied();
        let few = times.len() < FEW;
        for (what, share, bound) in
            [("p50", 0.5, None), ("p99", 0.99, most), ("worst", 1.0, most.filter(|_| few))]
        {
            self.time(&format!("{name}, {what}"), at(share).unwrap_or_default(), bound);
        }
    }

    /// Adds the replica's resident memory. `most` is its bound in MB.
    pub(crate) fn memory(&mut self, name: &str, replica: &Replica, most: Option<u64>) {
        self.kib(name, replica.status_kib("VmRSS"), most);
    }

    /// Adds the peak of the replica's resident memory. `most` is its bound in MB.
    pub(crate) fn memory_peak(&mut self, name: &str, replica: &Replica, most: Option<u64>) {
        self.kib(name, replica.status_kib("VmHWM"), most);
    }

    fn kib(&mut self, name: &str, kib: u64, most: Option<u64>) {
        let megabytes = kib * 1_024 / 1_000_000;
        let bound = most.map(|most| Bound {
            text: format!("{most} MB"),
            is_kept: megabytes <= most,
            is_everywhere: false,
        });
        self.push(name, format!("{megabytes} MB"), bound);
    }

    fn push(&mut self, name: &str, value: String, bound: Option<Bound>) {
        println!("{name}: {value}");
        self.rows.push(Row { name: name.to_owned(), value, bound });
    }

    /// Prints the table, and writes the record if a variable requests it.
    pub(crate) fn print(&self) {
        let mut table = "| figure | bound | before | now |\n|---|---|---|---|\n".to_owned();
        let mut record = String::new();
        for row in &self.rows {
            let Row { name, value, bound } = row;
            let before = self.before.get(name).map_or("", String::as_str);
            let bound = bound.as_ref().map_or("", |bound| &*bound.text);
            let missed = if self.is_missed(row) { " (missed)" } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(table, "| {name} | {bound} | {before} | {value}{missed} |");
            let _ = writeln!(record, "{name}\t{value}");
        }
        println!("{table}");
        if let Some(path) = text("LENO_SCALE_RECORD") {
            std::fs::write(path, record).unwrap();
        }
    }

    /// The figures that exceed a bound that is checked in this run.
    pub(crate) fn missed(&self) -> Vec<&str> {
        self.rows.iter().filter(|row| self.is_missed(row)).map(|row| &*row.name).collect()
    }

    fn is_missed(&self, row: &Row) -> bool {
        let holds = |bound: &&Bound| bound.is_everywhere || self.is_bounded;
        row.bound.as_ref().filter(holds).is_some_and(|bound| !bound.is_kept)
    }
}
