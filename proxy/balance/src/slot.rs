//! One endpoint of a balancer, and a pick of it.
#![expect(clippy::arithmetic_side_effects, reason = "a count of requests in progress")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::group::Group;
use crate::load::{Health, Load, PENALTY};
use crate::settings::Nearness;

/// The number of parts in an endpoint's full share. A new endpoint has fewer parts.
pub(crate) const FULL_SHARE: u32 = 1024;

/// The initial share of a new endpoint, in parts of [`FULL_SHARE`]: a tenth. With less, the endpoint would get too few
/// requests to show that it works.
const FIRST_SHARE: u32 = FULL_SHARE / 10;

/// An endpoint in a balancer's set, with its state.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    pub(crate) endpoint: Rc<T>,
    /// Identifies the endpoint in every proxy, for hashing and sessions.
    pub(crate) key: u64,
    pub(crate) nearness: Nearness,
    pub(crate) load: Load,
    /// For round robin: the part of a turn that the endpoint has collected. [`FULL_SHARE`] times the heaviest weight is
    /// a turn.
    pub(crate) credit: Cell<u64>,
    weight: Cell<u32>,
    /// When the endpoint joined an existing set. `None` if it was in the first set.
    added: Option<Instant>,
    /// What all endpoints of the balancer share.
    group: Rc<Group>,
    /// Whether the endpoint is still in the balancer's set.
    pub(crate) listed: Cell<bool>,
}

/// A chosen endpoint. It counts as a request in flight until it is dropped.
#[derive(Debug)]
pub struct Pick<T> {
    slot: Rc<Slot<T>>,
    /// When the endpoint was picked.
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

    /// The endpoint's current share, in parts of [`FULL_SHARE`]. It grows linearly over `slow_start`.
    pub(crate) fn share(&self, slow_start: Duration, now: Instant) -> u32 {
        let Some(added) = self.added else { return FULL_SHARE };
        let age = now.saturating_duration_since(added);
        if age >= slow_start {
            return FULL_SHARE;
        }
        let grown = age.as_nanos() * u128::from(FULL_SHARE) / slow_start.as_nanos();
        u32::try_from(grown).unwrap_or(FULL_SHARE).max(FIRST_SHARE)
    }

    /// Whether the endpoint's load per weight is lower than the other's. The load depends on latency and requests if
    /// `by_latency` is set, otherwise on requests alone.
    pub(crate) fn is_below(&self, other: &Self, by_latency: bool, now: Instant) -> bool {
        let mine = (&self.load, self.weight.get());
        let others = (&other.load, other.weight.get());
        if by_latency { Load::is_below(mine, others, now) } else { Load::has_fewer(mine, others) }
    }

    /// Ejects the endpoint for failed requests, unless too many endpoints are already ejected, or it has left the set.
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
            // Requests that were in flight when the endpoint was ejected say nothing about its present state. The probe
            // does.
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

    /// The endpoint, for users that may need it longer than the pick.
    #[must_use]
    pub fn shared_endpoint(&self) -> &Rc<T> {
        &self.slot.endpoint
    }

    /// The key, which identifies the endpoint in every proxy, for a session's cookie.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.slot.key
    }

    /// To be called when a connection was established. Ends an ejection for connect failures.
    pub fn connected(&self) {
        self.slot.load.connected();
    }

    /// To be called when no connection could be established. Ejects the endpoint for a while.
    pub fn connect_failed(&self, now: Instant) {
        self.slot.load.connect_failed(self.at, now);
    }

    /// To be called when a response has arrived after `latency`. It also proves that the endpoint can be connected to.
    pub fn observe(&self, latency: Duration, now: Instant) {
        self.slot.load.connected();
        self.slot.load.observe(latency, now);
    }

    /// To be called when a response has arrived after `latency` that refused the work. It proves that the endpoint can
    /// be connected to, but its speed must not make the endpoint look fast.
    pub fn observe_refusal(&self, latency: Duration, now: Instant) {
        self.slot.load.connected();
        self.slot.load.refuse(latency, now);
    }

    /// To be called when the request failed on an established connection. This counts as a response after [`PENALTY`].
    pub fn penalise(&self, now: Instant) {
        self.slot.load.estimate(PENALTY, now);
    }

    /// To be called when the response was good. Resets the count of consecutive failures. If the request was the probe,
    /// also ends the ejection.
    pub fn succeeded(&self) {
        self.slot.succeeded(self.at);
    }

    /// To be called when there was no response, or a response that policy counts as a failure.
    pub fn failed(&self, now: Instant) {
        self.slot.failed(self.at, now);
    }

    /// Whether the endpoint is ejected now, for any reason.
    #[must_use]
    pub fn is_ejected(&self, now: Instant) -> bool {
        self.slot.load.standing(now) != Health::Good
    }
}

impl<T> Drop for Pick<T> {
    fn drop(&mut self) {
        self.slot.load.leave();
        self.slot.group.leave(self.slot.nearness);
    }
}
