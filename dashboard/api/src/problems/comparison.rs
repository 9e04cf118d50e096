//! Compares the last moments of a window with the time before.

use std::collections::BTreeMap;

use leno_observe::stat::NamespacedName;

use crate::history::Window;
use crate::query::{EdgeTally, edges};
use crate::series::SeriesKey;
use crate::tally::{Tally, float};
use crate::view::HistoryView;

/// The length of the last moments, in milliseconds.
const RECENT_MS: u64 = 20_000;
/// How far back the time before reaches, in milliseconds.
const USUAL_MS: u64 = 60 * 60_000;
/// Most frames that are read for the time before. In a large mesh, reading a frame takes a millisecond.
const MAX_FRAMES: usize = 60;
/// The smallest number of requests in the last moments, and in the time before, for a comparison. The 90th
/// percentile needs `MIN_USUAL` in both.
const MIN_RECENT: u64 = 5;
const MIN_USUAL: u64 = 20;
/// Requests are slow if they take this many times longer than usual.
const SLOWER: f64 = 3.0;
/// By how many milliseconds requests must at least be longer: for the median, and for the 90th percentile.
const LONGER_MS: [f64; 2] = [100.0, 250.0];
/// The smallest number of edges in the mesh for a comparison with other edges. If three quarters of them are
/// slower than usual, the machine is the reason.
const MIN_COMMON: usize = 8;
/// The smallest share of 4xx responses now, and their largest share before, for a change to be reported.
const REJECTED: f64 = 0.5;
const USUALLY_REJECTED: f64 = 0.05;

/// The names of a client and a server.
type EdgeNames = (NamespacedName, NamespacedName);

/// The last moments of a window, and the time before.
pub(super) struct ComparedWindow {
    recent: BTreeMap<EdgeNames, EdgeTally>,
    usual: BTreeMap<EdgeNames, EdgeTally>,
    /// The counts of each server's proxies in the last moments.
    served: BTreeMap<NamespacedName, Tally>,
    /// How many times longer than usual requests take on at least three quarters of the edges. It is 1 if there
    /// are fewer than [`MIN_COMMON`] edges, or if requests are not slower.
    common: f64,
}

/// An edge whose requests take longer than usual.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SlowRequests {
    /// The compared duration now and before, in milliseconds: the median or the 90th percentile.
    pub(super) now_ms: f64,
    pub(super) usual_ms: f64,
    /// Which duration was compared: 2 for the median, 10 for the 90th percentile. One of this many requests takes
    /// that long.
    pub(super) one_of: u64,
    /// The number of requests that were compared.
    pub(super) requests: u64,
    /// Whether the delay arises before the server's proxies, because these have seen less than half as many slow
    /// requests.
    pub(super) before_server: bool,
}

/// An edge whose requests now get 4xx responses, and usually did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RejectedRequests {
    pub(super) rejected: u64,
    pub(super) requests: u64,
}

impl SlowRequests {
    /// The number of requests whose duration was closer to the present duration than to the usual one.
    pub(super) fn count(self, tally: &Tally) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a duration of requests"
        )]
        let middle_ms = ((self.now_ms + self.usual_ms) / 2.0) as u64;
        tally.durations.above_ms(middle_ms).0
    }
}

impl ComparedWindow {
    pub(super) fn new(view: &HistoryView<'_>, window: &Window) -> Self {
        let names = view.names();
        let from_ms = window.end_ms.saturating_sub(RECENT_MS);
        let moments = view.window(from_ms, window.end_ms);
        let recent = edges(names, &moments);
        let served =
            moments.tallies.iter().filter_map(|(series, tally)| match names.subject(*series) {
                Some(SeriesKey::Workload(name)) => Some((name.clone(), tally.clone())),
                _ => None,
            });
        let frames: Vec<_> = view.between(from_ms.saturating_sub(USUAL_MS), from_ms).collect();
        let step = frames.len().div_ceil(MAX_FRAMES).max(1);
        let mut before = Window::default();
        for frame in frames.iter().rev().step_by(step) {
            frame.each(|series, tally| {
                before.tallies.entry(series).or_default().add(&tally);
            });
        }
        let (served, usual) = (served.collect(), edges(names, &before));
        let mut compared = Self { recent, usual, served, common: 1.0 };
        compared.common = compared.common();
        compared
    }

    /// The requests of an edge, if they take longer than usual, and if the delay is larger than on most other
    /// edges.
    pub(super) fn slow(&self, ends: &EdgeNames) -> Option<SlowRequests> {
        let (recent, usual) = self.both(ends)?;
        let quantile = |one_of: u64| {
            let q = 1.0 - 1.0 / float(one_of);
            Some((recent.durations.quantile_ms(q)?, usual.durations.quantile_ms(q)?))
        };
        let is_slow = |(now_ms, usual_ms): (f64, f64), longer_ms: f64| {
            now_ms >= SLOWER * self.common * usual_ms && now_ms >= usual_ms + longer_ms
        };
        let requests = recent.requests();
        for (one_of, longer_ms, least) in
            [(2, LONGER_MS[0], MIN_RECENT), (10, LONGER_MS[1], MIN_USUAL)]
        {
            if let Some(both) = quantile(one_of)
                && requests >= least
                && is_slow(both, longer_ms)
            {
                let (now_ms, usual_ms) = both;
                let mut slow =
                    SlowRequests { now_ms, usual_ms, one_of, requests, before_server: false };
                slow.before_server = self.is_before_server(&ends.1, slow, recent);
                return Some(slow);
            }
        }
        None
    }

    /// Whether slow requests lose their time before they reach the server's proxies.
    fn is_before_server(
        &self,
        server: &NamespacedName,
        slow: SlowRequests,
        recent: &Tally,
    ) -> bool {
        let Some(served) = self.served.get(server).filter(|served| served.requests() > 0) else {
            return false;
        };
        2 * slow.count(served) < slow.count(recent)
    }

    /// The requests of an edge, if many of them get 4xx responses now, and few did before.
    pub(super) fn rejected(&self, ends: &EdgeNames) -> Option<RejectedRequests> {
        let (recent, usual) = self.both(ends)?;
        let rejected = |tally: &Tally| tally.classes[3].saturating_sub(tally.given_up);
        let share = |tally: &Tally| float(rejected(tally)) / float(tally.requests());
        (share(recent) >= REJECTED && share(usual) <= USUALLY_REJECTED)
            .then(|| RejectedRequests { rejected: rejected(recent), requests: recent.requests() })
    }

    /// Whether the server of an edge with opaque connections has stopped answering: the client sends bytes, but the
    /// server does not.
    pub(super) fn is_unanswered(&self, ends: &EdgeNames) -> bool {
        let (Some(recent), Some(usual)) = (self.recent.get(ends), self.usual.get(ends)) else {
            return false;
        };
        let (recent, usual) = (&recent.sum, &usual.sum);
        let answered = usual.requests() == 0 && usual.written_bytes > 0 && usual.read_bytes > 0;
        answered && recent.read_bytes > 0 && recent.written_bytes == 0
    }

    /// The tallies of both times, if both have enough requests.
    fn both(&self, ends: &EdgeNames) -> Option<(&Tally, &Tally)> {
        let (recent, usual) = (&self.recent.get(ends)?.sum, &self.usual.get(ends)?.sum);
        (recent.requests() >= MIN_RECENT && usual.requests() >= MIN_USUAL)
            .then_some((recent, usual))
    }

    fn common(&self) -> f64 {
        let ratio = |ends: &EdgeNames| {
            let (recent, usual) = self.both(ends)?;
            Some(recent.durations.quantile_ms(0.5)? / usual.durations.quantile_ms(0.5)?.max(0.001))
        };
        let mut ratios: Vec<f64> = self.recent.keys().filter_map(ratio).collect();
        if ratios.len() < MIN_COMMON {
            return 1.0;
        }
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 4].max(1.0)
    }
}
