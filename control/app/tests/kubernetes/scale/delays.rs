//! Measures the delays of changes within the controller by its metrics.

use std::time::Duration;

use super::figures::Figures;
use super::phases::PATIENCE;
use crate::replica::Replica;

const PUSH: &str = "leno_control_push_delay_seconds";
const LAG: &str = "leno_control_cluster_lag_seconds";

/// The controller's counts up to one moment, or between two moments.
pub(crate) struct Delays {
    /// For each bound of a histogram bucket, how many pushes were delayed at most that long; in ascending order.
    pushes: Vec<(Duration, f64)>,
    /// The number of all pushes.
    pushed: f64,
    /// The number of updates from the cluster, and the sum of their delays until they were applied, in seconds.
    updates: f64,
    waited: f64,
}

impl Delays {
    pub(crate) async fn of(replica: &Replica) -> Self {
        let page = replica.page("/metrics").await;
        let number = |series: &str| -> f64 {
            let line = page.lines().find_map(|line| line.strip_prefix(&format!("{series} ")));
            line.unwrap_or_else(|| panic!("no {series} in {page}")).parse().unwrap()
        };
        let bucket = |line: &str| {
            let (bound, count) =
                line.strip_prefix(&format!("{PUSH}_bucket{{le=\""))?.split_once("\"} ")?;
            // The bound of the last bucket is infinite and is skipped.
            let bound = Duration::try_from_secs_f64(bound.parse().ok()?).ok()?;
            Some((bound, count.parse().unwrap()))
        };
        Self {
            pushes: page.lines().filter_map(bucket).collect(),
            pushed: number(&format!("{PUSH}_count")),
            updates: number(&format!("{LAG}_count")),
            waited: number(&format!("{LAG}_sum")),
        }
    }

    /// The counts since an earlier moment.
    pub(crate) fn since(self, before: &Self) -> Self {
        let less = |(now, before): ((Duration, f64), &(Duration, f64))| (now.0, now.1 - before.1);
        Self {
            pushes: self.pushes.into_iter().zip(&before.pushes).map(less).collect(),
            pushed: self.pushed - before.pushed,
            updates: self.updates - before.updates,
            waited: self.waited - before.waited,
        }
    }

    pub(crate) fn report(&self, figures: &mut Figures) {
        let mean = Duration::from_secs_f64(self.waited / self.updates.max(1.0));
        figures.time("in the controller: from an event to its update, mean", mean, None);
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let within = self.pushes.iter().find(|(_, count)| *count >= self.pushed * share);
            // If no bucket contains it, the delay was longer than the longest finite bound.
            let bound = within.map_or(PATIENCE, |(bound, _)| *bound);
            let name = format!("in the controller: from an update to its push, {name} at most");
            figures.time(&name, bound, None);
        }
    }
}
