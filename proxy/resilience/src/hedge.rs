//! Hedged requests: another copy while the first one is late, and the first answer wins.

use std::time::Instant;

use leno_types::traffic::Hedging;

use crate::budget::Budget;

/// The copies of one request.
///
/// ```text
/// first copy ──(delay)──► another ──(delay)──► ... up to the bound, or the budget's end
///     └──────────┴───────── first good answer: the others are dropped
///     └──────────┴───────── a failure: not an answer while others are under way
/// ```
#[derive(Clone, Debug)]
pub struct Hedge {
    policy: Hedging,
    sent: u32,
    under_way: u32,
    next: Option<Instant>,
}

/// What to do with what a copy came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client gets it, the other copies are dropped.
    Take,
    /// Others are still under way.
    Wait,
}

impl Hedge {
    /// The first copy was sent.
    #[must_use]
    pub fn new(policy: Hedging, now: Instant) -> Self {
        let next = (policy.copies > 0).then(|| now + policy.delay);
        Self { policy, sent: 1, under_way: 1, next }
    }

    /// When to ask for another copy.
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether another copy is to be sent now. Copies come out of the retry budget.
    #[must_use]
    pub fn another(&mut self, budget: &mut Budget, now: Instant) -> bool {
        if self.next.is_none_or(|next| now < next) {
            return false;
        }
        if !budget.take(now) {
            self.next = None;
            return false;
        }
        self.sent += 1;
        self.under_way += 1;
        self.next = (self.sent <= self.policy.copies).then(|| now + self.policy.delay);
        true
    }

    /// A copy has ended; `is_good`: with an answer that is no failure.
    pub fn ended(&mut self, is_good: bool) -> Step {
        self.under_way = self.under_way.saturating_sub(1);
        if is_good || self.under_way == 0 {
            self.next = None;
            return Step::Take;
        }
        Step::Wait
    }

    /// How many copies were sent.
    #[must_use]
    pub fn sent(&self) -> u32 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DELAY: Duration = Duration::from_millis(50);

    fn budget(min_per_second: u32) -> Budget {
        Budget::new(leno_types::traffic::Budget { percent: 0, min_per_second })
    }

    #[test]
    fn copies_come_one_by_one_up_to_their_bound() {
        let (mut budget, mut now) = (budget(10), Instant::now());
        let mut hedge = Hedge::new(Hedging { delay: DELAY, copies: 2 }, now);
        assert!(!hedge.another(&mut budget, now));
        for sent in 2..=3 {
            now += DELAY;
            assert_eq!(hedge.next(), Some(now));
            assert!(hedge.another(&mut budget, now));
            assert!(!hedge.another(&mut budget, now), "not at once");
            assert_eq!(hedge.sent(), sent);
        }
        now += DELAY * 10;
        assert!(!hedge.another(&mut budget, now));
    }

    #[test]
    fn the_first_good_answer_wins_and_a_failure_only_when_it_is_the_last() {
        let (mut budget, now) = (budget(10), Instant::now());
        let mut hedge = Hedge::new(Hedging { delay: DELAY, copies: 2 }, now);
        assert!(hedge.another(&mut budget, now + DELAY));
        assert_eq!(hedge.ended(false), Step::Wait);
        assert_eq!(hedge.ended(true), Step::Take);
        assert_eq!(hedge.next(), None);
        let mut all_fail = Hedge::new(Hedging { delay: DELAY, copies: 1 }, now);
        assert!(all_fail.another(&mut budget, now + DELAY));
        assert_eq!((all_fail.ended(false), all_fail.ended(false)), (Step::Wait, Step::Take));
    }

    #[test]
    fn copies_are_paid_for() {
        let (mut budget, now) = (budget(0), Instant::now());
        let mut hedge = Hedge::new(Hedging { delay: DELAY, copies: 2 }, now);
        assert!(!hedge.another(&mut budget, now + DELAY));
        assert_eq!((hedge.sent(), hedge.next()), (1, None));
    }
}
