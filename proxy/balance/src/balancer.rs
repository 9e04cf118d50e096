//! The balancer: a set of endpoints, and the choice among them for each request.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the choice is among the balancer's own slots"
)]

mod choose;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_types::traffic::{Ejection, SuccessRate};

use crate::group::Group;
use crate::load::Health;
use crate::rng::Rng;
use crate::settings::{Algorithm, Candidate, Locality, Nearness, Settings};
use crate::slot::{Pick, Slot};
use crate::tables::Table;

/// How often the number of an endpoint's past ejections is decreased by one, if success rates are not compared.
const FORGET: Duration = Duration::from_secs(10);

/// The smallest number of endpoints with enough requests among which success rates are compared. If only two differ, it
/// is unknown which of them is the outlier.
const MIN_COMPARED: u32 = 3;

/// An endpoint is ejected only if its success rate is lower than the others' by at least this difference. Without this
/// condition, any failure would be many standard deviations away if all others are perfect.
const MIN_GAP: f64 = 0.05;

/// An endpoint is ejected only if the difference is also at least this many standard errors of the comparison. Equally
/// good endpoints differ by chance, because each has a limited number of requests. By chance the difference exceeds
/// four standard errors once in 30,000 comparisons.
const MIN_ERRORS: f64 = 4.0;

/// Chooses among the endpoints of one service, for one worker (a thread of the proxy).
#[derive(Debug)]
pub struct Balancer<T> {
    settings: Settings,
    /// The endpoints, the nearest first.
    slots: Vec<Rc<Slot<T>>>,
    /// The keys of the endpoints with their indices in `slots`, sorted by key, to find the endpoint of a session.
    by_key: Vec<(u64, u32)>,
    /// The number of endpoints on this node, and the number of endpoints on this node or in this zone.
    near: [usize; 2],
    /// The largest weight of an endpoint.
    heaviest: u32,
    /// Until this time, some new endpoints have less than their full share.
    growing_until: Option<Instant>,
    /// Whether the endpoints differ in weight.
    weighted: bool,
    /// For round robin: the index of the slot whose turn is next.
    cursor: usize,
    table: Table,
    group: Rc<Group>,
    /// When success rates are compared next; `None` before the first pick.
    compare_at: Option<Instant>,
    rng: Rng,
}

/// Properties of a request that affect the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affinity {
    /// The hash of the value by which requests are kept together, for [`Algorithm::RingHash`] and
    /// [`Algorithm::Maglev`]. If there is none, the choice is random.
    pub hash: Option<u64>,
    /// The key of the endpoint that serves the request's session. This endpoint is chosen as long as it may be.
    pub session: Option<u64>,
}

/// Why no endpoint can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPick {
    /// The service has no ready endpoint.
    #[error("no ready endpoint")]
    Empty,
    /// The caller excluded all endpoints.
    #[error("every endpoint has been tried")]
    Excluded,
    /// Connecting to every endpoint has failed recently; see [`crate::LAST_RESORT`].
    #[error("no endpoint can be connected to")]
    Failfast,
    /// Each endpoint that could be picked has as many requests in flight as allowed; see
    /// [`Settings::endpoint_requests`].
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

    /// The number of endpoints, including ejected ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are no endpoints.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of ejected endpoints.
    #[must_use]
    pub fn ejected(&self, now: Instant) -> usize {
        let out = |slot: &&Rc<Slot<T>>| slot.load.standing(now) != Health::Good;
        self.slots.iter().filter(out).count()
    }

    /// How many times endpoints were ejected for failed requests so far.
    #[must_use]
    pub fn ejections(&self) -> u64 {
        self.group.ejections()
    }

    /// The endpoints, each with its number of requests in flight, for `/config`.
    pub fn endpoints(&self) -> impl Iterator<Item = (&T, u32)> {
        let shown = |slot: &Rc<Slot<T>>| slot.load.in_flight();
        self.slots.iter().map(move |slot| (&*slot.endpoint, shown(slot)))
    }

    /// The endpoints that are ejected at `now`, each with the reason, for metrics: `unreachable` if no
    /// connection to it could be made, `failing` if its requests failed.
    pub fn ejected_endpoints(&self, now: Instant) -> impl Iterator<Item = (&T, &'static str)> {
        let reason = move |slot: &Rc<Slot<T>>| slot.load.standing(now).reason();
        self.slots.iter().filter_map(move |slot| Some((&*slot.endpoint, reason(slot)?)))
    }
}

impl<T: Eq + Hash> Balancer<T> {
    /// A balancer with no endpoint yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A balancer without endpoints. A test can repeat its random choices.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self::with_rng(Rng::seeded(seed))
    }

    /// Uses other settings from now on. The state of the endpoints is kept.
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

    /// Replaces the endpoints. All get the same weight and the same nearness.
    pub fn update(&mut self, endpoints: impl IntoIterator<Item = T>) {
        let candidate = |endpoint: T| {
            let mut hasher = DefaultHasher::new();
            endpoint.hash(&mut hasher);
            let key = hasher.finish();
            Candidate { endpoint, key, weight: 1, nearness: Nearness::Elsewhere }
        };
        self.replace(None, endpoints.into_iter().map(candidate));
    }

    /// Replaces the endpoints. An endpoint that remains, with the same key and nearness, keeps its estimate, its
    /// ejection and its requests in flight. Picks of a removed endpoint stay valid until they are dropped. Duplicates
    /// count once. An endpoint that joins an existing set starts slowly if the settings say so.
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

    /// Updates everything that is derived from the set of endpoints.
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

    /// If it is time to compare: ejects endpoints that succeed less often than the others, and begins the next
    /// interval.
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
            // Each endpoint is compared only with the others. If the mean included the endpoint itself, one bad
            // endpoint among a few would never stand out.
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

    /// Chooses an endpoint. Skips those for which `excluded` returns true, such as those that a retry has already
    /// tried.
    ///
    /// # Errors
    /// [`NoPick`], without waiting.
    pub fn pick(&mut self, now: Instant, excluded: impl Fn(&T) -> bool) -> Result<Pick<T>, NoPick> {
        self.pick_for(now, Affinity::default(), excluded)
    }

    /// Chooses an endpoint for a request with a hash or a session.
    ///
    /// # Errors
    /// [`NoPick`], without waiting.
    pub fn pick_for(
        &mut self,
        now: Instant,
        wanted: Affinity,
        excluded: impl Fn(&T) -> bool,
    ) -> Result<Pick<T>, NoPick> {
        self.compare(now);
        let limit = self.settings.endpoint_requests;
        let panic = self.group.ejected() > 0 && self.group.is_panic();
        let may = |slot: &Slot<T>, ejected_too: bool| {
            let standing = slot.load.standing(now);
            let good = standing == Health::Good || ejected_too && standing == Health::Ejected;
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

    /// Chooses an endpoint that cannot be connected to but may be tried again, or returns why no endpoint can be
    /// chosen.
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
            let can = matches!(slot.load.standing(now), Health::Good | Health::Ejected);
            any_full |= can && slot.load.in_flight() >= limit;
        }
        if all_excluded {
            return Err(NoPick::Excluded);
        }
        if any_full {
            return Err(NoPick::Full);
        }
        let may_try = |slot: &Slot<T>| {
            slot.load.standing(now) == Health::LastResort && !excluded(&slot.endpoint)
        };
        let all = self.slots.len();
        self.lower_of_two(all, now, may_try).ok_or(NoPick::Failfast)
    }

    /// For each step of the choice, the number of the nearest endpoints among which to choose. 0 skips the step.
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
