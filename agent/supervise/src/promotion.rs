//! When a workload that is busy gets a process of its own, and when it goes back.
//!
//! ```text
//!  shares ── over the bound for `after` ──► promoted
//!    ▲                                         │
//!    └──── under half of it for five times ────┘
//! ```
//! It takes much longer to go back than to be promoted, and less load, so that one whose load comes and goes stays.

use std::time::{Duration, Instant};

use leno_handover::CpuUse;

/// How many times as long a workload is quiet before it goes back.
const QUIET_TIMES: u32 = 5;
/// So many stalls of a workload's thread are not left to a process that others share.
const MAX_STALLS: u32 = 2;
/// Shortest time between two changes of one workload: each is a process, a certificate and connections that drain.
const LEAST: Duration = Duration::from_secs(1);

/// What a workload may use before it gets a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionRules {
    /// How long it may use more than [`Self::above_percent`]; `None`: it is never promoted.
    pub after: Option<Duration>,
    /// Of one CPU, which is what one workload can use at most: it has one thread for its connections.
    pub above_percent: u32,
}

impl Default for PromotionRules {
    fn default() -> Self {
        Self { after: Some(Duration::from_secs(60)), above_percent: 50 }
    }
}

/// One workload, which shares a process or is promoted.
#[derive(Clone, Debug)]
pub struct Promotion {
    rules: PromotionRules,
    promoted: bool,
    /// Since when it is busy, while it shares a process; since when it is quiet, while it is promoted.
    since: Option<Instant>,
    /// How often its thread has stalled while it shares a process.
    stalls: u32,
}

impl Promotion {
    /// Of one that shares a process.
    #[must_use]
    pub fn new(rules: PromotionRules) -> Self {
        Self { rules, promoted: false, since: None, stalls: 0 }
    }

    /// Whether it has a process of its own.
    #[must_use]
    pub fn is_promoted(&self) -> bool {
        self.promoted
    }

    /// Takes in what it has used until now; true if it is promoted by that.
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
            (self.promoted, self.since) = (true, None);
        }
        is_due
    }

    /// Its thread has stalled while it shares a process; true if it is promoted by that: with its own traffic it would
    /// do so again, beside the others.
    pub fn has_stalled(&mut self) -> bool {
        if self.promoted || self.rules.after.is_none() {
            return false;
        }
        self.stalls = self.stalls.saturating_add(1);
        let is_due = self.stalls >= MAX_STALLS;
        if is_due {
            (self.promoted, self.since) = (true, None);
        }
        is_due
    }

    /// It is served by a process of its own, or by one that it shares, whatever was to be. What was seen of it counts no more.
    pub fn is_in(&mut self, own: bool, now: Instant) {
        self.promoted = own;
        self.has_joined(now);
    }

    /// Its threads are others from now on: what was seen of them counts no more. A process that starts is quiet.
    pub fn has_joined(&mut self, now: Instant) {
        self.since = self.promoted.then_some(now);
    }

    /// When it goes back, unless it is busy before.
    #[must_use]
    pub fn goes_back_at(&self) -> Option<Instant> {
        let after = self.rules.after?.max(LEAST);
        self.since.filter(|_| self.promoted)?.checked_add(after.saturating_mul(QUIET_TIMES))
    }

    /// Takes in that the time is reached.
    pub fn goes_back(&mut self) {
        (self.promoted, self.since, self.stalls) = (false, None, 0);
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
    fn a_workload_is_promoted_once_it_was_busy_for_long_without_a_pause() {
        let (mut promotion, begun) = (Promotion::new(rules(10)), Instant::now());
        let mut at =
            |seconds: u32, percent| promotion.used(begun + SECOND * seconds, used(percent));
        assert!(!at(2, 99) && !at(4, 99) && !at(6, 49) && !at(8, 50), "the pause counts");
        assert!(!at(10, 70) && !at(14, 70));
        assert!(at(16, 70), "ten seconds, of which the first two were before the report");
        assert!(!at(18, 99), "once");
    }

    #[test]
    fn a_promoted_workload_goes_back_once_it_was_quiet_for_five_times_as_long() {
        let (mut promotion, begun) = (Promotion::new(rules(2)), Instant::now());
        assert!(promotion.used(begun, used(90)) && promotion.is_promoted());
        assert_eq!(promotion.goes_back_at(), None);
        // The process of its own reports nothing while it is idle.
        promotion.has_joined(begun);
        assert_eq!(promotion.goes_back_at(), Some(begun + SECOND * 10));
        promotion.used(begun + SECOND * 4, used(30));
        assert_eq!(promotion.goes_back_at(), None, "more than half of the bound is not quiet");
        promotion.used(begun + SECOND * 6, used(24));
        promotion.used(begun + SECOND * 8, used(0));
        assert_eq!(promotion.goes_back_at(), Some(begun + SECOND * 16));
        promotion.goes_back();
        assert!(!promotion.is_promoted() && promotion.goes_back_at().is_none());
    }

    #[test]
    fn no_workload_is_promoted_where_none_is_to_be() {
        let none = PromotionRules { after: None, ..PromotionRules::default() };
        assert!(!Promotion::new(none).used(Instant::now(), used(100)));
    }

    #[test]
    fn a_workload_whose_thread_stalls_again_is_promoted() {
        let (mut promotion, now) = (Promotion::new(rules(10)), Instant::now());
        assert!(!promotion.has_stalled());
        assert!(promotion.has_stalled() && promotion.is_promoted());
        assert!(!promotion.has_stalled(), "once");
        // It could not go.
        promotion.is_in(false, now);
        assert!(!promotion.is_promoted() && promotion.has_stalled());
        let none = PromotionRules { after: None, ..PromotionRules::default() };
        let mut promotion = Promotion::new(none);
        assert!(!(0..9).any(|_| promotion.has_stalled()));
    }

    #[test]
    fn a_share_of_no_time_is_none() {
        assert_eq!(CpuUse { cpu_ms: 5, of_ms: 0 }.percent(), 0);
        assert_eq!(CpuUse { cpu_ms: u32::MAX, of_ms: u32::MAX }.percent(), 100);
    }
}
