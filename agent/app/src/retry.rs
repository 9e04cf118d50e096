//! When a pod that cannot be captured is tried again.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Wait after the first failure, below the time between two looks; each further one doubles it.
const FIRST: Duration = Duration::from_secs(4);
/// Longest wait: so late a node that was mended is noticed.
const LONGEST: Duration = Duration::from_secs(60);

/// The pods that failed, by uid.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    failed: HashMap<String, Failure>,
}

#[derive(Debug)]
struct Failure {
    why: String,
    wait: Duration,
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
        let wait = last.map_or(FIRST, |last| (last.wait * 2).min(LONGEST));
        self.failed.insert(uid.to_owned(), Failure { why, wait, due: now + wait });
        is_new
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
            assert!(!retry.is_due("u", now - Duration::from_millis(1)));
        }
        assert!(retry.failed("u", "another reason".into(), now));
        retry.done("u");
        assert!(retry.is_due("u", now));
        retry.failed("u", "why".into(), now);
        retry.retain(|uid| uid != "u");
        assert!(retry.failed.is_empty());
    }
}
