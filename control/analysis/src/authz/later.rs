//! Determines how a decision changes when the client's certificate gets older.

use std::fmt;
use std::time::Duration;

use leno_policy::authorization::{AuthorizationTable, CertificateView, ConnectionView};
use leno_types::authorization::CertificateValidity;
use serde::Serialize;

use crate::explain::time;

/// Most later decisions that are listed. The conditions of usual policies change a decision three times at most.
const MAX_LATER: usize = 8;
/// The default lifetime of a certificate, and by how much its validity begins before it is issued.
const USUAL_LIFE_S: i64 = 24 * 3600;
const BEGIN_S: i64 = 300;

/// A decision that applies from a later time on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LaterAccess {
    /// The age of the client's certificate from which the decision applies, in seconds, as policies count it.
    pub certificate_age_s: u64,
    /// `permitted`, `denied`, or `requests` if it depends on the request.
    pub access: &'static str,
    /// The policy that decides, if one does.
    pub policy: Option<String>,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for LaterAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let age = time(Duration::from_secs(self.certificate_age_s));
        write!(f, "{} once the certificate is {age} old: {}", self.access, self.reason)
    }
}

/// A certificate with a lifetime of 24 hours, as it is assumed for a client. If only one of age and remaining time
/// is given, the other is computed; if neither is given, the certificate was just issued.
pub(crate) fn assumed(age: Option<Duration>, left: Option<Duration>) -> CertificateView {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let rest = |time: i64| (USUAL_LIFE_S + BEGIN_S).saturating_sub(time).max(0);
    let (age, left) = match (age.map(seconds), left.map(seconds)) {
        (Some(age), Some(left)) => (age, left),
        (Some(age), None) => (age, rest(age)),
        (None, Some(left)) => (rest(left), left),
        (None, None) => (BEGIN_S, USUAL_LIFE_S),
    };
    let validity = CertificateValidity { not_before_s: -age, not_after_s: left };
    CertificateView { validity, now_s: 0 }
}

/// The decision now and the later ones, each with the certificate's age from which it applies.
pub(super) fn decisions<T>(
    table: &AuthorizationTable,
    client: ConnectionView<'_>,
    decide: impl Fn(&ConnectionView<'_>) -> T,
    is_same: impl Fn(&T, &T) -> bool,
) -> (T, Vec<(u64, T)>) {
    let first = decide(&client);
    let mut later: Vec<(u64, T)> = Vec::new();
    let Some(mut certificate) = client.certificate else { return (first, later) };
    let mut shown = client;
    // Each time is later than the one before, and policies have only a few such conditions, so this ends.
    while later.len() < MAX_LATER
        && let Some(next) = table.connection(&shown).until_s()
        && next < certificate.validity.not_after_s
    {
        certificate.now_s = next;
        shown = ConnectionView { certificate: Some(certificate), ..shown };
        let decided = decide(&shown);
        let last = later.last().map_or(&first, |(_, last)| last);
        if !is_same(last, &decided) {
            let age = next.saturating_sub(certificate.validity.not_before_s);
            later.push((u64::try_from(age).unwrap_or_default(), decided));
        }
    }
    (first, later)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_which_less_is_said_is_a_usual_one() {
        let hours = |hours| Some(Duration::from_hours(hours));
        let of = |age, left| {
            let CertificateView { validity, now_s } = assumed(age, left);
            (now_s - validity.not_before_s, validity.not_after_s - now_s)
        };
        assert_eq!(of(None, None), (300, 24 * 3600));
        assert_eq!(of(hours(2), None), (2 * 3600, 22 * 3600 + 300));
        assert_eq!(of(None, hours(4)), (20 * 3600 + 300, 4 * 3600));
        assert_eq!(of(hours(30), None), (30 * 3600, 0));
        assert_eq!(of(hours(1), hours(1)), (3600, 3600));
    }
}
