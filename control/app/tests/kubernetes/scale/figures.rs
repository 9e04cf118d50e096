//! The figures of a run, as one table, beside those of an earlier run.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::text;
use crate::replica::Replica;

/// Figures in the order in which they were taken.
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

/// What a figure is bounded by.
struct Bound {
    /// In words.
    text: String,
    is_kept: bool,
    /// Whether it holds on any machine and at any size, as those of counts and of bytes do. Those of times and of memory
    /// hold at the size that the design names alone.
    is_everywhere: bool,
}

impl Figures {
    /// `is_bounded`: whether bounds of time and memory hold in this run.
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

    /// `most` is in milliseconds.
    pub(crate) fn time(&mut self, name: &str, time: Duration, most: Option<u64>) {
        let bound = most.map(|most| Bound {
            text: format!("{most} ms"),
            is_kept: time <= Duration::from_millis(most),
            is_everywhere: false,
        });
        self.push(name, format!("{:.3} ms", time.as_secs_f64() * 1e3), bound);
    }

    /// The bound is one of the 99th of 100; for fewer than 1,000 times of the worst one.
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

    /// `most` is in MB.
    pub(crate) fn memory(&mut self, name: &str, replica: &Replica, most: Option<u64>) {
        self.kib(name, replica.status_kib("VmRSS"), most);
    }

    /// The most that was resident at any time.
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

    /// Prints the table, and writes the record if one was asked for.
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

    /// The figures that miss their bounds, of those that hold in this run.
    pub(crate) fn missed(&self) -> Vec<&str> {
        self.rows.iter().filter(|row| self.is_missed(row)).map(|row| &*row.name).collect()
    }

    fn is_missed(&self, row: &Row) -> bool {
        let holds = |bound: &&Bound| bound.is_everywhere || self.is_bounded;
        row.bound.as_ref().filter(holds).is_some_and(|bound| !bound.is_kept)
    }
}
