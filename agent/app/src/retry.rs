//! When a pod that cannot be captured is tried again, and for how long the agent is not ready for it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

/// Wait after the first failure, below the time between two looks; each further one doubles it.
const FIRST: Duration = Duration::from_secs(4);
/// Longest wait: so late a node that was mended is noticed.
const LONGEST: Duration = Duration::from_secs(60);
/// Failures after which the agent is ready all the same: what passes by itself, as another's lock on the rules,
/// has passed within the 20 s that they take, and a pod that can never be captured must not hold a rollout.
const GIVEN_UP: u32 = 3;

/// The pods that failed, by uid.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    failed: HashMap<String, Failure>,
    /// Those of the pods that were there when the agent came; none before all of them were looked at.
    awaited: Option<HashSet<String>>,
}

#[derive(Debug)]
struct Failure {
    why: String,
    times: u32,
    due: Instant,
}

impl Retry {
    /// Whether a pod is to be tried now, as one that has not failed always is.
    pub(crate) fn is_due(&self, uid: &str, now: Instant) -> bool {
        self.failed.get(uid).is_none_or(|failure| failure.due <= now)
    }

    /// It is captured, or need not be.
    pub(crate) fn done(&mut self, uid: &str) {
        self.failed.remove(uid);
    }

    /// It failed; whether for another reason than last time, which is worth a line in the log.
    pub(crate) fn failed(&mut self, uid: &str, why: String, now: Instant) -> bool {
        let last = self.failed.remove(uid);
        let is_new = last.as_ref().is_none_or(|last| last.why != why);
        let before = last.map_or(0, |last| last.times);
        let wait = FIRST.saturating_mul(2_u32.saturating_pow(before)).min(LONGEST);
        let times = before.saturating_add(1);
        self.failed.insert(uid.to_owned(), Failure { why, times, due: now + wait });
        is_new
    }

    /// All pods of the node were looked at; those that have failed the first time this is said are awaited.
    pub(crate) fn listed(&mut self) {
        self.awaited.get_or_insert_with(|| self.failed.keys().cloned().collect());
    }

    /// Whether each pod that was there when the agent came is captured, is gone, or has failed [`GIVEN_UP`] times.
    pub(crate) fn is_settled(&self) -> bool {
        let holds = |uid: &String| self.failed.get(uid).is_some_and(|one| one.times < GIVEN_UP);
        self.awaited.as_ref().is_some_and(|awaited| !awaited.iter().any(holds))
    }

    /// How long it is to the next try of each, by uid.
    pub(crate) fn next(&self, now: Instant) -> HashMap<String, Duration> {
        let until = |one: &Failure| one.due.saturating_duration_since(now);
        self.failed.iter().map(|(uid, one)| (uid.clone(), until(one))).collect()
    }

    /// Forgets the pods that are not there any more.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.failed.retain(|uid, _| is_there(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_again_is_tried_ever_less_often_and_told_of_once() {
        let (mut retry, mut now) = (Retry::default(), Instant::now());
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
        let fail = |retry: &mut Retry, uid: &str, times: u32| {
            for _ in 0..times {
                retry.failed(uid, "why".into(), now);
            }
        };
        let mut retry = Retry::default();
        assert!(!retry.is_settled(), "nobody knows who is there");
        for uid in ["mended", "ended", "never"] {
            fail(&mut retry, uid, 1);
        }
        retry.listed();
        // It came later, and so does what is told of when the watch begins again.
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
