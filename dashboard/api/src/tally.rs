//! The counts of one workload or edge over some time, and their encoding in a frame.

use leno_observe::metrics::CumulativeHistogram;
use leno_observe::stat::PairCounts;
use leno_telemetry::BUCKET_BOUNDS_S;

use crate::bytes::{ByteReader, put};

/// The number of buckets in the duration histogram of proxies. The last bucket has no upper bound.
const BUCKETS: usize = BUCKET_BOUNDS_S.len() + 1;

/// Counts over some time, and the values of gauges at its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests by the class of their status, 1xx first.
    pub classes: [u64; 5],
    /// Requests that the client abandoned before a response began. They are included in the 4xx.
    pub given_up: u64,
    /// gRPC calls that failed according to their grpc-status, and that `classes` does not contain as 5xx.
    pub grpc_failed: u64,
    /// Requests by their duration.
    pub durations: Durations,
    /// Opaque connections opened.
    pub tcp_opened: u64,
    /// Opaque connections that are open at the end of the time.
    pub tcp_open: u64,
    /// Bytes of opaque connections from the client.
    pub read_bytes: u64,
    /// Bytes of opaque connections to the client.
    pub written_bytes: u64,
    /// Connections to the server that could not be established.
    pub connect_failures: u64,
    /// Retries of requests and of connections.
    pub retries: u64,
    /// Workers that eject an endpoint of the server at the end of the time.
    pub ejected: u64,
    /// Failures that the mesh itself caused: the number of each cause, and its count.
    pub causes: Vec<(u32, u64)>,
    /// The instances of a workload at the end of the time; `None` for an edge.
    pub instances: Option<Instances>,
}

/// The instances of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instances {
    /// The number of instances.
    pub all: u32,
    /// The number of instances that take traffic.
    pub ready: u32,
    /// Whether they have proxies.
    pub meshed: bool,
}

/// The number of requests in each bucket of durations, not cumulative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Durations([u64; BUCKETS]);

impl Default for Durations {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

/// The bits that say which fields a tally contains. The most frequent fields come first, so that the bits usually
/// take one byte.
mod field {
    pub(super) const GOOD: u64 = 1;
    pub(super) const REDIRECTED: u64 = 1 << 1;
    pub(super) const REFUSED: u64 = 1 << 2;
    pub(super) const FAILED: u64 = 1 << 3;
    pub(super) const DURATIONS: u64 = 1 << 4;
    pub(super) const TCP: u64 = 1 << 5;
    pub(super) const INSTANCES: u64 = 1 << 6;
    pub(super) const INFORMATIONAL: u64 = 1 << 7;
    pub(super) const UNCONNECTED: u64 = 1 << 8;
    pub(super) const RETRIES: u64 = 1 << 9;
    pub(super) const EJECTED: u64 = 1 << 10;
    pub(super) const CAUSES: u64 = 1 << 11;
    pub(super) const GIVEN_UP: u64 = 1 << 12;
    pub(super) const GRPC_FAILED: u64 = 1 << 13;
}

impl Durations {
    fn of(histogram: &CumulativeHistogram) -> Self {
        let mut counts = [0; BUCKETS];
        let mut below = 0;
        for (bound, cumulated) in histogram.cumulated() {
            // A proxy of another version may have other bounds. A count then goes to the bucket with the next
            // higher bound.
            let bucket = BUCKET_BOUNDS_S.partition_point(|own| *own < bound * 0.999_999);
            let cumulated = whole(cumulated);
            counts[bucket] += cumulated.saturating_sub(below);
            below = cumulated;
        }
        Self(counts)
    }

    /// The duration in milliseconds of the quantile `q`; `None` without requests.
    #[must_use]
    pub fn quantile_ms(&self, q: f64) -> Option<f64> {
        let mut histogram = CumulativeHistogram::default();
        let mut cumulated = 0;
        for (bound, count) in BUCKET_BOUNDS_S.iter().chain([&f64::INFINITY]).zip(&self.0) {
            cumulated += count;
            histogram.add(*bound, float(cumulated));
        }
        histogram.quantile(q).map(|seconds| seconds * 1000.0)
    }

    /// How many requests took longer than this time, as far as the buckets show. All requests in the bucket that
    /// contains the time count as longer. Also returns the limit that was applied, in milliseconds.
    #[must_use]
    pub fn above_ms(&self, ms: u64) -> (u64, f64) {
        let bound = float(ms) / 1000.0;
        let in_time = BUCKET_BOUNDS_S.partition_point(|own| *own <= bound * 1.000_001);
        let up_to = in_time.checked_sub(1).map_or(0.0, |last| BUCKET_BOUNDS_S[last]);
        (self.0[in_time..].iter().sum(), up_to * 1000.0)
    }

    fn add(&mut self, other: &Self) {
        for (own, more) in self.0.iter_mut().zip(&other.0) {
            *own += more;
        }
    }

    /// Appends the buckets from the first to the last one that is not 0.
    fn put(&self, bytes: &mut Vec<u8>) {
        let first = self.0.iter().position(|count| *count > 0).unwrap_or(0);
        let end = self.0.iter().rposition(|count| *count > 0).map_or(first, |last| last + 1);
        put(bytes, first as u64);
        put(bytes, (end - first) as u64);
        self.0[first..end].iter().for_each(|count| put(bytes, *count));
    }

    fn read(bytes: &mut ByteReader<'_>) -> Option<Self> {
        let (first, length) = (bytes.small()?, bytes.small()?);
        let mut durations = Self::default();
        for own in durations.0.get_mut(first..first.checked_add(length)?)? {
            *own = bytes.number()?;
        }
        Some(durations)
    }
}

impl Tally {
    /// A tally of the counts of a proxy; `cause` returns the number of a cause.
    #[must_use]
    pub fn of(counts: &PairCounts, mut cause: impl FnMut(&str) -> u32) -> Self {
        let causes = counts.causes.iter().map(|(name, count)| (cause(name), whole(*count)));
        Self {
            classes: counts.classes.map(whole),
            given_up: whole(counts.given_up),
            grpc_failed: whole(counts.failures() - counts.classes[4]),
            durations: Durations::of(&counts.durations),
            tcp_opened: whole(counts.tcp_opened),
            tcp_open: whole(counts.tcp_open),
            read_bytes: whole(counts.read_bytes),
            written_bytes: whole(counts.written_bytes),
            connect_failures: whole(counts.connect_failures),
            retries: whole(counts.retries),
            ejected: whole(counts.ejected),
            causes: causes.collect(),
            instances: None,
        }
    }

    /// The number of all requests.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.classes.iter().sum()
    }

    /// The number of failed requests: those with a status from 500, and those whose grpc-status is the server's
    /// failure.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.classes[4] + self.grpc_failed
    }

    /// The number of failures that the mesh itself caused.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.causes.iter().map(|(_, count)| count).sum()
    }

    /// Adds a later tally: sums the counts, and replaces the gauges.
    pub fn add(&mut self, later: &Self) {
        for (own, more) in self.classes.iter_mut().zip(&later.classes) {
            *own += more;
        }
        self.given_up += later.given_up;
        self.grpc_failed += later.grpc_failed;
        self.durations.add(&later.durations);
        self.tcp_opened += later.tcp_opened;
        self.read_bytes += later.read_bytes;
        self.written_bytes += later.written_bytes;
        self.connect_failures += later.connect_failures;
        self.retries += later.retries;
        self.gauges(later);
        for (cause, count) in &later.causes {
            match self.causes.iter_mut().find(|(own, _)| own == cause) {
                Some((_, own)) => *own += count,
                None => self.causes.push((*cause, *count)),
            }
        }
    }

    /// Adds a tally for the same time.
    pub(crate) fn join(&mut self, other: &Self) {
        let (open, ejected) = (self.tcp_open + other.tcp_open, self.ejected + other.ejected);
        self.add(other);
        (self.tcp_open, self.ejected) = (open, ejected);
    }

    fn gauges(&mut self, later: &Self) {
        self.tcp_open = later.tcp_open;
        self.ejected = later.ejected;
        self.instances = later.instances.or(self.instances);
    }

    /// Appends the tally to the bytes of a frame.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        let [informational, good, redirected, refused, failed] = self.classes;
        let tcp = [self.tcp_opened, self.tcp_open, self.read_bytes, self.written_bytes];
        let has = |field: u64, present: bool| if present { field } else { 0 };
        let fields = has(field::GOOD, good > 0)
            | has(field::REDIRECTED, redirected > 0)
            | has(field::REFUSED, refused > 0)
            | has(field::FAILED, failed > 0)
            | has(field::DURATIONS, self.durations != Durations::default())
            | has(field::TCP, tcp.iter().any(|count| *count > 0))
            | has(field::INSTANCES, self.instances.is_some())
            | has(field::INFORMATIONAL, informational > 0)
            | has(field::UNCONNECTED, self.connect_failures > 0)
            | has(field::RETRIES, self.retries > 0)
            | has(field::EJECTED, self.ejected > 0)
            | has(field::CAUSES, !self.causes.is_empty())
            | has(field::GIVEN_UP, self.given_up > 0)
            | has(field::GRPC_FAILED, self.grpc_failed > 0);
        put(bytes, fields);
        for count in [good, redirected, refused, failed].into_iter().filter(|count| *count > 0) {
            put(bytes, count);
        }
        if fields & field::DURATIONS > 0 {
            self.durations.put(bytes);
        }
        if fields & field::TCP > 0 {
            tcp.iter().for_each(|count| put(bytes, *count));
        }
        if let Some(instances) = self.instances {
            put(bytes, u64::from(instances.all));
            put(bytes, u64::from(instances.ready) << 1 | u64::from(instances.meshed));
        }
        let rare = [informational, self.connect_failures, self.retries, self.ejected];
        rare.into_iter().filter(|count| *count > 0).for_each(|count| put(bytes, count));
        if !self.causes.is_empty() {
            put(bytes, self.causes.len() as u64);
            for (cause, count) in &self.causes {
                put(bytes, u64::from(*cause));
                put(bytes, *count);
            }
        }
        let rare = [self.given_up, self.grpc_failed];
        rare.into_iter().filter(|count| *count > 0).for_each(|count| put(bytes, count));
    }

    /// Reads a tally that [`put`](Self::put) has written; `None` if the bytes are invalid.
    pub(crate) fn read(bytes: &mut ByteReader<'_>) -> Option<Self> {
        let fields = bytes.number()?;
        let count = |field: u64, bytes: &mut ByteReader<'_>| match fields & field {
            0 => Some(0),
            _ => bytes.number(),
        };
        let mut tally = Self::default();
        tally.classes[1] = count(field::GOOD, bytes)?;
        tally.classes[2] = count(field::REDIRECTED, bytes)?;
        tally.classes[3] = count(field::REFUSED, bytes)?;
        tally.classes[4] = count(field::FAILED, bytes)?;
        if fields & field::DURATIONS > 0 {
            tally.durations = Durations::read(bytes)?;
        }
        for own in [
            &mut tally.tcp_opened,
            &mut tally.tcp_open,
            &mut tally.read_bytes,
            &mut tally.written_bytes,
        ] {
            *own = count(field::TCP, bytes)?;
        }
        if fields & field::INSTANCES > 0 {
            let all = bytes.number()?.try_into().ok()?;
            let ready = bytes.number()?;
            let meshed = ready & 1 > 0;
            tally.instances = Some(Instances { all, ready: (ready >> 1).try_into().ok()?, meshed });
        }
        tally.classes[0] = count(field::INFORMATIONAL, bytes)?;
        tally.connect_failures = count(field::UNCONNECTED, bytes)?;
        tally.retries = count(field::RETRIES, bytes)?;
        tally.ejected = count(field::EJECTED, bytes)?;
        for _ in 0..count(field::CAUSES, bytes)? {
            tally.causes.push((bytes.number()?.try_into().ok()?, bytes.number()?));
        }
        tally.given_up = count(field::GIVEN_UP, bytes)?;
        tally.grpc_failed = count(field::GRPC_FAILED, bytes)?;
        Some(tally)
    }
}

/// A count of a proxy as an integer.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates, and NaN is 0"
)]
fn whole(count: f64) -> u64 {
    count.round() as u64
}

/// A count as a float, for a rate; above 2^53 it is rounded.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_in_the_bucket_of_the_bound_count_as_longer() {
        let mut durations = Durations::default();
        // The buckets up to 100 ms, 150 ms and 200 ms, and the bucket above 10 s.
        for (bucket, count) in [(18, 1), (19, 10), (20, 100), (BUCKETS - 1, 1000)] {
            durations.0[bucket] = count;
        }
        assert_eq!(durations.above_ms(200), (1000, 200.0));
        assert_eq!(durations.above_ms(199), (1100, 150.0));
        assert_eq!(durations.above_ms(100), (1110, 100.0));
        assert_eq!(durations.above_ms(60_000), (1000, 10_000.0));
        assert_eq!(durations.above_ms(0), (1111, 0.0));
    }

    fn full() -> Tally {
        let mut durations = Durations::default();
        durations.0[3] = 7;
        durations.0[31] = 1;
        Tally {
            classes: [1, 200, 3, 4, 500],
            given_up: 2,
            grpc_failed: 10,
            durations,
            tcp_opened: 1,
            tcp_open: 2,
            read_bytes: 1 << 40,
            written_bytes: 4,
            connect_failures: 5,
            retries: 6,
            ejected: 7,
            causes: vec![(0, 8), (300, 9)],
            instances: Some(Instances { all: 3, ready: 2, meshed: true }),
        }
    }

    #[test]
    fn every_field_survives_its_bytes() {
        for tally in [full(), Tally::default()] {
            let mut bytes = Vec::new();
            tally.put(&mut bytes);
            let mut reader = ByteReader::new(&bytes);
            assert_eq!(Tally::read(&mut reader), Some(tally));
            assert!(reader.is_empty());
            for cut in 0..bytes.len() {
                assert_eq!(Tally::read(&mut ByteReader::new(&bytes[..cut])), None, "{cut}");
            }
        }
    }

    #[test]
    fn counts_are_added_and_gauges_replaced() {
        let mut sum = full();
        sum.add(&full());
        assert_eq!(sum.classes, [2, 400, 6, 8, 1000]);
        assert_eq!((sum.tcp_open, sum.ejected, sum.retries), (2, 7, 12));
        assert_eq!(sum.causes, [(0, 16), (300, 18)]);
        sum.join(&full());
        assert_eq!((sum.tcp_open, sum.tcp_opened), (4, 3));
    }

    #[test]
    fn quantiles_are_those_of_the_proxies_buckets() {
        let mut histogram = CumulativeHistogram::default();
        for (bound, count) in [(0.001, 50.0), (0.002, 100.0), (f64::INFINITY, 100.0)] {
            histogram.add(bound, count);
        }
        let durations = Durations::of(&histogram);
        assert_eq!(durations.quantile_ms(0.5), Some(1.0));
        assert_eq!(Durations::default().quantile_ms(0.5), None);
    }
}
