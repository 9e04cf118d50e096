//! The state that the endpoints of one balancer share.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "there is a counter for each tier, and no more leave it than have entered"
)]

use std::cell::Cell;

use leno_types::traffic::Ejection;

use crate::settings::Nearness;

/// The state that all slots of a balancer share, so that a pick can report without access to its balancer.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// The settings of ejections for failed requests.
    ejection: Cell<Ejection>,
    /// The number of endpoints in the set.
    total: Cell<usize>,
    /// The number of endpoints that were ejected for failed requests and that no probe has brought back yet.
    ejected: Cell<usize>,
    /// How many times endpoints were ejected for failed requests so far.
    ejections: Cell<u64>,
    /// The number of requests in flight, by nearness.
    in_flight: [Cell<u32>; 3],
}

impl Group {
    pub(crate) fn ejection(&self) -> Ejection {
        self.ejection.get()
    }

    pub(crate) fn set_ejection(&self, ejection: Ejection) {
        self.ejection.set(ejection);
    }

    /// Sets the counts for a new set.
    pub(crate) fn set_total(&self, total: usize, ejected: usize) {
        self.total.set(total);
        self.ejected.set(ejected);
    }

    /// Counts one more ejected endpoint, unless more than `max_percent` would then be ejected (the first may exceed
    /// this), or none would be left. Returns whether it was counted.
    pub(crate) fn may_eject(&self) -> bool {
        let (total, ejected) = (self.total.get(), self.ejected.get());
        let within = (ejected + 1) * 100 <= total * usize::from(self.ejection.get().max_percent);
        if ejected + 1 >= total || !(within || ejected == 0) {
            return false;
        }
        self.ejected.set(ejected + 1);
        true
    }

    pub(crate) fn note_ejection(&self) {
        self.ejections.set(self.ejections.get() + 1);
    }

    pub(crate) fn return_one(&self) {
        self.ejected.set(self.ejected.get().saturating_sub(1));
    }

    pub(crate) fn ejected(&self) -> usize {
        self.ejected.get()
    }

    pub(crate) fn ejections(&self) -> u64 {
        self.ejections.get()
    }

    /// Whether fewer than `panic_percent` of the endpoints are left, so that the balancer should use the ejected ones,
    /// too.
    pub(crate) fn is_panic(&self) -> bool {
        let (total, left) = (self.total.get(), self.total.get() - self.ejected.get());
        left * 100 < total * usize::from(self.ejection.get().panic_percent)
    }

    pub(crate) fn enter(&self, nearness: Nearness) {
        let tier = &self.in_flight[nearness as usize];
        tier.set(tier.get() + 1);
    }

    pub(crate) fn leave(&self, nearness: Nearness) {
        let tier = &self.in_flight[nearness as usize];
        tier.set(tier.get() - 1);
    }

    /// The number of requests in flight on endpoints that are at least this near.
    pub(crate) fn in_flight(&self, nearness: Nearness) -> u64 {
        self.in_flight[..=nearness as usize].iter().map(|tier| u64::from(tier.get())).sum()
    }
}
