//! The balancer and its picks.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::load::{Load, PENALTY, Standing};
use crate::rng::Rng;

/// Chooses among the endpoints of one service, for one worker.
#[derive(Debug)]
pub struct Balancer<T> {
    slots: Vec<Rc<Slot<T>>>,
    rng: Rng,
}

/// An endpoint that was chosen. It counts as in flight until it is dropped.
#[derive(Debug)]
pub struct Pick<T> {
    slot: Rc<Slot<T>>,
    at: Instant,
}

/// Why there is no endpoint to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPick {
    /// The service has no ready endpoint.
    #[error("no ready endpoint")]
    Empty,
    /// The caller excluded all of them.
    #[error("every endpoint has been tried")]
    Excluded,
    /// All have failed within the last moments; see [`crate::LAST_RESORT`].
    #[error("no endpoint can be connected to")]
    Failfast,
}

#[derive(Debug)]
struct Slot<T> {
    endpoint: Rc<T>,
    load: Load,
}

impl<T> Default for Balancer<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), rng: Rng::random() }
    }
}

impl<T: Eq + Hash> Balancer<T> {
    /// A balancer with no endpoint yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, with choices that a test can repeat.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { slots: Vec::new(), rng: Rng::seeded(seed) }
    }

    /// Replaces the endpoints. One that stays keeps its estimate, its ejection and what is in flight
    /// on it; picks of one that goes stay valid until they are dropped. Duplicates count once.
    pub fn update(&mut self, endpoints: impl IntoIterator<Item = T>) {
        let keyed = |slot: Rc<Slot<T>>| (Rc::clone(&slot.endpoint), slot);
        let mut old: HashMap<Rc<T>, Rc<Slot<T>>> = self.slots.drain(..).map(keyed).collect();
        let mut new: HashSet<Rc<T>> = HashSet::with_capacity(old.len());
        for endpoint in endpoints {
            if new.contains(&endpoint) {
                continue;
            }
            let slot = old.remove(&endpoint).unwrap_or_else(|| {
                Rc::new(Slot { endpoint: Rc::new(endpoint), load: Load::default() })
            });
            new.insert(Rc::clone(&slot.endpoint));
            self.slots.push(slot);
        }
    }

    /// How many endpoints there are, ejected ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// How many endpoints are ejected.
    #[must_use]
    pub fn ejected(&self, now: Instant) -> usize {
        let out = |slot: &&Rc<Slot<T>>| slot.load.standing(now) != Standing::Good;
        self.slots.iter().filter(out).count()
    }

    /// The endpoints with what is in flight on each, for `/config`.
    pub fn endpoints(&self) -> impl Iterator<Item = (&T, u32)> {
        let shown = |slot: &Rc<Slot<T>>| slot.load.in_flight();
        self.slots.iter().map(move |slot| (&*slot.endpoint, shown(slot)))
    }

    /// Chooses an endpoint that `excluded` does not hold for (those a retry has tried already).
    ///
    /// # Errors
    /// [`NoPick`], at once.
    pub fn pick(&mut self, now: Instant, excluded: impl Fn(&T) -> bool) -> Result<Pick<T>, NoPick> {
        let good =
            |slot: &Slot<T>| slot.load.standing(now) == Standing::Good && !excluded(&slot.endpoint);
        let chosen = match self.draw_two(good).or_else(|| self.search(good)) {
            Some((a, b)) => self.lower(a, b, now),
            None => self.last_resort(now, excluded)?,
        };
        let slot = Rc::clone(&self.slots[chosen]);
        slot.load.enter(now);
        Ok(Pick { slot, at: now })
    }

    /// Two random endpoints, if both are good: the usual case costs no walk.
    fn draw_two(&mut self, good: impl Fn(&Slot<T>) -> bool) -> Option<(usize, usize)> {
        let n = self.slots.len();
        if n < 2 {
            return None;
        }
        let a = self.rng.below(n);
        let b = (a + 1 + self.rng.below(n - 1)) % n;
        (good(&self.slots[a]) && good(&self.slots[b])).then_some((a, b))
    }

    /// Two random ones of all good endpoints, the same one twice when there is only one.
    /// Walks twice rather than keep a list: a service with one endpoint comes here for each pick.
    fn search(&mut self, good: impl Fn(&Slot<T>) -> bool) -> Option<(usize, usize)> {
        let n = self.slots.iter().filter(|slot| good(slot)).count();
        if n == 0 {
            return None;
        }
        let a = self.rng.below(n);
        let b = if n == 1 { a } else { (a + 1 + self.rng.below(n - 1)) % n };
        let is_good = |(at, slot): (usize, &Rc<Slot<T>>)| good(slot).then_some(at);
        let mut walk = self.slots.iter().enumerate().filter_map(is_good);
        let low = walk.nth(a.min(b))?;
        let high = if n == 1 { low } else { walk.nth(a.abs_diff(b) - 1)? };
        // In the order drawn, which decides between equals.
        Some(if a < b { (low, high) } else { (high, low) })
    }

    fn lower(&self, a: usize, b: usize, now: Instant) -> usize {
        if self.slots[b].load.is_below(&self.slots[a].load, now) { b } else { a }
    }

    fn last_resort(
        &mut self,
        now: Instant,
        excluded: impl Fn(&T) -> bool,
    ) -> Result<usize, NoPick> {
        if self.slots.is_empty() {
            return Err(NoPick::Empty);
        }
        if self.slots.iter().all(|slot| excluded(&slot.endpoint)) {
            return Err(NoPick::Excluded);
        }
        let may_try = |slot: &Slot<T>| {
            slot.load.standing(now) == Standing::LastResort && !excluded(&slot.endpoint)
        };
        let (a, b) = self.search(may_try).ok_or(NoPick::Failfast)?;
        Ok(self.lower(a, b, now))
    }
}

impl<T> Pick<T> {
    /// The endpoint.
    #[must_use]
    pub fn endpoint(&self) -> &T {
        &self.slot.endpoint
    }

    /// A connection to it was made: its ejection, if any, ends.
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

    /// It failed after the connection was made: counts as a slow answer.
    pub fn penalise(&self, now: Instant) {
        self.slot.load.observe(PENALTY, now);
    }
}

impl<T> Drop for Pick<T> {
    fn drop(&mut self) {
        self.slot.load.leave();
    }
}

#[cfg(test)]
mod tests;
