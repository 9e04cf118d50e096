//! Decides at the beginning of a request which open taps may show it.

use std::cell::RefCell;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use super::{Carried, IS_ON, MAX_TAPS, Tap, Taps};
use crate::edge::{Direction, EdgeLabels};
use crate::registry::{Arrival, Outcome};

/// A worker's copy of the open taps. The worker reads them again when they have changed.
#[derive(Debug, Default)]
pub(crate) struct OpenTaps(RefCell<(u64, Vec<Arc<Tap>>)>);

/// A request that begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arriving<'l> {
    pub(crate) at: Instant,
    pub(crate) arrival: Arrival,
    pub(crate) method: &'l str,
    pub(crate) target: &'l [u8],
}

/// The taps that may show a request, and the request's trace context.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) by: Vec<Arc<Tap>>,
    pub(crate) carried: Carried,
}

/// The numbers of the taps whose filter may match a request, but whose rate or number of requests is used up. The
/// numbers of taps are not reused; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beyond([u32; MAX_TAPS]);

impl OpenTaps {
    /// The taps that may show the request, and those whose rate or number of requests is used up. Allocates only if
    /// some tap may show it. Headers are read only if a tap follows requests.
    pub(crate) fn wanted<'h, H>(
        &self,
        taps: &Taps,
        request: Arriving<'_>,
        headers: impl FnOnce() -> H,
    ) -> (Wanted, Beyond)
    where
        H: Iterator<Item = (&'h str, &'h [u8])>,
    {
        let version = taps.version();
        let mut open = self.0.borrow_mut();
        if version & IS_ON == 0 {
            // Drops the references to closed taps.
            if !open.1.is_empty() {
                *open = Default::default();
            }
            return Default::default();
        }
        if open.0 != version {
            match taps.try_read() {
                Some(read) => *open = read,
                None => return Default::default(),
            }
        }
        let follows = |tap: &Arc<Tap>| tap.filter.follow.or(tap.filter.followed).is_some();
        let mut wanted = Wanted::default();
        if open.1.iter().any(follows) {
            wanted.carried = Carried::read(headers());
        }
        let mut beyond = Beyond::default();
        for (tap, place) in open.1.iter().zip(&mut beyond.0) {
            if !tap.may_show(request, wanted.carried.followed) {
                continue;
            }
            match tap.is_beyond(request.at) {
                true => *place = tap.number,
                false => wanted.by.push(Arc::clone(tap)),
            }
        }
        (wanted, beyond)
    }

    /// Counts a request that has ended, for each tap in `beyond` that matches the request and is still open.
    pub(crate) fn count(
        &self,
        taps: &Taps,
        beyond: Beyond,
        (edge, outcome): (&EdgeLabels, &Outcome),
    ) {
        for tap in &self.0.borrow().1 {
            if beyond.0.contains(&tap.number)
                && tap.filter.matches_edge(edge)
                && tap.filter.matches_status(outcome.status)
            {
                taps.sampled_out(tap);
            }
        }
    }
}

impl Beyond {
    /// Whether there is no tap whose rate or number of requests is used up.
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl Arrival {
    /// The direction, and the tap mark that the client's proxy has set.
    pub(crate) fn parts(self) -> (Direction, Option<NonZeroU64>) {
        match self {
            Self::Outbound => (Direction::Outbound, None),
            Self::Inbound { mark } => (Direction::Inbound, mark),
        }
    }
}

impl Tap {
    /// Whether the tap may show a request, by what is known when it begins.
    fn may_show(&self, request: Arriving<'_>, followed: Option<NonZeroU64>) -> bool {
        let (direction, mark) = request.arrival.parts();
        self.filter.direction.is_none_or(|wanted| wanted == direction)
            && (!self.filter.is_marked || mark.is_some())
            && self.filter.may_match(request.method, request.target, followed)
    }

    /// Whether the tap takes no further request now. Its rate and number do not apply if it only shows marked requests.
    fn is_beyond(&self, now: Instant) -> bool {
        !self.filter.is_marked && (self.is_spent(now) || !self.may_take())
    }
}
