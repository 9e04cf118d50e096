//! Decides when a failed capture is retried, and how long failures keep the agent from being ready.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

/// The wait after the first failure. It is shorter than the time between two rounds. Each further failure doubles
/// it.
const FIRST: Duration = Duration::from_secs(4);
/// The longest wait, which is also how long it may take until the agent notices that a node was repaired.
const LONGEST: Duration = Duration::from_secs(60);
/// The number of failures after which a pod no longer keeps the agent from being ready. These attempts take about
/// 20 s, in which transient errors, such as another program's lock on the rules, pass. A pod that can never be
/// captured must not block a rollout.
const GIVEN_UP: u32 = 3;

/// The pods whose capture failed, by uid.
#[derive(Debug, Default)]
pub(crate) struct RetryQueue {
    failed: HashMap<String, Failure>,
    /// The pods that ran when the agent started and whose first attempt failed; `None` until the first round is
    /// complete.
    awaited: Option<HashSet<String>>,
}

#[derive(Debug)]
struct Failure {
    why: String,
    times: u32,
    due: Instant,
}

impl RetryQueue {
    /// Whether a pod may be tried now. A pod that has not failed may always be tried.
    pub(crate) fn is_due(&self, uid: &str, now: Instant) -> bool {
        self.failed.get(uid).is_none_or(|failure| failure.due <= now)
    }

    /// Records that the pod is captured, or need not be.
    pub(crate) fn done(&mut self, uid: &str) {
        self.failed.remove(uid);
    }

    /// Records a failure. Returns true if its reason differs from the last one, so that the caller logs it.
    pub(crate) fn failed(&mut self, uid: &str, why: String, now: Instant) -> bool {
        let last = self.failed.remove(uid);
        let is_new = last.as_ref().is_none_or(|last| last.why != why);
        let before = last.map_or(0, |last| last.times);
        let wait = FIRST.saturating_mul(2_u32.saturating_pow(before)).min(LONGEST);
        let times = before.saturating_add(1);
        self.failed.insert(uid.to_owned(), Failure { why, times, due: now + wait });
        is_new
    }

    /// Records that the first round is complete. The agent waits for the pods that have failed by now. Later calls
    /// do nothing.
    pub(crate) fn listed(&mut self) {
        self.awaited.get_or_insert_with(|| self.failed.keys().cloned().collect());
    }

    /// Whether each pod that ran when the agent started is captured, is gone, or has failed [`GIVEN_UP`] times.
    pub(crate) fn is_settled(&self) -> bool {
        let holds = |uid: &String| self.failed.get(uid).is_some_and(|one| one.times < GIVEN_UP);
        self.awaited.as_ref().is_some_and(|awaited| !awaited.iter().any(holds))
    }

    /// The time until the next attempt, by uid.
    pub(crate) fn next(&self, now: Instant) -> HashMap<String, Duration> {
        let until = |one: &Failure| one.due.saturating_duration_since(now);
        self.failed.iter().map(|(uid, one)| (uid.clone(), until(one))).collect()
    }

    /// Drops the pods that no longer exist.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.failed.retain(|uid, _| is_there(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_is_tried_ever_less_often_and_told_of_once() {
        let (mut retry, mut now) = (RetryQueue::default(), Instant::now());
        for wait in [4, 8, 16, 32, 60, 60] {
            assert!(retry.is_due("u", now) && retry.is_due("another", now));
            assert_eq!(retry.failed("u", "why".into(), now), wait == 4);
            now += Duration::from_secs(wait);
            let before = now - Duration::from_millis(1);
            assert!(!retry.is_due("u", before));
            assert_eq!(retry.next(before)["u"], Duration::from_millis(1));
        }
        assert!(retry.failed("u", "another reason".into(), now));
        retry.done("u");
        assert!(retry.is_due("u", now));
        retry.failed("u", "why".into(), now);
        retry.retain(|uid| uid != "u");
        assert!(retry.failed.is_empty());
    }

    #[test]
    fn a_pod_that_failed_is_awaited_until_it_is_captured_or_gone_or_has_failed_often() {
        let now = Instant::now();
        let fail = |retry: &mut RetryQueue, uid: &str, times: u32| {
            for _ in 0..times {
                retry.failed(uid, "why".into(), now);
            }
        };
        let mut retry = RetryQueue::default();
        assert!(!retry.is_settled(), "nobody knows who is there");
        for uid in ["mended", "ended", "never"] {
            fail(&mut retry, uid, 1);
        }
        retry.listed();
        // Neither a pod that fails later nor a second listing after a restart of the watch extends the wait.
        fail(&mut retry, "later", 1);
        retry.listed();
        retry.done("mended");
        assert!(!retry.is_settled());
        retry.retain(|uid| uid != "ended");
        fail(&mut retry, "never", GIVEN_UP - 2);
        assert!(!retry.is_settled());
        fail(&mut retry, "never", 1);
        assert!(retry.is_settled());
    }
}
