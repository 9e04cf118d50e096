//! One endpoint of a balancer, and one choice of it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::load::{Load, PENALTY, Standing};
use crate::settings::Nearness;

/// Shares are cut into this many parts while an endpoint grows to its own.
pub(crate) const FULL_SHARE: u32 = 1024;

/// The least share of a new endpoint, of [`FULL_SHARE`]: a tenth, or it would never be seen to work.
const FIRST_SHARE: u32 = FULL_SHARE / 10;

#[derive(Debug)]
pub(crate) struct Slot<T> {
    pub(crate) endpoint: Rc<T>,
    pub(crate) key: u64,
    pub(crate) nearness: Nearness,
    pub(crate) load: Load,
    /// What round robin owes it.
    pub(crate) credit: Cell<u64>,
    weight: Cell<u32>,
    /// When it came to others; none for one that was there from the start.
    added: Option<Instant>,
    group: Rc<Group>,
    /// Whether the set still holds it.
    pub(crate) listed: Cell<bool>,
}

/// An endpoint that was chosen. It counts as in flight until it is dropped.
#[derive(Debug)]
pub struct Pick<T> {
    slot: Rc<Slot<T>>,
    at: Instant,
}

impl<T> Slot<T> {
    pub(crate) fn new(
        endpoint: T,
        (key, weight, nearness): (u64, u32, Nearness),
        added: Option<Instant>,
        group: &Rc<Group>,
    ) -> Self {
        Self {
            endpoint: Rc::new(endpoint),
            key,
            nearness,
            load: Load::default(),
            credit: Cell::new(0),
            weight: Cell::new(weight.max(1)),
            added,
            group: Rc::clone(group),
            listed: Cell::new(true),
        }
    }

    pub(crate) fn weight(&self) -> u32 {
        self.weight.get()
    }

    pub(crate) fn set_weight(&self, weight: u32) {
        self.weight.set(weight.max(1));
    }

    /// How much of its share it gets now, of [`FULL_SHARE`]; grows evenly over `slow_start`.
    pub(crate) fn share(&self, slow_start: Duration, now: Instant) -> u32 {
        let Some(added) = self.added else { return FULL_SHARE };
        let age = now.saturating_duration_since(added);
        if age >= slow_start {
            return FULL_SHARE;
        }
        let grown = age.as_nanos() * u128::from(FULL_SHARE) / slow_start.as_nanos();
        u32::try_from(grown).unwrap_or(FULL_SHARE).max(FIRST_SHARE)
    }

    /// Whether its load per share is lower than the other's, with latency or without.
    pub(crate) fn is_below(&self, other: &Self, by_latency: bool, now: Instant) -> bool {
        let mine = (&self.load, self.weight.get());
        let others = (&other.load, other.weight.get());
        if by_latency { Load::is_below(mine, others, now) } else { Load::has_fewer(mine, others) }
    }

    /// Ejects it for failed requests, unless too many are out already.
    pub(crate) fn eject(&self, now: Instant) {
        if self.load.is_ejected() || !self.listed.get() || !self.group.may_eject() {
            return;
        }
        self.group.note_ejection();
        self.load.eject(self.group.ejection(), now);
    }

    fn failed(&self, begun: Instant, now: Instant) {
        let ejection = self.group.ejection();
        if self.load.is_ejected() {
            // What was under way when it was ejected says nothing new; a probe does.
            if self.load.was_probe(begun) {
                self.group.note_ejection();
                self.load.eject(ejection, now);
            }
            return;
        }
        let failures = self.load.count_failure();
        if ejection.consecutive_failures.is_some_and(|most| failures >= most) {
            self.eject(now);
        }
    }

    fn succeeded(&self, begun: Instant) {
        self.load.count_success();
        if self.load.is_ejected() && self.load.was_probe(begun) {
            self.load.take_back();
            if self.listed.get() {
                self.group.return_one();
            }
        }
    }
}

impl<T> Pick<T> {
    pub(crate) fn new(slot: &Rc<Slot<T>>, now: Instant) -> Self {
        slot.load.enter(now);
        slot.group.enter(slot.nearness);
        Self { slot: Rc::clone(slot), at: now }
    }

    /// The endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &T {
        &self.slot.endpoint
    }

    /// What identifies it to every proxy, for a session's cookie.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.slot.key
    }

    /// A connection to it was made: that it could not be connected to is over.
    pub fn connected(&self) {
        self.slot.load.connected();
    }

    /// No connection could be made: it is ejected for a while.
    pub fn connect_failed(&self, now: Instant) {
        self.slot.load.connect_failed(self.at, now);
    }

    /// It answered after `latency`, so it is alive as well.
    pub fn observe(&self, latency: Duration, now: Instant) {
        self.slot.load.connected();
        self.slot.load.observe(latency, now);
    }

    /// It answered after `latency`, so it is alive, but has not done what was asked for: how soon it said
    /// so must not make it look fast.
    pub fn observe_refusal(&self, latency: Duration, now: Instant) {
        self.slot.load.connected();
        self.slot.load.refuse(latency, now);
    }

    /// It failed after the connection was made: counts as a slow answer.
    pub fn penalise(&self, now: Instant) {
        self.slot.load.estimate(PENALTY, now);
    }

    /// Its answer was good: failures in a row begin anew, and an ejection for failures ends if this
    /// was the probe.
    pub fn succeeded(&self) {
        self.slot.succeeded(self.at);
    }

    /// Its answer was none, or one that policy takes for a failure.
    pub fn failed(&self, now: Instant) {
        self.slot.failed(self.at, now);
    }

    /// Whether it is ejected now, for whatever reason.
    #[must_use]
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.slot.load.standing(now) != Standing::Good
    }
}

impl<T> Drop for Pick<T> {
    fn drop(&mut self) {
        self.slot.load.leave();
        self.slot.group.leave(self.slot.nearness);
    }
}
