//! The rows of one memory: finds free rows, and reads all rows.

use std::cell::{Cell, RefCell};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::memory::WorkerMemory;
use crate::row::{Labels, ROW_CELLS, RequestCounts, Row, label, read};

/// How many rows a worker may have: one for each of its 256 edges, and for the edges named `other`.
pub const MAX_ROWS: usize = 264;

/// Cells of the memory. The header takes as many as one row.
pub(crate) const MEMORY_CELLS: usize = (MAX_ROWS + 1) * ROW_CELLS;

/// The header: the layout, the identity of the memory, the sequence lock of labels, and how many rows were ever used.
const LAYOUT: usize = 0;
const IDENTITY: usize = 1;
const SEQUENCE: usize = 2;
const USED: usize = 3;

/// The number of this layout: "leno" and a number, which increases with every change.
const THIS_LAYOUT: u64 = 0x6c65_6e6f_0000_0001;
/// How often a reader tries again while the writer changes labels, which takes less than a microsecond.
const TRIES: usize = 64;

/// The rows in which a worker counts.
#[derive(Debug)]
pub struct Rows {
    memory: WorkerMemory,
    /// How many rows were claimed at some time. The rows after them are free.
    begun: Cell<usize>,
    /// The rows that were claimed and are free again.
    free: RefCell<Vec<usize>>,
    /// The number of the last use of a row; see [`RequestCounts::claim`](crate::RequestCounts::claim).
    claims: Cell<u64>,
    /// Whether the worker has ended. Rows are then not freed any more.
    ended: Cell<bool>,
}

/// The rows of a worker that runs. When this is dropped the worker has ended, and its rows stay as they are: a reader may
/// not have read the last counts yet.
#[derive(Debug)]
pub struct WorkerRows(Rc<Rows>);

impl WorkerRows {
    /// Rows in this memory, which has none yet.
    #[must_use]
    pub fn new(memory: WorkerMemory) -> Self {
        Self(Rows::new(memory))
    }
}

impl Deref for WorkerRows {
    type Target = Rc<Rows>;

    fn deref(&self) -> &Rc<Rows> {
        &self.0
    }
}

impl Drop for WorkerRows {
    fn drop(&mut self) {
        self.0.ended.set(true);
    }
}

impl Rows {
    /// Creates the rows in new memory.
    #[must_use]
    pub fn new(memory: WorkerMemory) -> Rc<Self> {
        let identity = RandomState::new().hash_one(std::process::id()) | 1;
        for (place, value) in [(IDENTITY, identity), (LAYOUT, THIS_LAYOUT)] {
            if let Some(cell) = memory.cells().get(place) {
                cell.store(value, Ordering::Release);
            }
        }
        Rc::new(Self {
            memory,
            begun: Cell::new(0),
            free: RefCell::default(),
            claims: Cell::new(0),
            ended: Cell::new(false),
        })
    }

    /// The number of a free row, which is free no longer. `None` if all rows are taken.
    fn take(&self) -> Option<usize> {
        if let Some(number) = self.free.borrow_mut().pop() {
            return Some(number);
        }
        let number = self.begun.get();
        if number >= MAX_ROWS {
            return None;
        }
        self.begun.set(number.saturating_add(1));
        Some(number)
    }

    /// A row for these labels, with zero in its counters. If the labels are too long, the row has none, and other
    /// processes ignore it. `None` if all rows are taken.
    pub fn claim<T: AsRef<str>>(self: &Rc<Self>, labels: &Labels<T>) -> Option<Row> {
        let number = self.take()?;
        let claim = self.claims.get().saturating_add(1);
        self.claims.set(claim);
        let text = labels.to_text();
        self.change(|| {
            label(self.cells_of(number), text.as_deref().unwrap_or_default(), claim);
            let used = (number as u64).saturating_add(1);
            if let Some(cell) = self.memory.cells().get(USED)
                && cell.load(Ordering::Relaxed) < used
            {
                cell.store(used, Ordering::Relaxed);
            }
        });
        Some(Row::new(Rc::clone(self), number))
    }

    pub(crate) fn free(&self, number: usize) {
        if self.ended.get() {
            return;
        }
        self.change(|| label(self.cells_of(number), "", 0));
        self.free.borrow_mut().push(number);
    }

    pub(crate) fn cells_of(&self, number: usize) -> &[AtomicU64] {
        cells_of(&self.memory, number)
    }

    /// Changes labels so that a reader sees either the old or the new ones.
    fn change(&self, change: impl FnOnce()) {
        let Some(sequence) = self.memory.cells().get(SEQUENCE) else { return };
        let before = sequence.load(Ordering::Relaxed);
        sequence.store(before.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        sequence.store(before.wrapping_add(2), Ordering::Release);
    }
}

impl WorkerMemory {
    /// A number that identifies the memory of this worker; `None` if the memory has another layout, or is not
    /// initialised yet.
    #[must_use]
    pub fn identity(&self) -> Option<u64> {
        let cell = |place: usize| self.cells().get(place).map(|cell| cell.load(Ordering::Acquire));
        if cell(LAYOUT) != Some(THIS_LAYOUT) {
            return None;
        }
        cell(IDENTITY)
    }

    /// The counts of all rows; `None` if the writer changed labels during every attempt.
    #[must_use]
    pub fn read_rows(&self) -> Option<Vec<RequestCounts>> {
        let sequence = self.cells().get(SEQUENCE)?;
        for _ in 0..TRIES {
            let before = sequence.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let used = self.cells().get(USED)?.load(Ordering::Relaxed);
                let used = usize::try_from(used).map_or(MAX_ROWS, |used| used.min(MAX_ROWS));
                let rows = (0..used).filter_map(|number| read(cells_of(self, number))).collect();
                fence(Ordering::Acquire);
                if sequence.load(Ordering::Relaxed) == before {
                    return Some(rows);
                }
            }
            std::hint::spin_loop();
        }
        None
    }
}

fn cells_of(memory: &WorkerMemory, number: usize) -> &[AtomicU64] {
    let first = number.saturating_add(1).saturating_mul(ROW_CELLS);
    memory.cells().get(first..first.saturating_add(ROW_CELLS)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn labels(client: &str) -> Labels<&str> {
        Labels {
            direction: "outbound",
            client,
            client_namespace: "shop",
            server: "cart",
            server_namespace: "shop",
            service: "cart",
            mtls: "true",
        }
    }

    #[test]
    fn what_is_counted_is_read_under_its_labels() {
        let rows = Rows::new(WorkerMemory::private());
        let (web, other) = (rows.claim(&labels("web")).unwrap(), rows.claim(&labels("b")).unwrap());
        for status in [200, 204, 503, 999, 0] {
            web.request(status, Duration::from_micros(150));
        }
        for status in [0, 14, 99] {
            web.grpc(status);
        }
        other.request(404, Duration::from_secs(11));
        let read = rows.memory.read_rows().unwrap();
        assert_eq!(Labels::of_text(&read[0].labels).unwrap().all(), labels("web").all());
        assert_eq!(read[0].classes, [2, 0, 2, 0, 0, 1]);
        assert_eq!([read[0].grpc[0], read[0].grpc[14], read[0].grpc[17]], [1, 1, 1]);
        assert_eq!((read[0].durations.sum_us, read[0].durations.counts[1]), (750, 5));
        assert_eq!((read[1].classes[4], read[1].durations.counts[BUCKETS_LAST]), (1, 1));
        assert_eq!(web.durations(), read[0].durations);
    }

    /// Regression: what was counted after the last round of the aggregator was lost when a workload left its process.
    #[test]
    fn rows_of_a_worker_that_has_ended_stay_for_their_readers() {
        let rows = WorkerRows::new(WorkerMemory::private());
        let (row, read) = (rows.claim(&labels("web")).unwrap(), Rc::clone(&rows));
        row.request(200, Duration::from_micros(150));
        drop(rows);
        drop(row);
        assert_eq!(read.memory.read_rows().unwrap()[0].classes[2], 1);
    }

    const BUCKETS_LAST: usize = crate::BUCKETS - 1;

    #[test]
    fn a_row_that_is_freed_is_another_one_when_it_is_claimed_again() {
        let rows = Rows::new(WorkerMemory::private());
        let first = rows.claim(&labels("web")).unwrap();
        first.request(200, Duration::ZERO);
        drop(first);
        assert_eq!(rows.memory.read_rows().unwrap(), []);
        let _second = rows.claim(&labels("web")).unwrap();
        let read = rows.memory.read_rows().unwrap();
        assert_eq!((read.len(), read[0].claim, read[0].classes[2]), (1, 2, 0));
    }

    #[test]
    fn rows_are_bounded_and_labels_that_are_too_long_are_left_out() {
        let rows = Rows::new(WorkerMemory::private());
        let long = "x".repeat(crate::LABEL_BYTES);
        let all: Vec<Row> = (0..MAX_ROWS).filter_map(|_| rows.claim(&labels(&long))).collect();
        assert_eq!((all.len(), rows.claim(&labels("web")).is_none()), (MAX_ROWS, true));
        assert!(rows.memory.read_rows().unwrap().iter().all(|row| row.labels.is_empty()));
        drop(all);
        assert!(rows.claim(&labels("web")).is_some());
    }

    #[test]
    fn a_reader_sees_whole_labels_while_they_change() {
        let memory = WorkerMemory::shared().unwrap();
        let reader = std::sync::Arc::new(memory);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (memory, stop) = (&reader, &stop);
            scope.spawn(move || {
                let mut seen = 0;
                while !stop.load(Ordering::Relaxed) {
                    for row in memory.read_rows().unwrap_or_default() {
                        let labels = Labels::of_text(&row.labels).unwrap();
                        assert!(labels.client.chars().all(|c| labels.client.starts_with(c)));
                        seen += 1;
                    }
                }
                seen
            });
            // Writes to the same memory as a worker would.
            let sequence = &memory.cells()[SEQUENCE];
            memory.cells()[USED].store(1, Ordering::Relaxed);
            for claim in 1..20_000_u64 {
                let name = ["a", "bb", "ccc", "dddd"][(claim % 4) as usize].repeat(9);
                sequence.store(claim * 2 - 1, Ordering::Relaxed);
                fence(Ordering::Release);
                label(cells_of(memory, 0), &labels(&name).to_text().unwrap(), claim);
                sequence.store(claim * 2, Ordering::Release);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
