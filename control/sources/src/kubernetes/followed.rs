//! How following a cluster goes, for metrics.

use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::WATCHED;

/// What is known of the watches of a cluster. The source writes it, `/metrics` reads it.
#[derive(Debug)]
pub struct Followed {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    kinds: [Kind; WATCHED.len()],
    /// Since when the API server does not answer requests beside the watches.
    silent_since: Option<Instant>,
    /// Updates told of, and the sum of how long their oldest events waited.
    updates: u64,
    waited: Duration,
}

#[derive(Clone, Debug)]
struct Kind {
    objects: usize,
    lists: u64,
    failures: u64,
    refused: u64,
    /// Whether it was followed at any time.
    once: bool,
    /// Since when it is not followed.
    failing_since: Option<Instant>,
    /// Why it was not followed when that was tried last.
    reason: String,
}

/// Most characters of a reason that are kept: the API server may answer with anything.
const MAX_REASON: usize = 300;

/// A series with a number for each kind: its name, form and help.
type Series = (&'static str, &'static str, &'static str, fn(&Kind) -> u64);

impl Default for Followed {
    /// Nothing is followed yet, since now.
    fn default() -> Self {
        let kind = Kind {
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

impl Followed {
    /// How long the objects may have changed without our knowing it: since the first of the watches
    /// that are down has failed, or the API server has fallen silent. None while all is followed.
    #[must_use]
    pub fn stale(&self) -> Option<Duration> {
        let state = self.state();
        let failing = state.kinds.iter().filter_map(|kind| kind.failing_since);
        failing.chain(state.silent_since).min().map(|since| since.elapsed())
    }

    /// Notes whether the API server answered a request beside the watches. A watch of a server that
    /// has fallen silent looks like one without news for minutes.
    pub fn answered(&self, answered: bool) {
        let mut state = self.state();
        if answered {
            state.silent_since = None;
        } else {
            state.silent_since.get_or_insert_with(Instant::now);
        }
    }

    /// Appends a line for each kind, for people: how many objects are followed, or why none are.
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

    /// Appends everything as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let stale = self.stale().unwrap_or_default().as_secs_f64();
        let state = self.state();
        let of_kinds: [Series; 5] = [
            ("objects", "gauge", "Objects followed.", |kind| kind.objects as u64),
            ("lists_total", "counter", "Times that all objects were read.", |kind| kind.lists),
            ("watch_failures_total", "counter", "Failed reads and watches.", |kind| kind.failures),
            ("refused_total", "counter", "Objects not understood.", |kind| kind.refused),
            ("unfollowed", "gauge", "Whether a kind cannot be followed now.", |kind| {
                kind.failing_since.is_some().into()
            }),
        ];
        // Writing to a String cannot fail.
        for (name, form, help, value) in of_kinds {
            let _ = writeln!(text, "# HELP leno_control_cluster_{name} {help}");
            let _ = writeln!(text, "# TYPE leno_control_cluster_{name} {form}");
            for (watched, kind) in WATCHED.iter().zip(&state.kinds) {
                let (of, value) = (watched.as_str(), value(kind));
                let _ = writeln!(text, "leno_control_cluster_{name}{{kind=\"{of}\"}} {value}");
            }
        }
        let (updates, waited) = (state.updates, state.waited.as_secs_f64());
        let _ = write!(
            text,
            "# HELP leno_control_cluster_stale_seconds How old what is known of the cluster may be.\n\
             # TYPE leno_control_cluster_stale_seconds gauge\n\
             leno_control_cluster_stale_seconds {stale:.3}\n\
             # HELP leno_control_cluster_lag_seconds From an event of a watch to its update.\n\
             # TYPE leno_control_cluster_lag_seconds summary\n\
             leno_control_cluster_lag_seconds_sum {waited:.6}\n\
             leno_control_cluster_lag_seconds_count {updates}\n"
        );
    }

    pub(super) fn name(&self, nth: usize) -> &'static str {
        WATCHED[nth].as_str()
    }

    pub(super) fn page(&self, nth: usize) -> u32 {
        WATCHED[nth].page()
    }

    /// Notes a failure; whether it is the first after a success, or since the start.
    pub(super) fn failed(&self, nth: usize, error: &dyn std::error::Error) -> bool {
        let reason = chain(error);
        let kind = &mut self.state().kinds[nth];
        kind.reason = reason;
        kind.failures += 1;
        let first = kind.failing_since.is_none() || kind.failures == 1;
        kind.failing_since.get_or_insert_with(Instant::now);
        first
    }

    /// Notes that a kind is followed; whether it is so again, after a failure.
    pub(super) fn reached(&self, nth: usize) -> bool {
        let kind = &mut self.state().kinds[nth];
        let again = std::mem::replace(&mut kind.once, true);
        kind.failing_since.take().is_some() && again
    }

    /// Whether a kind is not followed.
    pub(super) fn is_failing(&self, nth: usize) -> bool {
        self.state().kinds[nth].failing_since.is_some()
    }

    /// Whether all objects of a kind were read once.
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
        // Numbers only: what a panic left behind is still sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
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
        let followed = Followed::default();
        assert!(followed.stale().is_some(), "nothing was read yet");
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
        assert!(followed.stale().is_some());
        assert!(followed.reached(3), "it is followed again");
        assert_eq!(followed.stale(), None);
        followed.answered(false);
        assert!(followed.stale().is_some());
        followed.answered(true);
        assert_eq!(followed.stale(), None);
    }

    #[test]
    fn every_number_has_its_kind() {
        let followed = Followed::default();
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
