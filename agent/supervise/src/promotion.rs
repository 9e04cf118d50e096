//! Decides when a busy workload gets its own process, which is called promotion, and when it returns to a shared
//! one.
//!
//! ```text
//!  shares ── over the bound for `after` ──► promoted
//!    ▲                                         │
//!    └──── under half of it for five times ────┘
//! ```
//! A workload only returns after it was quiet for a much longer time than it was busy, and at a lower load, so
//! that a varying load does not move it back and forth. If it is promoted again soon after it has returned, it
//! must be quiet for twice as long the next time, because each move leaves a process that finishes streams.

use std::time::{Duration, Instant};

use leno_handover::CpuUse;

/// A workload returns after it was quiet for this many times [`PromotionRules::after`].
const QUIET_TIMES: u32 = 5;
/// How many times that time is doubled at most for a workload that is promoted repeatedly: from five minutes up to
/// less than three hours.
const MAX_DOUBLINGS: u32 = 5;
/// After this many stalls of its thread, a workload is promoted.
const MAX_STALLS: u32 = 2;
/// Shortest time between two moves of a workload. Each move costs a process, a certificate and connections that
/// must drain.
const LEAST: Duration = Duration::from_secs(1);

/// How much CPU a workload may use before it is promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionRules {
    /// How long its CPU use may exceed [`Self::above_percent`]; `None` if it is never promoted.
    pub after: Option<Duration>,
    /// The bound, in percent of one CPU. A workload cannot use more than one CPU, because one thread handles its
    /// connections.
    pub above_percent: u32,
}

impl PromotionRules {
    /// The same rules with `after` from the workload's settings, if they set it.
    #[must_use]
    pub fn with_after(self, after: Option<Option<Duration>>) -> Self {
        Self { after: after.unwrap_or(self.after), ..self }
    }
}

impl Default for PromotionRules {
    fn default() -> Self {
        Self { after: Some(Duration::from_secs(60)), above_percent: 50 }
    }
}

/// The promotion state of one workload.
#[derive(Clone, Debug)]
pub struct Promotion {
    rules: PromotionRules,
    promoted: bool,
    /// While the workload shares a process: since when it has been busy. While it is promoted: since when it has
    /// been quiet.
    since: Option<Instant>,
    /// How many times its thread has stalled since it last began to share a process.
    stalls: u32,
    /// When it last returned to a shared process.
    returned: Option<Instant>,
    /// How many times in a row it was promoted soon after it had returned.
    in_a_row: u32,
}

impl Promotion {
    /// The state of a workload that shares a process.
    #[must_use]
    pub fn new(rules: PromotionRules) -> Self {
        Self { rules, promoted: false, since: None, stalls: 0, returned: None, in_a_row: 0 }
    }

    /// Applies changed rules. Returns true if the workload must return to a shared process because promotion is
    /// now turned off.
    pub fn follow(&mut self, rules: PromotionRules, now: Instant) -> bool {
        if self.rules == rules {
            return false;
        }
        (self.rules, self.returned, self.in_a_row) = (rules, None, 0);
        if self.promoted && rules.after.is_none() {
            (self.promoted, self.since, self.stalls) = (false, None, 0);
            return true;
        }
        self.has_joined(now);
        false
    }

    /// Whether the workload has its own process.
    #[must_use]
    pub fn is_promoted(&self) -> bool {
        self.promoted
    }

    /// Records a measurement of its CPU use. Returns true if the workload is promoted now.
    pub fn used(&mut self, now: Instant, used: CpuUse) -> bool {
        let Some(after) = self.rules.after else { return false };
        let percent = used.percent();
        if self.promoted {
            let is_quiet = percent < self.rules.above_percent.div_ceil(2);
            self.since = is_quiet.then_some(self.since.unwrap_or(now));
            return false;
        }
        if percent < self.rules.above_percent {
            self.since = None;
            return false;
        }
        let began = now.checked_sub(Duration::from_millis(used.of_ms.into())).unwrap_or(now);
        let since = *self.since.get_or_insert(began);
        let is_due = now.duration_since(since) >= after.max(LEAST);
        if is_due {
            self.promote(now);
        }
        is_due
    }

    /// Records that its thread has stalled in a shared process. Returns true if the workload is promoted now. Its
    /// traffic will probably cause the next stall as well, which should not affect other workloads.
    pub fn has_stalled(&mut self, now: Instant) -> bool {
        if self.promoted || self.rules.after.is_none() {
            return false;
        }
        self.stalls = self.stalls.saturating_add(1);
        let is_due = self.stalls >= MAX_STALLS;
        if is_due {
            self.promote(now);
        }
        is_due
    }

    fn promote(&mut self, now: Instant) {
        let is_soon = self.returned.is_some_and(|at| now.duration_since(at) < self.quiet());
        self.in_a_row = if is_soon { self.in_a_row.saturating_add(1) } else { 0 };
        (self.promoted, self.since) = (true, None);
    }

    /// How long the workload must be quiet before it returns to a shared process.
    fn quiet(&self) -> Duration {
        let after = self.rules.after.unwrap_or(LEAST).max(LEAST);
        let doubled = 2_u32.saturating_pow(self.in_a_row.min(MAX_DOUBLINGS));
        after.saturating_mul(QUIET_TIMES.saturating_mul(doubled))
    }

    /// Sets whether the workload has its own process, and resets the measurements.
    pub fn is_in(&mut self, own: bool, now: Instant) {
        self.promoted = own;
        self.has_joined(now);
    }

    /// Resets the measurements, because new threads serve the workload. A new process counts as quiet.
    pub fn has_joined(&mut self, now: Instant) {
        self.since = self.promoted.then_some(now);
    }

    /// When the workload returns to a shared process, unless it becomes busy before; `None` if it need not.
    #[must_use]
    pub fn goes_back_at(&self) -> Option<Instant> {
        self.since.filter(|_| self.promoted)?.checked_add(self.quiet())
    }

    /// Records that the workload returns to a shared process now.
    pub fn goes_back(&mut self, now: Instant) {
        (self.promoted, self.since, self.stalls) = (false, None, 0);
        self.returned = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn used(percent: u32) -> CpuUse {
        CpuUse { cpu_ms: 20 * percent, of_ms: 2000 }
    }

    fn rules(after_s: u64) -> PromotionRules {
        PromotionRules { after: Some(SECOND * u32::try_from(after_s).unwrap()), above_percent: 50 }
    }

    #[test]
    fn a_workload_is_promoted_after_it_was_busy_for_long_without_a_pause() {
        let (mut promotion, begun) = (Promotion::new(rules(10)), Instant::now());
        let mut at =
            |seconds: u32, percent| promotion.used(begun + SECOND * seconds, used(percent));
        assert!(!at(2, 99) && !at(4, 99) && !at(6, 49) && !at(8, 50), "the pause resets the time");
        assert!(!at(10, 70) && !at(14, 70));
        assert!(at(16, 70), "ten seconds, of which the first two were before the report");
        assert!(!at(18, 99), "once");
    }

    #[test]
    fn a_promoted_workload_goes_back_once_it_was_quiet_for_five_times_as_long() {
        let (mut promotion, begun) = (Promotion::new(rules(2)), Instant::now());
        assert!(promotion.used(begun, used(90)) && promotion.is_promoted());
        assert_eq!(promotion.goes_back_at(), None);
        // A process sends no reports while it is idle.
        promotion.has_joined(begun);
        assert_eq!(promotion.goes_back_at(), Some(begun + SECOND * 10));
        promotion.used(begun + SECOND * 4, used(30));
        assert_eq!(promotion.goes_back_at(), None, "more than half of the bound is not quiet");
        promotion.used(begun + SECOND * 6, used(24));
        promotion.used(begun + SECOND * 8, used(0));
        assert_eq!(promotion.goes_back_at(), Some(begun + SECOND * 16));
        promotion.goes_back(begun + SECOND * 16);
        assert!(!promotion.is_promoted() && promotion.goes_back_at().is_none());
    }

    #[test]
    fn a_workload_that_is_promoted_again_and_again_takes_longer_to_go_back_each_time() {
        let (mut promotion, mut now) = (Promotion::new(rules(2)), Instant::now());
        let mut quiet = |pause: u32| {
            now += SECOND * pause;
            assert!(promotion.used(now, used(90)));
            promotion.has_joined(now);
            let at = promotion.goes_back_at().unwrap();
            let quiet = at - now;
            now = at;
            promotion.goes_back(now);
            quiet.as_secs()
        };
        assert_eq!([2; 8].map(&mut quiet), [10, 20, 40, 80, 160, 320, 320, 320]);
        assert_eq!(quiet(320), 10, "it was not soon");
        assert_eq!(quiet(2), 20);
    }

    #[test]
    fn no_workload_is_promoted_if_promotion_is_off() {
        let none = PromotionRules { after: None, ..PromotionRules::default() };
        assert!(!Promotion::new(none).used(Instant::now(), used(100)));
    }

    #[test]
    fn a_workload_whose_thread_stalls_twice_is_promoted() {
        let (mut promotion, now) = (Promotion::new(rules(10)), Instant::now());
        assert!(!promotion.has_stalled(now));
        assert!(promotion.has_stalled(now) && promotion.is_promoted());
        assert!(!promotion.has_stalled(now), "once");
        // The supervisor could not move the workload.
        promotion.is_in(false, now);
        assert!(!promotion.is_promoted() && promotion.has_stalled(now));
        let none = PromotionRules { after: None, ..PromotionRules::default() };
        let mut promotion = Promotion::new(none);
        assert!(!(0..9).any(|_| promotion.has_stalled(now)));
    }

    #[test]
    fn a_workload_follows_changed_rules_and_goes_back_if_promotion_is_turned_off() {
        let (mut promotion, begun) = (Promotion::new(rules(2)), Instant::now());
        assert!(promotion.used(begun, used(90)));
        assert!(!promotion.follow(rules(2), begun) && !promotion.follow(rules(4), begun));
        assert_eq!(promotion.goes_back_at(), Some(begun + SECOND * 20));
        let off = rules(4).with_after(Some(None));
        assert!(promotion.follow(off, begun) && !promotion.is_promoted());
        assert!(!promotion.used(begun + SECOND * 60, used(100)));
        // The workload's own process still serves it, as its supervisor reports.
        promotion.is_in(true, begun);
        promotion.used(begun + SECOND, used(0));
        assert_eq!(promotion.goes_back_at(), Some(begun + SECOND * 5));
        promotion.goes_back(begun + SECOND * 5);
        assert!(!promotion.follow(off.with_after(None), begun), "the rules have not changed");
        assert!(!promotion.follow(off.with_after(Some(Some(SECOND * 2))), begun));
        assert!(promotion.used(begun + SECOND, used(100)));
    }

    #[test]
    fn a_share_of_no_time_is_none() {
        assert_eq!(CpuUse { cpu_ms: 5, of_ms: 0 }.percent(), 0);
        assert_eq!(CpuUse { cpu_ms: u32::MAX, of_ms: u32::MAX }.percent(), 100);
    }
}
