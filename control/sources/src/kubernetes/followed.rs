//! The state of the watches of a cluster, for metrics and for the control plane's reports.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leno_program::Family;

use super::WATCHED;

/// The state of the watches of a cluster. The source writes it. `/metrics`, the description for operators and the
/// report of the replica read it.
#[derive(Debug)]
pub struct WatchStates {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    kinds: [KindProgress; WATCHED.len()],
    /// Since when the API server has not answered requests other than those of watches; `None` while it answers.
    silent_since: Option<Instant>,
    /// How many updates were sent, and the sum of the waits of each update's oldest event.
    updates: u64,
    waited: Duration,
}

#[derive(Clone, Debug)]
struct KindProgress {
    objects: usize,
    lists: u64,
    failures: u64,
    refused: u64,
    /// Whether a watch has ever succeeded.
    once: bool,
    /// Since when the watch has been failing.
    failing_since: Option<Instant>,
    /// The error of the last failed attempt.
    reason: String,
}

/// A kind whose objects cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfollowedKind {
    /// The kind, as Kubernetes writes it.
    pub kind: &'static str,
    /// How long its watch has been failing.
    pub time: Duration,
    /// The error of the last attempt, such as the API server's answer.
    pub reason: String,
}

/// Most characters of an error that are kept, because the API server may answer with any text.
const MAX_REASON: usize = 300;

/// A metric with one value per kind: its name, type and help text, and a function that gets the value.
type Series = (&'static str, &'static str, &'static str, fn(&KindProgress) -> u64);

impl Default for WatchStates {
    /// The initial state. No kind is watched yet, and all count as failing from now on.
    fn default() -> Self {
        let kind = KindProgress {
            objects: 0,
            lists: 0,
            failures: 0,
            refused: 0,
            once: false,
            failing_since: Some(Instant::now()),
            reason: String::new(),
        };
        let kinds = std::array::from_fn(|_| kind.clone());
        let state = State { kinds, silent_since: None, updates: 0, waited: Duration::ZERO };
        Self { state: Mutex::new(state) }
    }
}

impl WatchStates {
    /// For how long the objects may have changed unnoticed: since the first of the failing watches failed, or
    /// since the API server stopped answering. `None` while all watches work.
    #[must_use]
    pub fn stale(&self) -> Option<Duration> {
        let state = self.state();
        let failing = state.kinds.iter().filter_map(|kind| kind.failing_since);
        failing.chain(state.silent_since).min().map(|since| since.elapsed())
    }

    /// Records whether the API server answered a request other than the watches. The watches do not show this: for
    /// minutes, the watch of a server that has stopped answering looks like one without events.
    pub fn answered(&self, answered: bool) {
        let mut state = self.state();
        if answered {
            state.silent_since = None;
        } else {
            state.silent_since.get_or_insert_with(Instant::now);
        }
    }

    /// The kinds whose last list or watch has failed. Kinds that were not tried yet are not included.
    #[must_use]
    pub fn unfollowed(&self) -> Vec<UnfollowedKind> {
        let state = self.state();
        let kinds = WATCHED.iter().zip(&state.kinds);
        let failed = kinds.filter(|(_, kind)| !kind.reason.is_empty());
        let unfollowed = failed.filter_map(|(watched, kind)| {
            let time = kind.failing_since?.elapsed();
            Some(UnfollowedKind { kind: watched.as_str(), time, reason: kind.reason.clone() })
        });
        unfollowed.collect()
    }

    /// Whether the first list of some kind has neither succeeded nor failed yet.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        let untried = |kind: &KindProgress| kind.failing_since.is_some() && kind.reason.is_empty();
        self.state().kinds.iter().any(untried)
    }

    /// Appends one line of text per kind: how many objects are watched, or why the watch fails.
    pub fn describe(&self, text: &mut String) {
        let state = self.state();
        for (watched, kind) in WATCHED.iter().zip(&state.kinds) {
            let (name, objects) = (watched.as_str(), kind.objects);
            // Writing to a String cannot fail.
            let _ = match kind.failing_since {
                None => writeln!(text, "{name}: followed, {objects} objects"),
                Some(since) => writeln!(
                    text,
                    "{name}: not followed for {} s, {objects} objects of before: {}",
                    since.elapsed().as_secs(),
                    kind.reason
                ),
            };
        }
    }

    /// Appends all metrics in Prometheus text format.
    pub fn render(&self, text: &mut String) {
        let stale = self.stale().unwrap_or_default().as_secs_f64();
        let state = self.state();
        let of_kinds: [Series; 5] = [
            ("objects", "gauge", "Objects read from the cluster.", |kind| kind.objects as u64),
            ("lists_total", "counter", "Times that all objects were listed.", |kind| kind.lists),
            ("watch_failures_total", "counter", "Failed reads and watches.", |kind| kind.failures),
            ("refused_total", "counter", "Objects rejected as invalid.", |kind| kind.refused),
            ("unfollowed", "gauge", "Whether the watch of a kind is failing now.", |kind| {
                kind.failing_since.is_some().into()
            }),
        ];
        for (name, form, help, value) in of_kinds {
            let name = format!("leno_control_cluster_{name}");
            let mut family = Family::new(text, (&name, form, help));
            for (watched, kind) in WATCHED.iter().zip(&state.kinds) {
                family.sample(&[("kind", watched.as_str())], value(kind));
            }
        }
        let help = "Greatest age that the control plane's view of the cluster may have.";
        Family::gauge(text, "leno_control_cluster_stale_seconds", help)
            .sample(&[], format_args!("{stale:.3}"));
        let help = "Time from an event of a watch to the update that contains it.";
        let mut lag = Family::new(text, ("leno_control_cluster_lag_seconds", "summary", help));
        lag.part("_sum", &[], format_args!("{:.6}", state.waited.as_secs_f64()));
        lag.part("_count", &[], state.updates);
    }

    pub(super) fn name(&self, nth: usize) -> &'static str {
        WATCHED[nth].as_str()
    }

    pub(super) fn page(&self, nth: usize) -> u32 {
        WATCHED[nth].page()
    }

    /// Records a failure. Returns whether it is the first one since the start or since the last success.
    pub(super) fn failed(&self, nth: usize, error: &dyn std::error::Error) -> bool {
        let reason = chain(error);
        let kind = &mut self.state().kinds[nth];
        kind.reason = reason;
        kind.failures += 1;
        let first = kind.failing_since.is_none() || kind.failures == 1;
        kind.failing_since.get_or_insert_with(Instant::now);
        first
    }

    /// Records that a watch works. Returns whether it had failed after having worked before.
    pub(super) fn reached(&self, nth: usize) -> bool {
        let kind = &mut self.state().kinds[nth];
        let again = std::mem::replace(&mut kind.once, true);
        kind.failing_since.take().is_some() && again
    }

    /// Whether a kind was ever listed completely.
    pub(super) fn has_listed(&self, nth: usize) -> bool {
        self.state().kinds[nth].lists > 0
    }

    pub(super) fn listed(&self, nth: usize) {
        self.state().kinds[nth].lists += 1;
    }

    pub(super) fn refused(&self, nth: usize) {
        self.state().kinds[nth].refused += 1;
    }

    pub(super) fn hold(&self, nth: usize, objects: usize) {
        self.state().kinds[nth].objects = objects;
    }

    pub(super) fn told(&self, waited: Duration) {
        let mut state = self.state();
        state.updates += 1;
        state.waited += waited;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Poisoning is ignored, because the state consists of plain numbers and texts.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error and its causes on one line, cut to [`MAX_REASON`] characters.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = leno_program::chain(error);
    let cut = text.char_indices().nth(MAX_REASON).map(|(at, _)| at);
    text.truncate(cut.unwrap_or(text.len()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken() -> std::io::Error {
        std::io::Error::other("conversion webhook failed")
    }

    #[test]
    fn what_is_known_is_stale_while_any_kind_is_not_followed_or_the_server_is_silent() {
        let followed = WatchStates::default();
        assert!(followed.stale().is_some(), "nothing was read yet");
        assert_eq!(followed.unfollowed(), [], "nothing has failed yet");
        assert!(followed.is_starting());
        for nth in 0..WATCHED.len() {
            followed.listed(nth);
            assert!(!followed.reached(nth), "the first time is no return");
        }
        assert_eq!(followed.stale(), None);
        assert!(followed.failed(3, &broken()), "the first failure is news");
        assert!(!followed.failed(3, &broken()), "the next one is not");
        let mut text = String::new();
        followed.describe(&mut text);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Namespace: followed, 0 objects");
        assert!(lines[3].starts_with("Pod: not followed for 0 s"), "{text}");
        assert!(lines[3].ends_with("conversion webhook failed"), "{text}");
        let unfollowed = followed.unfollowed();
        assert_eq!(unfollowed.len(), 1);
        assert_eq!(
            (unfollowed[0].kind, &*unfollowed[0].reason),
            ("Pod", "conversion webhook failed")
        );
        assert!(followed.stale().is_some());
        assert!(!followed.is_starting(), "a kind that failed has been tried");
        assert!(followed.reached(3), "it is followed again");
        assert_eq!(followed.unfollowed(), []);
        assert_eq!(followed.stale(), None);
        followed.answered(false);
        assert!(followed.stale().is_some());
        followed.answered(true);
        assert_eq!(followed.stale(), None);
    }

    #[test]
    fn every_number_has_its_kind() {
        let followed = WatchStates::default();
        followed.hold(1, 7);
        followed.refused(4);
        followed.told(Duration::from_millis(20));
        let mut text = String::new();
        followed.render(&mut text);
        for line in [
            "leno_control_cluster_objects{kind=\"Service\"} 7\n",
            "leno_control_cluster_refused_total{kind=\"HTTPRoute\"} 1\n",
            "leno_control_cluster_lag_seconds_sum 0.020000\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
