//! Conditions on the validity of a client's certificate.

use std::time::Duration;

use leno_types::authorization::{CertificateMatch, CertificateValidity};

/// A client's certificate, and the current time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateView {
    /// The validity of the certificate.
    pub validity: CertificateValidity,
    /// The current time, in seconds of Unix time.
    pub now_s: i64,
}

impl CertificateView {
    /// Seconds since the certificate became valid.
    fn age(&self) -> u64 {
        seconds(self.now_s.saturating_sub(self.validity.not_before_s))
    }

    /// Seconds until the certificate expires.
    fn left(&self) -> u64 {
        seconds(self.validity.not_after_s.saturating_sub(self.now_s))
    }
}

/// Whether a certificate fulfils a condition. Without a certificate, only the empty condition is fulfilled.
pub(super) fn matches(condition: &CertificateMatch, certificate: Option<CertificateView>) -> bool {
    let CertificateMatch { max_age, min_age, min_left, max_left } = condition;
    let Some(certificate) = certificate else { return is_empty(condition) };
    let (age, left) = (certificate.age(), certificate.left());
    let fits = |limit: &Option<Duration>, is: fn(u64, u64) -> bool, time: u64| {
        limit.is_none_or(|limit| is(time, limit.as_secs()))
    };
    let at_most = |time: u64, limit: u64| time <= limit;
    let at_least = |time: u64, limit: u64| time >= limit;
    fits(max_age, at_most, age)
        && fits(min_age, at_least, age)
        && fits(min_left, at_least, left)
        && fits(max_left, at_most, left)
}

/// Whether the condition requires nothing.
pub(super) fn is_empty(condition: &CertificateMatch) -> bool {
    *condition == CertificateMatch::default()
}

/// The next second at which the result of some part of the condition changes.
pub(super) fn next_change(
    condition: &CertificateMatch,
    certificate: CertificateView,
) -> Option<i64> {
    let CertificateMatch { max_age, min_age, min_left, max_left } = condition;
    let CertificateView { validity, now_s } = certificate;
    let limit = |limit: &Option<Duration>| {
        limit.map(|limit| i64::try_from(limit.as_secs()).unwrap_or(i64::MAX))
    };
    let (begin, end) = (validity.not_before_s, validity.not_after_s);
    let changes = [
        limit(max_age).map(|age| begin.saturating_add(age).saturating_add(1)),
        limit(min_age).map(|age| begin.saturating_add(age)),
        limit(min_left).map(|left| end.saturating_sub(left).saturating_add(1)),
        limit(max_left).map(|left| end.saturating_sub(left)),
    ];
    changes.into_iter().flatten().filter(|change| *change > now_s).min()
}

/// Negative times count as zero, because clocks differ.
fn seconds(time: i64) -> u64 {
    u64::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now_s: i64) -> CertificateView {
        let validity = CertificateValidity { not_before_s: 1_000, not_after_s: 2_000 };
        CertificateView { validity, now_s }
    }

    #[test]
    fn a_condition_changes_when_it_says_so_and_at_no_other_time() {
        let limits = [None, Some(1), Some(100), Some(999), Some(1_000), Some(5_000)];
        let time = |limit: Option<u64>| limit.map(Duration::from_secs);
        let none = CertificateMatch::default();
        for limit in limits {
            for condition in [
                CertificateMatch { max_age: time(limit), ..none },
                CertificateMatch { min_age: time(limit), ..none },
                CertificateMatch { min_left: time(limit), ..none },
                CertificateMatch { max_left: time(limit), ..none },
            ] {
                let changes: Vec<i64> = (900..2_100)
                    .filter(|now| {
                        matches(&condition, Some(at(*now)))
                            != matches(&condition, Some(at(*now + 1)))
                    })
                    .map(|now| now + 1)
                    .collect();
                let mut foretold = Vec::new();
                let mut now = 900;
                while let Some(next) =
                    next_change(&condition, at(now)).filter(|next| *next <= 2_100)
                {
                    foretold.push(next);
                    now = next;
                }
                assert!(
                    changes.iter().all(|one| foretold.contains(one)),
                    "{condition:?} {changes:?}"
                );
                assert!(foretold.len() <= 1, "{condition:?} {foretold:?}");
            }
        }
    }

    #[test]
    fn without_a_certificate_no_time_matches() {
        let hour = Some(Duration::from_secs(3_600));
        let none = CertificateMatch::default();
        assert!(matches(&none, None) && matches(&none, Some(at(1_500))));
        for condition in [
            CertificateMatch { max_age: hour, ..none },
            CertificateMatch { max_left: hour, ..none },
        ] {
            assert!(!matches(&condition, None) && matches(&condition, Some(at(1_500))));
        }
        // The clock is slow, so that the certificate seems to be valid only in the future: its age counts as zero.
        assert!(matches(&CertificateMatch { max_age: hour, ..none }, Some(at(0))));
    }
}
