//! The balancer: its set of endpoints, and the way from a request to one of them.

mod choose;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_types::traffic::{Ejection, SuccessRate};

use crate::group::Group;
use crate::load::Standing;
use crate::rng::Rng;
use crate::settings::{Algorithm, Candidate, Locality, Nearness, Settings};
use crate::slot::{Pick, Slot};
use crate::tables::Table;

/// How often ejections are forgotten by one where success rates are not compared.
const FORGET: Duration = Duration::from_secs(10);

/// With fewer endpoints that were seen often enough nobody's success rate is compared: of two that differ
/// nobody can say which one is odd.
const MIN_COMPARED: u32 = 3;

/// How far below the others' success rate an endpoint must lie at least: where all others are
/// perfect, any deviation is many standard deviations.
const MIN_GAP: f64 = 0.05;

/// How many standard errors below it at least: what equals differ by, because each of them was seen
/// for so many requests only. Four are exceeded by chance once in 30,000 comparisons.
const MIN_ERRORS: f64 = 4.0;

/// Chooses among the endpoints of one service, for one worker.
#[derive(Debug)]
pub struct Balancer<T> {
    settings: Settings,
    /// Nearest first.
    slots: Vec<Rc<Slot<T>>>,
    /// By key, for sessions.
    by_key: Vec<(u64, u32)>,
    /// How many are on the node, and how many in the zone with these.
    near: [usize; 2],
    heaviest: u32,
    /// While new ones grow to their share.
    growing_until: Option<Instant>,
    /// Whether they differ in weight.
    weighted: bool,
    cursor: usize,
    table: Table,
    group: Rc<Group>,
    compare_at: Option<Instant>,
    rng: Rng,
}

/// What a request asks of the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The hash of what the request is to be kept together by, for [`Algorithm::RingHash`] and
    /// [`Algorithm::Maglev`]. Without it the choice is random.
    pub hash: Option<u64>,
    /// The key of the endpoint that its session is on; it is taken while it is good.
    pub session: Option<u64>,
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
    /// Each has as many requests in flight as it may; see [`Settings::endpoint_requests`].
    #[error("every endpoint has as many requests as it may")]
    Full,
}

impl<T> Default for Balancer<T> {
    fn default() -> Self {
        Self::with_rng(Rng::random())
    }
}

impl<T> Balancer<T> {
    fn with_rng(rng: Rng) -> Self {
        Self {
            settings: Settings::default(),
            slots: Vec::new(),
            by_key: Vec::new(),
            near: [0; 2],
            heaviest: 1,
            growing_until: None,
            weighted: false,
            cursor: 0,
            table: Table::None,
            group: Rc::default(),
            compare_at: None,
            rng,
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

    /// Ejections for failed requests so far.
    #[must_use]
    pub fn ejections(&self) -> u64 {
        self.group.ejections()
    }

    /// The endpoints with what is in flight on each, for `/config`.
    pub fn endpoints(&self) -> impl Iterator<Item = (&T, u32)> {
        let shown = |slot: &Rc<Slot<T>>| slot.load.in_flight();
        self.slots.iter().map(move |slot| (&*slot.endpoint, shown(slot)))
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
        Self::with_rng(Rng::seeded(seed))
    }

    /// Chooses in another way from now on; what is known of the endpoints stays.
    pub fn configure(&mut self, settings: Settings) {
        let rebuild = settings.algorithm != self.settings.algorithm;
        self.settings = settings;
        self.group.set_ejection(settings.ejection);
        if !self.compares() {
            for slot in &self.slots {
                slot.load.take_back();
            }
            self.group.set_total(self.slots.len(), 0);
        }
        if rebuild {
            self.build_table();
        }
    }

    /// Replaces the endpoints, all of the same weight and none nearer than another.
    pub fn update(&mut self, endpoints: impl IntoIterator<Item = T>) {
        let candidate = |endpoint: T| {
            let mut hasher = DefaultHasher::new();
            endpoint.hash(&mut hasher);
            let key = hasher.finish();
            Candidate { endpoint, key, weight: 1, nearness: Nearness::Elsewhere }
        };
        self.replace(None, endpoints.into_iter().map(candidate));
    }

    /// Replaces the endpoints. One that stays keeps its estimate, its ejection and what is in flight
    /// on it; picks of one that goes stay valid until they are dropped. Duplicates count once. One
    /// that comes to others starts slowly, if the settings say so.
    pub fn update_with(
        &mut self,
        now: Instant,
        candidates: impl IntoIterator<Item = Candidate<T>>,
    ) {
        self.replace(Some(now), candidates.into_iter());
    }

    fn replace(&mut self, now: Option<Instant>, candidates: impl Iterator<Item = Candidate<T>>) {
        let keyed = |slot: Rc<Slot<T>>| (Rc::clone(&slot.endpoint), slot);
        let mut old: HashMap<Rc<T>, Rc<Slot<T>>> = self.slots.drain(..).map(keyed).collect();
        let added = now.filter(|_| !old.is_empty());
        let mut new: HashMap<Rc<T>, ()> = HashMap::with_capacity(old.len());
        for Candidate { endpoint, key, weight, nearness } in candidates {
            if new.contains_key(&endpoint) {
                continue;
            }
            let known = old.remove(&endpoint);
            let slot = match known.filter(|slot| slot.key == key && slot.nearness == nearness) {
                Some(slot) => slot,
                None => {
                    let about = (key, weight, nearness);
                    Rc::new(Slot::new(endpoint, about, added, &self.group))
                }
            };
            slot.set_weight(weight);
            new.insert(Rc::clone(&slot.endpoint), ());
            self.slots.push(slot);
        }
        for slot in old.values() {
            slot.listed.set(false);
        }
        if added.is_some() && self.settings.slow_start > Duration::ZERO {
            self.growing_until = added.map(|added| added + self.settings.slow_start);
        }
        self.arrange();
    }

    /// Draws the conclusions from a new set.
    fn arrange(&mut self) {
        self.slots.sort_by_key(|slot| slot.nearness);
        let up_to = |nearness| self.slots.partition_point(|slot| slot.nearness <= nearness);
        self.near = [up_to(Nearness::Node), up_to(Nearness::Zone)];
        let weights = || self.slots.iter().map(|slot| slot.weight());
        self.heaviest = weights().max().unwrap_or(1);
        self.weighted = weights().any(|weight| weight != self.heaviest);
        let ejected = self.slots.iter().filter(|slot| slot.load.is_ejected()).count();
        self.group.set_total(self.slots.len(), ejected);
        self.by_key.clear();
        self.by_key.extend((0..).zip(&self.slots).map(|(at, slot)| (slot.key, at)));
        self.by_key.sort_unstable();
        self.build_table();
    }

    fn build_table(&mut self) {
        let keys = || -> Vec<(u64, u32)> {
            self.slots.iter().map(|slot| (slot.key, slot.weight())).collect()
        };
        self.table = match self.settings.algorithm {
            Algorithm::RingHash => Table::ring(&keys()),
            Algorithm::Maglev => Table::maglev(&keys()),
            _ => Table::None,
        };
    }

    /// Whether endpoints are ejected for failed requests.
    fn compares(&self) -> bool {
        let Ejection { consecutive_failures, success_rate, .. } = self.settings.ejection;
        consecutive_failures.is_some() || success_rate.is_some()
    }

    /// Ejects endpoints that succeed less often than the others, when it is time to compare.
    fn compare(&mut self, now: Instant) {
        if !self.compares() || self.compare_at.is_some_and(|at| now < at) {
            return;
        }
        let rate = self.settings.ejection.success_rate;
        let first = self.compare_at.is_none();
        self.compare_at = Some(now + rate.map_or(FORGET, |rate| rate.interval));
        if first {
            return;
        }
        if let Some(rate) = rate {
            self.eject_below(rate, now);
        }
        for slot in &self.slots {
            slot.load.begin_interval();
        }
    }

    fn eject_below(&self, rate: SuccessRate, now: Instant) {
        let seen = |slot: &Slot<T>| slot.load.success_rate(rate.minimum_requests);
        let (mut n, mut sum, mut squares) = (0_u32, 0.0, 0.0);
        for (share, _) in self.slots.iter().filter_map(|slot| seen(slot)) {
            (n, sum, squares) = (n + 1, sum + share, squares + share * share);
        }
        if n < MIN_COMPARED {
            return;
        }
        for slot in &self.slots {
            let Some((share, requests)) = seen(slot) else { continue };
            // Itself among those it is compared with, one of few would never stand out.
            let others = f64::from(n - 1);
            let mean = (sum - share) / others;
            let variance = ((squares - share * share) / others - mean * mean).max(0.0);
            let spread = f64::from(rate.deviations_percent) / 100.0 * variance.sqrt();
            let error = (mean * (1.0 - mean)).max(0.0) / requests;
            if share < mean - spread.max(MIN_GAP).max(MIN_ERRORS * error.sqrt()) {
                slot.eject(now);
            }
        }
    }

    /// Chooses an endpoint that `excluded` does not hold for (those a retry has tried already).
    ///
    /// # Errors
    /// [`NoPick`], at once.
    pub fn pick(&mut self, now: Instant, excluded: impl Fn(&T) -> bool) -> Result<Pick<T>, NoPick> {
        self.pick_for(now, Wanted::default(), excluded)
    }

    /// The same for a request with a hash or a session.
    ///
    /// # Errors
    /// [`NoPick`], at once.
    pub fn pick_for(
        &mut self,
        now: Instant,
        wanted: Wanted,
        excluded: impl Fn(&T) -> bool,
    ) -> Result<Pick<T>, NoPick> {
        self.compare(now);
        let limit = self.settings.endpoint_requests;
        let panic = self.group.ejected() > 0 && self.group.is_panic();
        let may = |slot: &Slot<T>, ejected_too: bool| {
            let standing = slot.load.standing(now);
            let good = standing == Standing::Good || ejected_too && standing == Standing::Ejected;
            good && slot.load.in_flight() < limit && !excluded(&slot.endpoint)
        };
        let mut chosen = self.choose(now, wanted, |slot| may(slot, panic));
        if chosen.is_none() && !panic && self.group.ejected() > 0 {
            chosen = self.choose(now, wanted, |slot| may(slot, true));
        }
        let chosen = match chosen {
            Some(chosen) => chosen,
            None => self.last_resort(now, excluded)?,
        };
        Ok(Pick::new(&self.slots[chosen], now))
    }

    fn last_resort(
        &mut self,
        now: Instant,
        excluded: impl Fn(&T) -> bool,
    ) -> Result<usize, NoPick> {
        if self.slots.is_empty() {
            return Err(NoPick::Empty);
        }
        let limit = self.settings.endpoint_requests;
        let (mut all_excluded, mut any_full) = (true, false);
        for slot in self.slots.iter().filter(|slot| !excluded(&slot.endpoint)) {
            all_excluded = false;
            let can = matches!(slot.load.standing(now), Standing::Good | Standing::Ejected);
            any_full |= can && slot.load.in_flight() >= limit;
        }
        if all_excluded {
            return Err(NoPick::Excluded);
        }
        if any_full {
            return Err(NoPick::Full);
        }
        let may_try = |slot: &Slot<T>| {
            slot.load.standing(now) == Standing::LastResort && !excluded(&slot.endpoint)
        };
        let all = self.slots.len();
        self.lower_of_two(all, now, may_try).ok_or(NoPick::Failfast)
    }

    /// How many of the nearest endpoints to choose among, in the order to try them.
    fn ranges(&self) -> [usize; 3] {
        let all = self.slots.len();
        let (node, zone) = (self.near[0], self.near[1]);
        let room = |n: usize, nearness, overflow: u32| {
            let busy = self.group.in_flight(nearness) >= n as u64 * u64::from(overflow);
            if busy { 0 } else { n }
        };
        match self.settings.locality {
            Locality::Any => [0, 0, all],
            Locality::SameZone { overflow } => [0, room(zone, Nearness::Zone, overflow), all],
            Locality::SameNode { overflow } => {
                let near = room(node, Nearness::Node, overflow);
                [near, room(zone, Nearness::Zone, overflow), all]
            }
        }
    }
}

#[cfg(test)]
mod tests;
