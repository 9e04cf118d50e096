//! The metrics of the observer.

use std::sync::atomic::{AtomicU64, Ordering};

use leno_program::Family;

/// The observer's own counters.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// How many observations were written to the history.
    pub(crate) observations: AtomicU64,
    /// How long the last observation took.
    pub(crate) took_ms: AtomicU64,
    /// How long the last matching of policies with pods took.
    pub(crate) matched_ms: AtomicU64,
    /// How many observations had to postpone a matching because the one before had not ended.
    pub(crate) matchings_postponed: AtomicU64,
    /// How many matchings have panicked.
    pub(crate) matchings_failed: AtomicU64,
    /// How many proxies were queried in the last observation.
    pub(crate) proxies: AtomicU64,
    /// How many of these proxies did not answer.
    pub(crate) silent: AtomicU64,
    /// How many proxies are not queried because there are too many.
    pub(crate) beyond: AtomicU64,
    /// How many samples of proxies were left out because they were about other workloads, or too many.
    pub(crate) left_out: AtomicU64,
    /// How many observations could not be written to the file of the history.
    pub(crate) unwritten: AtomicU64,
    /// How many requests of readers were answered.
    pub(crate) answered: AtomicU64,
    /// How many requests were refused because of a missing or invalid token.
    pub(crate) refused: AtomicU64,
    /// How many requests failed because the API server gave no answer.
    pub(crate) unreviewed: AtomicU64,
}

/// Counts of other parts of the observer, for the same page of metrics.
#[derive(Debug)]
pub(crate) struct ForeignCounts {
    /// The size of the history in bytes, and how many counts were lost because there were too many series.
    pub(crate) history: (u64, u64),
    /// How many pods are not followed.
    pub(crate) pods: usize,
    /// How many objects were not followed.
    pub(crate) objects: u64,
    /// How many entries were left out of each bounded list, by the kind of list.
    pub(crate) left_out: Vec<(&'static str, u64)>,
}

impl Metrics {
    /// Appends all metrics to `text`.
    pub(crate) fn render(&self, text: &mut String, of_others: &ForeignCounts) {
        let ForeignCounts { history: (bytes, lost), pods, objects, left_out } = of_others;
        let of = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let help = "Observations of the mesh that the history has.";
        Family::counter(text, "leno_observer_observations_total", help)
            .sample(&[], of(&self.observations));
        let help = "Observations that could not be written to the file of the history.";
        Family::counter(text, "leno_observer_unwritten_total", help)
            .sample(&[], of(&self.unwritten));
        let help = "How long the last observation took, in seconds.";
        let seconds = std::time::Duration::from_millis(of(&self.took_ms)).as_secs_f64();
        Family::gauge(text, "leno_observer_observation_seconds", help).sample(&[], seconds);
        let help = "How long it took the last time to match policies with pods, in seconds.";
        let seconds = std::time::Duration::from_millis(of(&self.matched_ms)).as_secs_f64();
        Family::gauge(text, "leno_observer_matching_seconds", help).sample(&[], seconds);
        let help =
            "Observations that did not match policies because those were still being matched.";
        Family::counter(text, "leno_observer_matchings_postponed_total", help)
            .sample(&[], of(&self.matchings_postponed));
        let help = "Matchings of policies with pods that ended with a fault of the observer.";
        Family::counter(text, "leno_observer_matchings_failed_total", help)
            .sample(&[], of(&self.matchings_failed));
        let help = "Proxies in the last observation, by result.";
        let mut family = Family::gauge(text, "leno_observer_proxies", help);
        let (asked, silent) = (of(&self.proxies), of(&self.silent));
        family.sample(&[("result", "answered")], asked.saturating_sub(silent));
        family.sample(&[("result", "silent")], silent);
        family.sample(&[("result", "beyond_bound")], of(&self.beyond));
        let help = "Samples of proxies that were left out: of another workload than their own, or too many.";
        Family::counter(text, "leno_observer_samples_left_out_total", help)
            .sample(&[], of(&self.left_out));
        let help = "Pods that are not followed, because there are too many.";
        Family::gauge(text, "leno_observer_pods_beyond_bound", help).sample(&[], pods);
        let help = "Objects that the API server reported and that are not followed, because there are too many of their kind.";
        Family::counter(text, "leno_observer_objects_beyond_bound_total", help)
            .sample(&[], objects);
        let help =
            "Entries that the pages of the present leave out because there are too many, by list.";
        let mut family = Family::gauge(text, "leno_observer_left_out", help);
        for (list, count) in left_out {
            family.sample(&[("list", *list)], count);
        }
        let help = "Memory that the history occupies.";
        Family::gauge(text, "leno_observer_history_bytes", help).sample(&[], bytes);
        let help = "Counts of workloads, edges and rules of routes that were lost, because there were too many of them.";
        Family::counter(text, "leno_observer_lost_total", help).sample(&[], lost);
        let help = "Requests of readers, by result.";
        let mut family = Family::counter(text, "leno_observer_requests_total", help);
        family.sample(&[("result", "answered")], of(&self.answered));
        family.sample(&[("result", "refused")], of(&self.refused));
        family.sample(&[("result", "unreviewed")], of(&self.unreviewed));
    }
}
