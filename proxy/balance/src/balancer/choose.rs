//! The algorithms. Each of them chooses only among the endpoints for which `may` returns true; all but those by hash
//! prefer near ones.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the choice is among the balancer's own slots, of which there is one at least"
)]

use std::hash::Hash;
use std::rc::Rc;
use std::time::Instant;

use super::{Affinity, Balancer};
use crate::hash::mix;
use crate::settings::Algorithm;
use crate::slot::{FULL_SHARE, Slot};

/// How many random draws are made before all endpoints are examined. While most endpoints may be chosen, these draws
/// are enough, and cheaper than examining all endpoints.
const DRAWS: usize = 8;

/// How many hashes are tried for a request whose endpoint may not be chosen, before a random choice. With further
/// hashes, the requests of an unavailable endpoint are spread over all others, and the same request always goes to the
/// same endpoint.
const HASHES: u64 = 16;

impl<T: Eq + Hash> Balancer<T> {
    /// Chooses an endpoint for which `may` returns true, the nearest first.
    pub(super) fn choose(
        &mut self,
        now: Instant,
        wanted: Affinity,
        may: impl Fn(&Slot<T>) -> bool,
    ) -> Option<usize> {
        let session = wanted.session.and_then(|key| self.of_session(key));
        if let Some(at) = session.filter(|at| may(&self.slots[*at])) {
            return Some(at);
        }
        let algorithm = self.settings.algorithm;
        if matches!(algorithm, Algorithm::RingHash | Algorithm::Maglev) {
            let hash = wanted.hash.unwrap_or_else(|| self.rng.bits());
            return self.by_hash(hash, now, may);
        }
        let mut tried = 0;
        for end in self.ranges() {
            if end <= tried {
                continue;
            }
            tried = end;
            let chosen = match algorithm {
                Algorithm::PeakEwma | Algorithm::LeastRequest => self.lower_of_two(end, now, &may),
                Algorithm::RoundRobin => self.next_in_turn(end, now, &may),
                _ => self.draw(end, now, &may),
            };
            if chosen.is_some() {
                return chosen;
            }
        }
        None
    }

    fn of_session(&self, key: u64) -> Option<usize> {
        let found = self.by_key.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.by_key[found].1 as usize)
    }

    fn by_hash(
        &mut self,
        hash: u64,
        now: Instant,
        may: impl Fn(&Slot<T>) -> bool,
    ) -> Option<usize> {
        let mut at_hash = |hash| self.table.look_up(hash).filter(|at| may(&self.slots[*at]));
        let others = (1..HASHES).map(|salt| mix(hash, salt));
        std::iter::once(hash)
            .chain(others)
            .find_map(&mut at_hash)
            .or_else(|| self.draw(self.slots.len(), now, may))
    }

    /// Draws two endpoints among the first `end` and chooses the one with the lower load.
    pub(super) fn lower_of_two(
        &mut self,
        end: usize,
        now: Instant,
        may: impl Fn(&Slot<T>) -> bool,
    ) -> Option<usize> {
        let a = self.draw(end, now, &may)?;
        let b = if end < 2 { a } else { self.draw_other(end, a, now, may) };
        let by_latency = self.settings.algorithm == Algorithm::PeakEwma;
        let lower = a != b && self.slots[b].is_below(&self.slots[a], by_latency, now);
        Some(if lower { b } else { a })
    }

    /// Draws an endpoint other than `a`. Returns `a` if there is no other.
    fn draw_other(
        &mut self,
        end: usize,
        a: usize,
        now: Instant,
        may: impl Fn(&Slot<T>) -> bool,
    ) -> usize {
        if self.is_uniform(now) {
            let b = (a + 1 + self.rng.below(end - 1)) % end;
            if may(&self.slots[b]) {
                return b;
            }
        }
        let chosen = Rc::clone(&self.slots[a]);
        let other = |slot: &Slot<T>| !std::ptr::eq(slot, &*chosen) && may(slot);
        self.draw(end, now, other).unwrap_or(a)
    }

    /// A random endpoint among the first `end`, according to weights and to the shares of new endpoints.
    fn draw(&mut self, end: usize, now: Instant, may: impl Fn(&Slot<T>) -> bool) -> Option<usize> {
        if end == 1 {
            return may(&self.slots[0]).then_some(0);
        }
        let uniform = self.is_uniform(now);
        for _ in 0..DRAWS {
            let at = self.rng.below(end);
            let slot = &self.slots[at];
            if may(slot) && (uniform || self.accepts(at, now)) {
                return Some(at);
            }
        }
        self.walk(end, now, may)
    }

    /// Whether all endpoints get the same share.
    fn is_uniform(&mut self, now: Instant) -> bool {
        if self.growing_until.is_some_and(|until| now >= until) {
            self.growing_until = None;
        }
        !self.weighted && self.growing_until.is_none()
    }

    /// Returns true with a probability that is this endpoint's share divided by the heaviest endpoint's share.
    fn accepts(&mut self, at: usize, now: Instant) -> bool {
        let slot = &self.slots[at];
        let share = slot.share(self.settings.slow_start, now);
        let weight = slot.weight();
        self.rng.chance(weight, self.heaviest) && self.rng.chance(share, FULL_SHARE)
    }

    /// Like `draw`, but visits the first `end` endpoints one after the other. It visits them twice, so that it need not
    /// build a list.
    fn walk(&mut self, end: usize, now: Instant, may: impl Fn(&Slot<T>) -> bool) -> Option<usize> {
        let slow_start = self.settings.slow_start;
        let share = |slot: &Slot<T>| {
            let share = u64::from(slot.weight()) * u64::from(slot.share(slow_start, now));
            if may(slot) { share } else { 0 }
        };
        let total: u64 = self.slots[..end].iter().map(|slot| share(slot)).sum();
        let mut left = self.rng.bits().checked_rem(total)?;
        self.slots[..end].iter().position(|slot| {
            let share = share(slot);
            let here = left < share;
            left = left.saturating_sub(share);
            here
        })
    }

    /// The next endpoint in turn among the first `end`. How often each gets a turn depends on its share, relative to
    /// the heaviest endpoint's.
    fn next_in_turn(
        &mut self,
        end: usize,
        now: Instant,
        may: impl Fn(&Slot<T>) -> bool,
    ) -> Option<usize> {
        let full = u64::from(self.heaviest) * u64::from(FULL_SHARE);
        // Within two rounds the heaviest endpoint gets its turn. If the heaviest may not be chosen and the other
        // weights are far smaller, a random draw decides.
        for _ in 0..2 * end {
            let at = self.cursor % end;
            self.cursor = at + 1;
            let slot = &self.slots[at];
            if !may(slot) {
                continue;
            }
            let share = slot.share(self.settings.slow_start, now);
            let credit = slot.credit.get() + u64::from(slot.weight()) * u64::from(share);
            if credit >= full {
                slot.credit.set(credit - full);
                return Some(at);
            }
            slot.credit.set(credit);
        }
        self.walk(end, now, may)
    }
}
