//! Error budgets: how fast a budget is spent, and how much of it is left.
//!
//! With an objective of 99.9 %, one request in a thousand may fail: that is its budget. The burn rate says how
//! many times more often requests fail than the budget permits. It is judged over two windows at once: the long
//! one shows that the failures matter, the short one that they still continue. [`BurnRule`]s define the windows.

use serde::Serialize;

use crate::tally::float;

/// The smallest number of bad requests in a long window for an alert, because a single one may be chance.
const MIN_BAD: u64 = 2;
/// The shortest long window, and the shortest short window. They cannot be shorter because the history has steps
/// of 5 s.
const MIN_LONG_MS: u64 = 60_000;
const MIN_SHORT_MS: u64 = 15_000;
/// How many times as long as the short window the long window is.
const SHORT: u64 = 12;

/// The numbers of requests in a window and of those that were bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SpentBudget {
    /// All requests that count.
    pub requests: u64,
    /// The number of requests that were not good.
    pub bad: u64,
}

/// A condition under which a budget is spent too fast.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BurnRule {
    /// The name of the rule: `fast` or `slow`.
    pub name: &'static str,
    /// The long window, in which the failures must matter.
    pub long_ms: u64,
    /// The short window, in which the failures must still continue.
    pub short_ms: u64,
    /// The burn rate that must be reached in both windows.
    pub limit: f64,
}

/// The result of applying a rule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Burn {
    /// The rule.
    #[serde(flatten)]
    pub rule: BurnRule,
    /// The burn rate in the long window; `None` without requests.
    pub long: Option<f64>,
    /// The burn rate in the short window; `None` without requests.
    pub short: Option<f64>,
    /// Whether the budget is being spent too fast.
    pub burning: bool,
}

/// The state of an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectiveState {
    /// The budget is used up.
    Exhausted,
    /// The budget is being spent too fast.
    Burning,
    /// There were no requests.
    Idle,
    /// The objective is met, and its budget is not spent too fast.
    Met,
}

/// The rules for an objective over a window. The budget is spent too fast if a tenth of it is spent in 1/48 of the
/// window, or a quarter in 1/8. For 24 h these are burn rates of 4.8 over 30 minutes and of 2 over 3 hours.
#[must_use]
pub fn rules(window_ms: u64) -> [BurnRule; 2] {
    let rule = |name, part: u64, share: f64, least: f64| {
        let long_ms = (window_ms / part).max(MIN_LONG_MS);
        let limit = (share * float(window_ms) / float(long_ms)).max(least);
        BurnRule { name, long_ms, short_ms: (long_ms / SHORT).max(MIN_SHORT_MS), limit }
    };
    [rule("fast", 48, 0.1, 3.0), rule("slow", 8, 0.25, 1.5)]
}

impl SpentBudget {
    /// How many times more often requests fail than the budget permits; `None` without requests. `percent` is the
    /// objective.
    #[must_use]
    pub fn burn_rate(self, percent: f64) -> Option<f64> {
        let allowed = float(self.requests) * (100.0 - percent) / 100.0;
        (self.requests > 0).then(|| float(self.bad) / allowed)
    }

    /// The share of the budget that is left, which is negative if more than the whole budget was spent; `None`
    /// without requests.
    #[must_use]
    pub fn left(self, percent: f64) -> Option<f64> {
        self.burn_rate(percent).map(|rate| 1.0 - rate)
    }
}

impl BurnRule {
    /// Applies the rule.
    #[must_use]
    pub fn judge(self, percent: f64, long: SpentBudget, short: SpentBudget) -> Burn {
        let above =
            |spent: SpentBudget| spent.burn_rate(percent).is_some_and(|rate| rate >= self.limit);
        Burn {
            rule: self,
            long: long.burn_rate(percent),
            short: short.burn_rate(percent),
            burning: long.bad >= MIN_BAD && above(long) && above(short),
        }
    }
}

/// The state of an objective, from the counts of its whole window and the results of its rules.
#[must_use]
pub fn standing(percent: f64, whole: SpentBudget, burns: &[Burn]) -> ObjectiveState {
    match whole.left(percent) {
        None => ObjectiveState::Idle,
        Some(left) if left <= 0.0 && whole.bad >= MIN_BAD => ObjectiveState::Exhausted,
        Some(_) if burns.iter().any(|burn| burn.burning) => ObjectiveState::Burning,
        Some(_) => ObjectiveState::Met,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 24 * 3_600_000;

    fn spent(requests: u64, bad: u64) -> SpentBudget {
        SpentBudget { requests, bad }
    }

    #[test]
    fn a_burn_rate_of_one_spends_the_whole_budget_in_the_window() {
        let rate = spent(10_000, 10).burn_rate(99.9).unwrap();
        assert!((rate - 1.0).abs() < 1e-9, "{rate}");
        let left = spent(10_000, 4).left(99.9).unwrap();
        assert!((left - 0.6).abs() < 1e-9, "{left}");
        assert_eq!(spent(0, 0).left(99.9), None);
    }

    #[test]
    fn the_windows_are_parts_of_the_objective() {
        let [fast, slow] = rules(DAY_MS);
        assert_eq!((fast.long_ms, fast.short_ms), (30 * 60_000, 150_000));
        assert_eq!((slow.long_ms, slow.short_ms), (3 * 3_600_000, 15 * 60_000));
        assert!((fast.limit - 4.8).abs() < 1e-9 && (slow.limit - 2.0).abs() < 1e-9);
        let [fast, slow] = rules(5 * 60_000);
        assert_eq!((fast.long_ms, fast.short_ms, fast.limit), (60_000, 15_000, 3.0));
        assert_eq!((slow.long_ms, slow.limit), (60_000, 1.5));
    }

    #[test]
    fn it_burns_only_while_it_goes_on_and_not_by_one_request() {
        let [fast, _] = rules(DAY_MS);
        let burns = |long, short| fast.judge(99.0, long, short).burning;
        assert!(burns(spent(1_000, 50), spent(100, 5)));
        assert!(!burns(spent(1_000, 50), spent(100, 0)), "it has ended");
        assert!(!burns(spent(1_000, 40), spent(100, 5)), "it does not matter yet");
        assert!(!burns(spent(3, 1), spent(3, 1)), "one may be chance");
    }

    #[test]
    fn the_worst_standing_counts() {
        let burning = rules(DAY_MS)[0].judge(99.0, spent(100, 50), spent(100, 50));
        let burns = [burning];
        assert_eq!(standing(99.0, spent(10_000, 50), &burns), ObjectiveState::Burning);
        assert_eq!(standing(99.0, spent(1_000, 10), &burns), ObjectiveState::Exhausted);
        assert_eq!(standing(99.0, spent(10_000, 50), &[]), ObjectiveState::Met);
        assert_eq!(standing(99.0, spent(0, 0), &[]), ObjectiveState::Idle);
        assert_eq!(standing(99.0, spent(10, 1), &[]), ObjectiveState::Met, "one may be chance");
    }
}
