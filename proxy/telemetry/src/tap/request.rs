//! A request while it is in progress and a tap is open.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use crate::access::MAX_FIELD_BYTES;
use crate::edge::{Direction, EdgeLabels};
use crate::registry::Outcome;

use super::secrets::masked_target;
use super::{Event, MASK, Tap, Taps, Times, is_secret};

/// Most bytes of the headers of one event, so that a full queue is at most 1 MB.
const MAX_HEADER_BYTES: usize = 2048;

/// What a tap shows of a request, as far as it is known.
#[derive(Debug)]
pub struct Tapped {
    taps: Taps,
    open: Vec<Arc<Tap>>,
    protocol: &'static str,
    method: Box<str>,
    target: Box<[u8]>,
    authority: Box<str>,
    headers: Vec<(Box<str>, Box<str>)>,
    mark: Cell<Option<NonZeroU64>>,
    peer: RefCell<Option<Box<str>>>,
    route: Option<Box<str>>,
    retries: Cell<u32>,
    /// The taps that get the request, once that is decided.
    chosen: RefCell<Option<Vec<Arc<Tap>>>>,
}

impl Tapped {
    pub(crate) fn new(taps: &Taps, protocol: &'static str, method: &str, target: &[u8]) -> Self {
        Self {
            taps: taps.clone(),
            open: taps.try_read(),
            protocol,
            method: method.into(),
            target: target.get(..MAX_FIELD_BYTES).unwrap_or(target).into(),
            authority: Box::default(),
            headers: Vec::new(),
            mark: Cell::default(),
            peer: RefCell::default(),
            route: None,
            retries: Cell::new(0),
            chosen: RefCell::default(),
        }
    }

    pub(crate) fn describe<'h>(
        &mut self,
        authority: &str,
        headers: impl Iterator<Item = (&'h str, &'h [u8])>,
    ) {
        self.authority = authority.get(..MAX_FIELD_BYTES).unwrap_or(authority).into();
        if !self.open.iter().any(|tap| tap.filter.with_headers) {
            return;
        }
        let mut left = MAX_HEADER_BYTES;
        for (name, value) in headers {
            let Some(rest) = left.checked_sub(name.len().saturating_add(value.len())) else {
                break;
            };
            left = rest;
            let value = match is_secret(name) {
                true => MASK.into(),
                false => String::from_utf8_lossy(value).into(),
            };
            self.headers.push((name.into(), value));
        }
    }

    /// The mark that the client's proxy has set, and the client's identity.
    pub(crate) fn came_from(&self, mark: Option<NonZeroU64>, peer: Option<Box<str>>) {
        self.mark.set(mark);
        self.peer.replace(peer);
    }

    pub(crate) fn routed(&mut self, route: Box<str>) {
        self.route = Some(route);
    }

    pub(crate) fn retried(&self) {
        self.retries.set(self.retries.get().saturating_add(1));
    }

    /// The request is sent to this server now. Returns the mark for the server's proxy, if a tap gets the request.
    pub(crate) fn mark(&self, edge: &EdgeLabels, peer: Option<Box<str>>) -> Option<NonZeroU64> {
        self.peer.replace(peer);
        let is_chosen = self.decide(edge);
        if is_chosen && self.mark.get().is_none() {
            self.mark.set(NonZeroU64::new(random()));
        }
        self.mark.get().filter(|_| is_chosen)
    }

    /// Chooses the taps that get the request, once. Those that filter by status may leave it out at the end, so that
    /// it is taken out of their rate then. Returns whether there is one.
    fn decide(&self, edge: &EdgeLabels) -> bool {
        let mut chosen = self.chosen.borrow_mut();
        let chosen = chosen.get_or_insert_with(|| {
            let now = Instant::now();
            let is_marked = edge.direction == Direction::Inbound && self.mark.get().is_some();
            let known = (&*self.method, path(&self.target), is_marked);
            let gets = |tap: &&Arc<Tap>| {
                let is_sampled_now = tap.filter.status.is_none() && !tap.filter.is_marked;
                tap.filter.matches(known, edge) && (!is_sampled_now || self.taps.afford(tap, now))
            };
            self.open.iter().filter(gets).cloned().collect()
        });
        !chosen.is_empty()
    }

    pub(crate) fn end(&self, edge: &EdgeLabels, at: Instant, outcome: &Outcome) {
        if !self.decide(edge) {
            return;
        }
        let chosen = self.chosen.borrow();
        for tap in chosen.iter().flatten() {
            let is_wanted = tap.filter.matches_status(outcome.status);
            let is_sampled_now = tap.filter.status.is_some() && !tap.filter.is_marked;
            if !is_wanted || is_sampled_now && !self.taps.afford(tap, Instant::now()) {
                continue;
            }
            let headers = if tap.filter.with_headers { self.headers.clone() } else { Vec::new() };
            let event = Event { headers, ..self.event(edge, at, outcome) };
            self.taps.queue(tap, event);
        }
    }

    fn event(&self, edge: &EdgeLabels, at: Instant, outcome: &Outcome) -> Event {
        let since = |then: Instant| then.saturating_duration_since(at);
        let total = at.elapsed();
        let now = SystemTime::now();
        Event {
            at: now.checked_sub(total).unwrap_or(now),
            edge: edge.clone(),
            peer: self.peer.borrow().clone(),
            mark: self.mark.get(),
            protocol: self.protocol,
            method: self.method.clone(),
            authority: self.authority.clone(),
            target: masked_target(&String::from_utf8_lossy(&self.target)).into(),
            route: self.route.clone(),
            retries: self.retries.get(),
            status: outcome.status,
            grpc_status: outcome.grpc_status,
            bytes: outcome.bytes,
            error: outcome.error,
            times: Times {
                sent: outcome.sent.map(since),
                first_byte: outcome.first_byte.map(since),
                total,
            },
            headers: Vec::new(),
        }
    }
}

/// The path of a target: of `http://host/a?b` it is `/a`.
fn path(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
    let target = target.get(..end).unwrap_or_default();
    let Some(scheme) = target.windows(3).position(|part| part == b"://") else { return target };
    let rest = target.get(scheme.saturating_add(3)..).unwrap_or_default();
    let slash = rest.iter().position(|byte| *byte == b'/');
    slash.and_then(|slash| rest.get(slash..)).unwrap_or(b"/")
}

/// Differs from request to request; no secret.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
