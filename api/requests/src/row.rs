//! A row: a client, a server, and the counts of the requests between them.

use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::histogram::{BUCKETS, Histogram, place_of};
use crate::rows::Rows;

/// The number of classes of statuses: one for each of `1xx` to `5xx`, preceded by one for all other statuses.
pub const CLASSES: usize = 6;
/// The number of gRPC statuses that are counted separately. The last one stands for all statuses that gRPC does not
/// define.
pub const GRPC_STATUSES: usize = 18;
/// The largest size of the labels of a row, in bytes, including separators.
pub const LABEL_BYTES: usize = 512;

/// The number of cells of a row: the claim (see [`RequestCounts::claim`]), the length of the labels, the labels, and
/// the counters. The size is a whole kilobyte, so that rows do not share cache lines.
pub(crate) const ROW_CELLS: usize = 128;
pub(crate) const CLAIM: usize = 0;
const LABELS_LENGTH: usize = 1;
const LABELS: Range<usize> = 2..2 + LABEL_BYTES / 8;
const CLASS: usize = LABELS.end;
const GRPC: usize = CLASS + CLASSES;
const DURATION_SUM: usize = GRPC + GRPC_STATUSES;
const BUCKET: usize = DURATION_SUM + 1;
const _: () = assert!(BUCKET + BUCKETS <= ROW_CELLS);

/// The separator of labels, which no name contains.
const SEPARATOR: char = '\0';

/// The labels of a row. All texts are as in the labels of the proxy's own metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Labels<T> {
    /// `inbound` if the server's proxy counts, `outbound` if the client's proxy counts.
    pub direction: T,
    /// The client.
    pub client: T,
    /// The client's namespace.
    pub client_namespace: T,
    /// The server.
    pub server: T,
    /// The server's namespace.
    pub server_namespace: T,
    /// The service through which the client called.
    pub service: T,
    /// `true` if the connection between the proxies is mTLS, otherwise `false`.
    pub mtls: T,
}

impl<T: AsRef<str>> Labels<T> {
    /// All labels, in the order of the fields.
    pub fn all(&self) -> [&str; 7] {
        let Self { direction, client, client_namespace, server, server_namespace, service, mtls } =
            self;
        [direction, client, client_namespace, server, server_namespace, service, mtls]
            .map(AsRef::as_ref)
    }

    /// The labels in the form in which a row and the kernel's table store them. `None` if they are too long.
    #[must_use]
    pub fn to_text(&self) -> Option<String> {
        let text = self.all().join(&SEPARATOR.to_string());
        (text.len() <= LABEL_BYTES).then_some(text)
    }
}

impl<T: AsRef<str>> Labels<T> {
    /// The names of the labels, in the order of the fields.
    pub const NAMES: [&str; 7] = [
        "direction",
        "client",
        "client_namespace",
        "server",
        "server_namespace",
        "service",
        "mtls",
    ];

    /// The labels of the row that counts all edges (see [`Row`]) for which there is no row of their own. Only the
    /// direction and the encryption of these labels are kept.
    #[must_use]
    pub fn other(&self) -> Labels<String> {
        let other = || "other".to_owned();
        Labels {
            direction: self.direction.as_ref().to_owned(),
            client: other(),
            client_namespace: String::new(),
            server: other(),
            server_namespace: String::new(),
            service: other(),
            mtls: self.mtls.as_ref().to_owned(),
        }
    }
}

impl Labels<String> {
    /// Parses labels. `None` if the text is malformed: the memory may be that of another program.
    #[must_use]
    pub fn of_text(text: &str) -> Option<Self> {
        let mut parts = text.split(SEPARATOR).map(ToOwned::to_owned);
        let mut next = || parts.next();
        let labels = Self {
            direction: next()?,
            client: next()?,
            client_namespace: next()?,
            server: next()?,
            server_namespace: next()?,
            service: next()?,
            mtls: next()?,
        };
        let is_known = ["inbound", "outbound"].contains(&&*labels.direction)
            && ["true", "false"].contains(&&*labels.mtls);
        (next().is_none() && is_known).then_some(labels)
    }
}

/// The row in which a worker counts the requests of one edge: one client, one server, and how they are connected.
/// Dropping the value frees the row for another edge, unless the worker has ended.
#[derive(Debug)]
pub struct Row {
    rows: Rc<Rows>,
    number: usize,
}

impl Row {
    pub(crate) fn new(rows: Rc<Rows>, number: usize) -> Self {
        Self { rows, number }
    }

    /// Counts a request that was answered with this status after this duration.
    pub fn request(&self, status: u16, duration: Duration) {
        let cells = self.cells();
        let class = usize::from(status.checked_div(100).unwrap_or_default());
        let class = if class < CLASSES { class } else { 0 };
        add(cells, CLASS.saturating_add(class), 1);
        let (bucket, more) = place_of(duration);
        add(cells, DURATION_SUM, more);
        add(cells, BUCKET.saturating_add(bucket), 1);
    }

    /// Counts a gRPC call that ended with this `grpc-status`.
    pub fn grpc(&self, status: u8) {
        let place = usize::from(status).min(GRPC_STATUSES.saturating_sub(1));
        add(self.cells(), GRPC.saturating_add(place), 1);
    }

    /// The durations of the requests in this row.
    #[must_use]
    pub fn durations(&self) -> Histogram {
        durations(self.cells())
    }

    fn cells(&self) -> &[AtomicU64] {
        self.rows.cells_of(self.number)
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        self.rows.free(self.number);
    }
}

/// The counts of one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCounts {
    /// Identifies the use of the row: the number differs from that of every earlier or later use of any row of this
    /// memory.
    pub claim: u64,
    /// The labels, in the form that [`Labels::of_text`] reads.
    pub labels: String,
    /// Requests by the class of their status.
    pub classes: [u64; CLASSES],
    /// gRPC calls by their status; the last element counts all statuses that gRPC does not define.
    pub grpc: [u64; GRPC_STATUSES],
    /// The durations of the requests.
    pub durations: Histogram,
}

/// Adds to a cell by a load and a store, which suffices because there is only one writer.
fn add(cells: &[AtomicU64], place: usize, count: u64) {
    if let Some(cell) = cells.get(place) {
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }
}

fn numbers<const N: usize>(cells: &[AtomicU64], first: usize) -> [u64; N] {
    let mut all = [0; N];
    for (number, cell) in all.iter_mut().zip(cells.iter().skip(first)) {
        *number = cell.load(Ordering::Relaxed);
    }
    all
}

fn durations(cells: &[AtomicU64]) -> Histogram {
    let [sum_us] = numbers(cells, DURATION_SUM);
    Histogram { counts: numbers(cells, BUCKET), sum_us }
}

/// Writes labels into a row, and sets its counters to zero.
pub(crate) fn label(cells: &[AtomicU64], text: &str, claim: u64) {
    let mut bytes = [0; LABEL_BYTES];
    if let Some(part) = bytes.get_mut(..text.len()) {
        part.copy_from_slice(text.as_bytes());
    }
    let words = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
    let labels = [claim, text.len() as u64].into_iter().chain(words);
    for (cell, word) in cells.iter().zip(labels.chain(std::iter::repeat(0))) {
        cell.store(word, Ordering::Relaxed);
    }
}

/// Reads a row; `None` if it is free or malformed.
pub(crate) fn read(cells: &[AtomicU64]) -> Option<RequestCounts> {
    let [claim, length] = numbers(cells, CLAIM);
    if claim == 0 {
        return None;
    }
    let words: [u64; LABEL_BYTES / 8] = numbers(cells, LABELS.start);
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let text = bytes.get(..usize::try_from(length).ok()?)?;
    Some(RequestCounts {
        claim,
        labels: std::str::from_utf8(text).ok()?.to_owned(),
        classes: numbers(cells, CLASS),
        grpc: numbers(cells, GRPC),
        durations: durations(cells),
    })
}

const _: () = assert!(LABELS_LENGTH == CLAIM + 1 && LABELS.start == LABELS_LENGTH + 1);
