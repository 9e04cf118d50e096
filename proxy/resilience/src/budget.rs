//! The retry budget. Retries may be a share of the requests, plus a few per second. So they help if failures are
//! occasional, and do not add to an overload.

use std::time::Instant;

/// Every budget may save at least this many tokens, because about as many requests fail at the same time when one of a
/// few endpoints ends.
pub const MIN_BURST: u32 = 100;

/// The number of parts of a token, so that a percentage of a token is a whole number of parts.
const TOKEN: u64 = 1_000_000_000;

/// A bucket of tokens, one for each retry. Requests and time add tokens, retries remove them. In any period there are
/// at most `percent` retries per 100 requests, plus `min_per_second` for each second, plus the saved tokens, whose
/// number is limited.
#[derive(Clone, Debug)]
pub struct Budget {
    policy: leno_types::traffic::RetryBudget,
    /// The saved tokens, each of which has [`TOKEN`] parts.
    tokens: u64,
    /// Until when the tokens for the time were added.
    paid_at: Option<Instant>,
}

impl Budget {
    /// A budget with the tokens of one second.
    #[must_use]
    pub fn new(policy: leno_types::traffic::RetryBudget) -> Self {
        Self { policy, tokens: u64::from(policy.min_per_second) * TOKEN, paid_at: None }
    }

    /// A budget with another policy and the tokens of this one.
    #[must_use]
    pub fn with_policy(&self, policy: leno_types::traffic::RetryBudget) -> Self {
        let mut budget = Self { policy, ..self.clone() };
        budget.add(0);
        budget
    }

    /// The policy of this budget.
    #[must_use]
    pub fn policy(&self) -> leno_types::traffic::RetryBudget {
        self.policy
    }

    /// Adds the tokens for a request.
    pub fn request(&mut self, now: Instant) {
        self.pay(now);
        self.add(u64::from(self.policy.percent) * (TOKEN / 100));
    }

    /// Takes a token for a retry. Returns whether there was one.
    #[must_use]
    pub fn take(&mut self, now: Instant) -> bool {
        self.pay(now);
        let left = self.tokens.checked_sub(TOKEN);
        self.tokens = left.unwrap_or(self.tokens);
        left.is_some()
    }

    fn pay(&mut self, now: Instant) {
        let since = now.saturating_duration_since(*self.paid_at.get_or_insert(now));
        let whole = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        // A token has as many parts as a second has nanoseconds.
        self.add(whole.saturating_mul(u64::from(self.policy.min_per_second)));
        self.paid_at = Some(now);
    }

    fn add(&mut self, parts: u64) {
        let most = u64::from(self.policy.min_per_second.max(MIN_BURST)) * TOKEN;
        self.tokens = self.tokens.saturating_add(parts).min(most);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn budget(percent: u32, min_per_second: u32) -> Budget {
        Budget::new(leno_types::traffic::RetryBudget { percent, min_per_second })
    }

    #[test]
    fn a_fifth_of_the_requests_may_be_retries() {
        let (mut budget, mut now) = (budget(20, 0), Instant::now());
        let mut retries = 0;
        for _ in 0..10_000 {
            budget.request(now);
            retries += u32::from(budget.take(now));
            now += Duration::from_millis(1);
        }
        assert_eq!(retries, 2_000);
    }

    #[test]
    fn the_minimum_needs_no_requests() {
        let (mut budget, mut now) = (budget(0, 10), Instant::now());
        let mut retries = 0;
        for _ in 0..10_000 {
            retries += u32::from(budget.take(now));
            now += Duration::from_millis(1);
        }
        // Ten retries at once, and ten per second.
        assert!((109..=110).contains(&retries), "{retries}");
    }

    #[test]
    fn nothing_allows_nothing() {
        let (mut budget, now) = (budget(0, 0), Instant::now());
        budget.request(now);
        assert!(!budget.take(now + Duration::from_secs(3600)));
    }

    proptest! {
        /// However requests arrive, retries stay within the policy and the saved tokens.
        #[test]
        fn retries_stay_within_the_budget(
            percent in 0_u32..200, min_per_second in 0_u32..50,
            steps in proptest::collection::vec((0..200_u64, any::<bool>(), 0..4_u32), 1..500),
        ) {
            let mut budget = budget(percent, min_per_second);
            let start = Instant::now();
            let (mut now, mut requests, mut retries) = (start, 0_u64, 0_u64);
            for (wait, request, tries) in steps {
                now += Duration::from_millis(wait);
                if request {
                    budget.request(now);
                    requests += 1;
                }
                for _ in 0..tries {
                    retries += u64::from(budget.take(now));
                }
                let seconds = (now - start).as_secs_f64() + 1.0;
                let most = requests as f64 * f64::from(percent) / 100.0
                    + seconds * f64::from(min_per_second);
                prop_assert!(retries as f64 <= most + 1e-6, "{} of {}", retries, most);
            }
        }
    }
}
