//! Hedged requests: while a request gets no response in time, copies of it are sent. The first good
//! response wins.
#![expect(clippy::arithmetic_side_effects, reason = "a copy is sent only where some are left")]

use std::time::{Duration, Instant};

use crate::budget::Budget;

/// The copies of one request.
///
/// ```text
/// first copy ──(delay)──► another ──(delay)──► ... up to the limit, or until the budget is used up
///     └──────────┴───────── good response: the other copies are dropped
///     └──────────┴───────── failure: ignored while other copies are in flight, else it is the result
/// ```
///
/// When a retry sends the request again, this sequence begins again with the copies that are left.
#[derive(Clone, Debug)]
pub struct Hedge {
    delay: Duration,
    /// How many copies may still be sent. The first copy and those that retries send do not count.
    left: u32,
    under_way: u32,
    /// When another copy is due; `None` if no more are sent for this attempt.
    next: Option<Instant>,
}

/// What to do after a copy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Its result, a good response or the failure of the last copy, counts. Drop the other copies.
    Take,
    /// Wait for the other copies.
    Wait,
}

impl Hedge {
    /// Allows `copies` copies after the first, each `delay` after the one before.
    #[must_use]
    pub fn new(copies: u32, delay: Duration) -> Self {
        Self { delay, left: copies, under_way: 0, next: None }
    }

    /// Notes that the first copy of an attempt was sent, for the request itself or for a retry.
    pub fn begin(&mut self, now: Instant) {
        self.under_way = 1;
        self.next = self.after(now);
    }

    /// When to call [`Hedge::another`].
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether to send another copy now. Each copy takes a token of the retry budget.
    #[must_use]
    pub fn another(&mut self, budget: &mut Budget, now: Instant) -> bool {
        if self.next.is_none_or(|next| now < next) {
            return false;
        }
        if !budget.take(now) {
            self.next = None;
            return false;
        }
        self.left -= 1;
        self.under_way += 1;
        self.next = self.after(now);
        true
    }

    /// Sends no further copies, because no endpoint is left for them.
    pub fn stop(&mut self) {
        self.next = None;
    }

    /// The number of copies in flight.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.under_way
    }

    /// To be called when a copy has ended. `is_good` says that it ended with a response that is not a failure.
    pub fn ended(&mut self, is_good: bool) -> Step {
        self.under_way = self.under_way.saturating_sub(1);
        if is_good || self.under_way == 0 {
            self.next = None;
            return Step::Take;
        }
        Step::Wait
    }

    fn after(&self, now: Instant) -> Option<Instant> {
        if self.left > 0 { now.checked_add(self.delay) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_millis(50);

    fn budget(min_per_second: u32) -> Budget {
        Budget::new(leno_types::traffic::RetryBudget { percent: 0, min_per_second })
    }

    fn begun(copies: u32, now: Instant) -> Hedge {
        let mut hedge = Hedge::new(copies, DELAY);
        hedge.begin(now);
        hedge
    }

    #[test]
    fn copies_come_one_by_one_up_to_their_bound() {
        let (mut budget, mut now) = (budget(10), Instant::now());
        let mut hedge = begun(2, now);
        assert!(!hedge.another(&mut budget, now));
        for under_way in 2..=3 {
            now += DELAY;
            assert_eq!(hedge.next(), Some(now));
            assert!(hedge.another(&mut budget, now));
            assert!(!hedge.another(&mut budget, now), "not at once");
            assert_eq!(hedge.under_way(), under_way);
        }
        now += DELAY * 10;
        assert!(!hedge.another(&mut budget, now));
    }

    #[test]
    fn the_first_good_answer_wins_and_a_failure_only_when_it_is_the_last() {
        let (mut budget, now) = (budget(10), Instant::now());
        let mut hedge = begun(2, now);
        assert!(hedge.another(&mut budget, now + DELAY));
        assert_eq!(hedge.ended(false), Step::Wait);
        assert_eq!(hedge.ended(true), Step::Take);
        assert_eq!(hedge.next(), None);
        let mut all_fail = begun(1, now);
        assert!(all_fail.another(&mut budget, now + DELAY));
        assert_eq!((all_fail.ended(false), all_fail.ended(false)), (Step::Wait, Step::Take));
    }

    #[test]
    fn a_retry_gets_no_further_copies() {
        let (mut budget, mut now) = (budget(10), Instant::now());
        let mut hedge = begun(1, now);
        now += DELAY;
        assert!(hedge.another(&mut budget, now));
        assert_eq!((hedge.ended(false), hedge.ended(false)), (Step::Wait, Step::Take));
        hedge.begin(now);
        assert_eq!(hedge.next(), None);
        assert!(!hedge.another(&mut budget, now + DELAY));
    }

    #[test]
    fn copies_are_paid_for() {
        let (mut budget, now) = (budget(0), Instant::now());
        let mut hedge = begun(2, now);
        assert!(!hedge.another(&mut budget, now + DELAY));
        assert_eq!((hedge.under_way(), hedge.next()), (1, None));
    }
}
