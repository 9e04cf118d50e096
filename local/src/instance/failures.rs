//! Decides when the failure of a repeated attempt is reported again.

use std::time::{Duration, Instant};

/// How often an unchanged failure is reported again, with the number of its repetitions.
const AGAIN: Duration = Duration::from_secs(600);

/// The failures of an attempt that is repeated until it succeeds. The log gets a line when the reason changes, and
/// one at intervals while it does not.
#[derive(Debug, Default)]
pub(super) struct RepeatedFailures {
    /// The reason that was reported last, and when.
    reported: Option<(String, Instant)>,
    /// How many times the attempt has failed for that reason since it was reported.
    since: u32,
}

impl RepeatedFailures {
    /// Records a failure of the attempt. Returns the line to report, if any.
    pub(super) fn failed(&mut self, why: &str, now: Instant) -> Option<String> {
        let reason = without_numbers(why);
        let same = self.reported.as_ref().filter(|(reported, _)| *reported == reason);
        self.since = same.map_or(0, |_| self.since.saturating_add(1));
        let line = match same {
            Some((_, last)) if now.duration_since(*last) < AGAIN => return None,
            Some((_, last)) => {
                let minutes = now.duration_since(*last).as_secs() / 60;
                format!("{why}; it has failed {} times more in {minutes} min", self.since)
            }
            None => why.to_owned(),
        };
        self.since = 0;
        self.reported = Some((reason, now));
        Some(line)
    }

    /// Forgets the failures, because the attempt has succeeded or is no longer made.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The reason without digits. Each attempt creates files with its own number; two reasons that differ only in it
/// count as the same.
fn without_numbers(text: &str) -> String {
    text.chars().filter(|char| !char.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_when_it_changes_and_then_rarely_with_how_often_it_was() {
        let (mut failures, begin) = (RepeatedFailures::default(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        let full = |attempt| format!("cannot create groups/namespace.shop.{attempt}: no space");
        assert_eq!(failures.failed(&full(1), begin), Some(full(1)));
        for second in 1..600 {
            assert_eq!(failures.failed(&full(second), after(second)), None);
        }
        let line = failures.failed(&full(600), after(600)).unwrap();
        assert_eq!(line, full(600) + "; it has failed 600 times more in 10 min");
        assert_eq!(failures.failed(&full(601), after(601)), None);
        assert!(failures.failed("permission denied", after(602)).is_some());
        assert_eq!(failures.failed(&full(603), after(603)), Some(full(603)));
        failures.clear();
        assert_eq!(failures.failed(&full(604), after(604)), Some(full(604)));
    }
}
