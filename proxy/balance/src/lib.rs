//! Peak-EWMA balancing over power of two choices.
//!
//! A [`Balancer`] belongs to one worker and one service port. It knows endpoints only as values
//! with a key; it knows nothing of sockets, protocols or discovery. [`Balancer::pick`] hands out a
//! [`Pick`], which counts as load on its endpoint until it is dropped and takes the measured time
//! or the failure back.
//!
//! ```text
//! pick: two endpoints at random ──► the one with less  peak-EWMA(rtt) x (in flight + 1)
//! ```
//!
//! The estimate jumps to a slower sample at once and decays towards faster ones, so that an
//! endpoint that stalls is left within one answer and tried again gently. An endpoint that
//! cannot be connected to is ejected for a while; when all are, `pick` says so at once
//! (failfast) instead of queueing.

mod estimate;
mod random;

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::rc::Rc;
use std::time::{Duration, Instant};

use estimate::Estimate;
use random::Random;

/// First wait after a failed connection before the endpoint is picked again. Doubles with each
/// failure in a row: a restarting process is back within a few hundred milliseconds.
pub const EJECTION_MIN: Duration = Duration::from_millis(100);
/// Longest such wait, so that an endpoint that came back is found soon.
pub const EJECTION_MAX: Duration = Duration::from_secs(10);

/// What an endpoint is known by across updates.
pub trait Keyed {
    /// The type of the key.
    type Key: Eq + Hash + Clone;
    /// The key: two endpoints with the same key are one, and keep one history.
    fn key(&self) -> Self::Key;
}

/// The endpoints of one service port and what this worker knows of them.
#[derive(Debug)]
pub struct Balancer<T: Keyed> {
    members: RefCell<Vec<Rc<Member<T>>>>,
    random: Random,
}

/// One endpoint with its measured state.
#[derive(Debug)]
struct Member<T> {
    value: T,
    estimate: Estimate,
    in_flight: Cell<u32>,
    failures: Cell<u32>,
    ejected_until: Cell<Option<Instant>>,
}

/// An endpoint chosen for one request or connection.
#[derive(Debug)]
pub struct Pick<T> {
    member: Rc<Member<T>>,
}

/// The state of an endpoint, for `/config` and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberState {
    /// The estimated time of an answer.
    pub estimate: Duration,
    /// Picks that are not dropped yet.
    pub in_flight: u32,
    /// Whether it is left out for now.
    pub ejected: bool,
}

impl<T: Keyed> Balancer<T> {
    /// A balancer over `endpoints`.
    #[must_use]
    pub fn new(endpoints: impl IntoIterator<Item = T>) -> Self {
        let balancer = Self { members: RefCell::default(), random: Random::new() };
        balancer.update(endpoints);
        balancer
    }

    /// Replaces the endpoints. One whose key was there before stays as it is, with its history and
    /// its load: whatever must not be kept across a change belongs into the key.
    pub fn update(&self, endpoints: impl IntoIterator<Item = T>) {
        let mut old: std::collections::HashMap<T::Key, Rc<Member<T>>> =
            self.members.take().into_iter().map(|member| (member.value.key(), member)).collect();
        let members = endpoints.into_iter().map(|value| match old.remove(&value.key()) {
            Some(member) => member,
            None => Rc::new(Member::new(value)),
        });
        self.members.replace(members.collect());
    }

    /// Chooses an endpoint: none of those for which `excluded` is true, and no ejected one.
    /// `None` when nothing is left, at once: the caller refuses the request (failfast).
    pub fn pick(&self, excluded: impl Fn(&T) -> bool) -> Option<Pick<T>> {
        let now = Instant::now();
        let members = self.members.borrow();
        let usable = |member: &Member<T>| !member.is_ejected(now) && !excluded(&member.value);
        let first = self.random_member(&members, &usable, None)?;
        let second = self.random_member(&members, &usable, Some(first));
        let cheaper = match second {
            Some(second) if members[second].cost(now) < members[first].cost(now) => second,
            _ => first,
        };
        let member = Rc::clone(&members[cheaper]);
        member.in_flight.set(member.in_flight.get() + 1);
        Some(Pick { member })
    }

    /// How many endpoints there are, ejected ones included.
    pub fn len(&self) -> usize {
        self.members.borrow().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.borrow().is_empty()
    }

    /// Shows each endpoint with its state.
    pub fn for_each(&self, mut show: impl FnMut(&T, MemberState)) {
        let now = Instant::now();
        for member in self.members.borrow().iter() {
            let state = MemberState {
                estimate: member.estimate.now(now),
                in_flight: member.in_flight.get(),
                ejected: member.is_ejected(now),
            };
            show(&member.value, state);
        }
    }

    /// A usable member other than `not`, each with the same chance: a random start, then onwards
    /// over those that cannot be used. Where most can, one step is enough.
    fn random_member(
        &self,
        members: &[Rc<Member<T>>],
        usable: &impl Fn(&Member<T>) -> bool,
        not: Option<usize>,
    ) -> Option<usize> {
        let fits = |at: &usize| Some(*at) != not && usable(&members[*at]);
        let tries = members.len().min(4);
        (0..tries)
            .map(|_| self.random.below(members.len()))
            .find(fits)
            .or_else(|| self.one_of_all(members.len(), fits))
    }

    /// Reservoir sampling over all members: exact where few can be used.
    fn one_of_all(&self, len: usize, fits: impl Fn(&usize) -> bool) -> Option<usize> {
        let mut chosen = None;
        for (seen, at) in (0..len).filter(fits).enumerate() {
            if self.random.below(seen + 1) == 0 {
                chosen = Some(at);
            }
        }
        chosen
    }
}

impl<T> Member<T> {
    fn new(value: T) -> Self {
        Self {
            value,
            estimate: Estimate::new(Instant::now()),
            in_flight: Cell::new(0),
            failures: Cell::new(0),
            ejected_until: Cell::new(None),
        }
    }

    fn is_ejected(&self, now: Instant) -> bool {
        self.ejected_until.get().is_some_and(|until| now < until)
    }

    fn cost(&self, now: Instant) -> f64 {
        self.estimate.now(now).as_secs_f64() * f64::from(self.in_flight.get() + 1)
    }
}

impl<T> Pick<T> {
    /// The endpoint.
    pub fn endpoint(&self) -> &T {
        &self.member.value
    }

    /// An answer came after `rtt`.
    pub fn answered(&self, rtt: Duration) {
        self.member.estimate.observe(rtt, Instant::now());
        self.member.failures.set(0);
        self.member.ejected_until.set(None);
    }

    /// No connection could be made: the endpoint is left out for [`EJECTION_MIN`], twice that
    /// after the next failure, and so on up to [`EJECTION_MAX`].
    pub fn failed(&self) {
        let failures = self.member.failures.get();
        let wait = EJECTION_MIN.saturating_mul(1 << failures.min(16)).min(EJECTION_MAX);
        self.member.failures.set(failures.saturating_add(1));
        self.member.ejected_until.set(Some(Instant::now() + wait));
    }
}

impl<T> Drop for Pick<T> {
    fn drop(&mut self) {
        self.member.in_flight.set(self.member.in_flight.get() - 1);
    }
}
