//! Sums requests by pair, for metrics and for lists.

use std::collections::{BTreeMap, BTreeSet};

use leno_bpf_abi::flow::FlowRequests;
use leno_requests::{BUCKET_BOUNDS_S, CLASSES, GRPC_STATUSES, Histogram, Labels};
use serde::{Deserialize, Serialize};

use crate::metrics::{EBPF_DURATION, EBPF_GRPC, EBPF_REQUESTS, FamilyText};

/// Most pairs that have separate series. Each pair has about 25 series.
const MAX_PAIRS: usize = 500;
/// The page contains every third bound of the proxies' histograms: 0.1 ms, 0.3 ms, 1 ms and so on.
const BOUND_STEP: usize = 3;
/// The classes of statuses, by their index.
const CLASS_NAMES: [&str; CLASSES] = ["other", "1xx", "2xx", "3xx", "4xx", "5xx"];

/// The key by which requests are summed: the labels of the proxy's own metrics.
pub(crate) type PairOfRequests = Labels<String>;

/// The requests of a pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestSums {
    /// The number of requests by class of status: without a status, then 1xx to 5xx.
    pub classes: [u64; CLASSES],
    /// The number of gRPC calls by status. The last entry is for undefined statuses.
    pub grpc: [u64; GRPC_STATUSES],
    /// The durations of the requests.
    pub durations: Histogram,
}

/// A row of the list of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRow {
    /// `inbound` if the server's proxy has counted the requests, `outbound` if the client's has.
    pub direction: String,
    /// The client's namespace.
    pub client_namespace: String,
    /// The client's name.
    pub client: String,
    /// The server's namespace.
    pub server_namespace: String,
    /// The server's name.
    pub server: String,
    /// The service through which the client called.
    pub service: String,
    /// Whether the connection between the proxies is mTLS.
    pub mtls: bool,
    /// The number of all requests.
    pub requests: u64,
    /// The number of requests by class of status. Classes without requests are left out.
    pub classes: BTreeMap<String, u64>,
    /// The number of gRPC calls by status. Statuses without calls are left out.
    pub grpc: BTreeMap<String, u64>,
    /// The mean duration, in milliseconds.
    pub mean_ms: f64,
    /// The upper bound of the bucket that contains the median, in milliseconds; `None` if it is above 10 s.
    pub p50_ms: Option<f64>,
    /// As [`p50_ms`](Self::p50_ms), for the 99th percentile.
    pub p99_ms: Option<f64>,
}

impl RequestRow {
    pub(crate) fn new(of: &PairOfRequests, sums: &RequestSums) -> Self {
        let requests = sums.durations.count();
        let named = CLASS_NAMES.into_iter().map(ToOwned::to_owned).zip(sums.classes);
        Self {
            direction: of.direction.clone(),
            client_namespace: of.client_namespace.clone(),
            client: of.client.clone(),
            server_namespace: of.server_namespace.clone(),
            server: of.server.clone(),
            service: of.service.clone(),
            mtls: of.mtls == "true",
            requests,
            classes: named.filter(|(_, count)| *count > 0).collect(),
            grpc: grpc(&sums.grpc).collect(),
            mean_ms: sums.durations.sum_s() * 1e3 / requests.max(1) as f64,
            p50_ms: quantile_ms(&sums.durations, 0.5),
            p99_ms: quantile_ms(&sums.durations, 0.99),
        }
    }
}

pub(crate) fn quantile_ms(durations: &Histogram, share: f64) -> Option<f64> {
    let wanted = (durations.count() as f64 * share).ceil();
    let found = durations.cumulated().find(|(_, count)| *count as f64 >= wanted);
    found.map(|(bound, _)| bound * 1e3).filter(|ms| ms.is_finite())
}

fn grpc(counts: &[u64; GRPC_STATUSES]) -> impl Iterator<Item = (String, u64)> + '_ {
    let last = GRPC_STATUSES - 1;
    let name =
        move |status: usize| if status == last { "other".to_owned() } else { status.to_string() };
    let occurred = counts.iter().enumerate().filter(|(_, count)| **count > 0);
    occurred.map(move |(status, count)| (name(status), *count))
}

impl RequestSums {
    fn add(&mut self, row: &FlowRequests) {
        add_all(&mut self.classes, &row.classes);
        add_all(&mut self.grpc, &row.grpc);
        self.durations.add(&Histogram { counts: row.durations, sum_us: row.duration_us });
    }
}

pub(super) fn add_all(sums: &mut [u64], more: &[u64]) {
    for (sum, more) in sums.iter_mut().zip(more) {
        *sum = sum.wrapping_add(*more);
    }
}

/// The labels of a row; `None` if they are invalid.
pub(super) fn labels_of(row: &FlowRequests) -> Option<PairOfRequests> {
    // Labels end with `true` or `false`, so zero bytes at the end are padding.
    let length = row.labels.iter().rposition(|byte| *byte != 0)? + 1;
    Labels::of_text(std::str::from_utf8(&row.labels[..length]).ok()?)
}

/// The sums of rows by pair.
pub(crate) fn sums<'a>(
    rows: impl Iterator<Item = &'a FlowRequests>,
) -> BTreeMap<PairOfRequests, RequestSums> {
    let mut all: BTreeMap<PairOfRequests, RequestSums> = BTreeMap::new();
    for row in rows {
        if let Some(labels) = labels_of(row) {
            all.entry(labels).or_default().add(row);
        }
    }
    all
}

/// The pairs that have separate series, which are those that were seen first, and the sums of all pairs.
#[derive(Debug, Default)]
pub(crate) struct PublishedRequests {
    shown: BTreeSet<PairOfRequests>,
    sums: BTreeMap<PairOfRequests, RequestSums>,
    folded: u64,
}

impl PublishedRequests {
    /// Stores the present rows.
    pub(crate) fn take_in<'a>(&mut self, rows: impl Iterator<Item = &'a FlowRequests>) {
        let mut now: BTreeMap<PairOfRequests, RequestSums> = BTreeMap::new();
        self.folded = 0;
        for (pair, sums) in sums(rows) {
            let has_room = self.shown.len() < MAX_PAIRS || self.shown.contains(&pair);
            let pair = if has_room { pair } else { pair.other() };
            self.folded += u64::from(!has_room);
            self.shown.insert(pair.clone());
            let all = now.entry(pair).or_default();
            add_all(&mut all.classes, &sums.classes);
            add_all(&mut all.grpc, &sums.grpc);
            all.durations.add(&sums.durations);
        }
        self.sums = now;
    }

    /// How many pairs are counted under `other`.
    pub(crate) fn folded(&self) -> u64 {
        self.folded
    }
}

/// Adds the samples of one family.
pub(crate) fn add_family(
    page: &mut leno_program::Family<'_>,
    family: FamilyText,
    published: &PublishedRequests,
) {
    for (pair, sums) in &published.sums {
        let labels = labels(pair);
        let mut sample = |more: (&'static str, &str), count: u64| {
            page.sample(&[&labels[..], &[more]].concat(), count);
        };
        match family {
            EBPF_REQUESTS => {
                let named = CLASS_NAMES.into_iter().zip(sums.classes);
                named
                    .filter(|(_, count)| *count > 0)
                    .for_each(|(class, count)| sample(("class", class), count));
            }
            EBPF_GRPC => {
                grpc(&sums.grpc)
                    .for_each(|(status, count)| sample(("grpc_status", &status), count));
            }
            EBPF_DURATION => add_histogram(page, &labels, &sums.durations),
            _ => {}
        }
    }
}

/// Adds the series of one histogram, unless it is empty.
pub(crate) fn add_histogram(
    page: &mut leno_program::Family<'_>,
    labels: &[(&'static str, &str)],
    durations: &Histogram,
) {
    if durations.count() == 0 {
        return;
    }
    let all = durations.cumulated().enumerate();
    let last = BUCKET_BOUNDS_S.len();
    for (_, (bound, count)) in all.filter(|(nth, _)| nth.is_multiple_of(BOUND_STEP) || *nth == last)
    {
        let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
        page.part("_bucket", &[labels, &[("le", &bound)]].concat(), count);
    }
    page.part("_sum", labels, durations.sum_s());
    page.part("_count", labels, durations.count());
}

fn labels(pair: &PairOfRequests) -> [(&'static str, &str); 7] {
    let values = pair.all();
    std::array::from_fn(|nth| (PairOfRequests::NAMES[nth], values[nth]))
}
