//! The details of a request in progress. They are recorded only if an open tap may show the request, if it may have a
//! span, or if the access log has a field that needs them.

use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leno_tap::{BodyCopies, ProxyDecision, RequestLatency, TappedRequest};

use crate::access::{MAX_FIELD_BYTES, qualified};
use crate::edge::{Direction, EdgeLabels};
use crate::registry::Outcome;

use crate::tap::{
    Carried, MASK, MAX_COPIED, Mark, RoomForBodies, Tap, Taps, Wanted, is_secret, masked_target,
};

/// How many bytes of headers one event may have. With its target and decisions an event has a few KB, and a full queue
/// 2 MB.
const MAX_HEADER_BYTES: usize = 2048;
/// How many decisions one event may have: as many as a request with the most retries.
const MAX_DECISIONS: usize = 32;

/// The details of a request that a tap or a span shows, as far as they are known.
#[derive(Debug)]
pub(crate) struct Observed {
    taps: Taps,
    /// The open taps that may show the request.
    open: Vec<Arc<Tap>>,
    protocol: &'static str,
    method: Box<str>,
    target: Box<[u8]>,
    authority: Box<str>,
    headers: Vec<(Box<str>, Box<str>)>,
    /// A random number that the client's proxy sends to the server's, so that a tap can join the events of both. 0 is
    /// not used.
    mark: Cell<Option<NonZeroU64>>,
    /// The identity that the other side has proven: the server's on the outbound side, the client's on the inbound
    /// side.
    peer: RefCell<Option<Box<str>>>,
    route: Option<Box<str>>,
    retries: Cell<u32>,
    /// The trace context with which the request came.
    carried: Carried,
    /// The copies of the bodies; `None` unless an open tap wants bodies of this request.
    copies: Option<(BodyCopies, RoomForBodies)>,
    /// `None` unless an open tap wants the decisions on this request.
    decisions: Option<RefCell<Vec<(Instant, String)>>>,
    /// The taps that get the request; `None` until this is decided.
    chosen: RefCell<Option<Vec<Arc<Tap>>>>,
}

impl Observed {
    /// `wanted` are the taps that may show the request. `mark` is the tap mark that the client's proxy has set.
    pub(crate) fn new<'h>(
        taps: &Taps,
        (Wanted { by: open, carried }, mark): (Wanted, Option<NonZeroU64>),
        (protocol, method, target): (&'static str, &str, &[u8]),
        (authority, headers): (&str, impl Iterator<Item = (&'h str, &'h [u8])>),
    ) -> Self {
        let is_shown = open.iter().any(|tap| tap.filter.with_headers);
        let headers = if is_shown { shown(headers) } else { Vec::new() };
        let are_wanted = open.iter().any(|tap| tap.filter.with_decisions);
        let decisions = are_wanted.then(RefCell::default);
        Self {
            taps: taps.clone(),
            open,
            protocol,
            method: method.get(..MAX_FIELD_BYTES).unwrap_or(method).into(),
            target: target.get(..MAX_FIELD_BYTES).unwrap_or(target).into(),
            authority: authority.get(..MAX_FIELD_BYTES).unwrap_or(authority).into(),
            headers,
            mark: Cell::new(mark),
            peer: RefCell::default(),
            route: None,
            retries: Cell::new(0),
            carried,
            copies: None,
            decisions,
            chosen: RefCell::default(),
        }
        .with_copies()
    }

    /// Reserves memory for copies of the bodies, if a tap wants them.
    fn with_copies(mut self) -> Self {
        if !self.open.iter().any(|tap| tap.filter.with_bodies) {
            return self;
        }
        match self.taps.room_for_bodies() {
            Some(room) => self.copies = Some((BodyCopies::default(), room)),
            None => self.decided(|| {
                format!("bodies are not shown: those of {MAX_COPIED} other requests are copied now")
            }),
        }
        self
    }

    /// Where the beginnings of the bodies are copied to.
    pub(crate) fn copies(&self) -> Option<&BodyCopies> {
        self.copies.as_ref().map(|(copies, _)| copies)
    }

    /// Records a decision of the proxy about the request, if a tap wants decisions.
    pub(crate) fn decided(&self, what: impl FnOnce() -> String) {
        let Some(decisions) = &self.decisions else { return };
        let mut decisions = decisions.borrow_mut();
        if decisions.len() < MAX_DECISIONS {
            decisions.push((Instant::now(), what()));
        }
    }

    /// Records the client's identity.
    pub(crate) fn came_from(&self, peer: Option<Box<str>>) {
        self.peer.replace(peer);
    }

    pub(crate) fn routed(&mut self, route: Box<str>) {
        self.route = Some(route);
    }

    pub(crate) fn retried(&self) {
        self.retries.set(self.retries.get().saturating_add(1));
    }

    /// Must be called when the request is sent to this server. Returns the mark for the server's proxy, if a tap gets
    /// the request. `has_trace` says that the proxy forwards the request as part of a trace.
    pub(crate) fn mark(
        &self,
        edge: &EdgeLabels,
        peer: Option<Box<str>>,
        has_trace: bool,
    ) -> Option<Mark> {
        self.decided(|| {
            let server = qualified(&edge.server_namespace, &edge.server);
            let identity = peer.as_deref().unwrap_or("without mTLS");
            format!("goes to {server}, {identity}")
        });
        self.peer.replace(peer);
        let is_chosen = self.decide(edge);
        if is_chosen && self.mark.get().is_none() {
            self.mark.set(NonZeroU64::new(random()));
        }
        let number = self.mark.get().filter(|_| is_chosen)?;
        let follow = self.chosen.borrow().iter().flatten().find_map(|tap| tap.filter.follow);
        Some(Mark { number, follow, begins_trace: !has_trace && !self.carried.has_parent })
    }

    /// Chooses the taps that get the request, once. A tap that filters by status counts the request against its rate
    /// only at the request's end, when the status is known. Returns whether a tap was chosen.
    fn decide(&self, edge: &EdgeLabels) -> bool {
        let mut chosen = self.chosen.borrow_mut();
        let chosen = chosen.get_or_insert_with(|| {
            let now = Instant::now();
            let gets = |tap: &&Arc<Tap>| {
                let is_sampled_now = tap.filter.status.is_none() && !tap.filter.is_marked;
                tap.filter.matches_edge(edge) && (!is_sampled_now || self.taps.afford(tap, now))
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
            let decisions = match tap.filter.with_decisions {
                true => self.decisions(edge.direction, at),
                false => Vec::new(),
            };
            let followed = self.carried.followed.or(tap.filter.follow);
            let followed = followed.map(|id| format!("{id:016x}").into());
            let copies = self.copies().filter(|_| tap.filter.with_bodies);
            let request = TappedRequest {
                headers,
                decisions,
                followed,
                request_body: copies.and_then(|copies| copies.request.shown()),
                response_body: copies.and_then(|copies| copies.response.shown()),
                ..self.ended(edge, at, outcome)
            };
            self.taps.queue(tap, request);
        }
    }

    fn decisions(&self, direction: Direction, at: Instant) -> Vec<ProxyDecision> {
        let by = match direction {
            Direction::Outbound => "client proxy",
            Direction::Inbound => "server proxy",
        };
        let Some(decisions) = &self.decisions else { return Vec::new() };
        let decision = |(then, what): &(Instant, String)| ProxyDecision {
            by: by.into(),
            at_us: micros(then.saturating_duration_since(at)),
            what: what.as_str().into(),
        };
        decisions.borrow().iter().map(decision).collect()
    }

    /// The details of the request at its end.
    pub(crate) fn ended(&self, edge: &EdgeLabels, at: Instant, outcome: &Outcome) -> TappedRequest {
        let since = |then: Instant| micros(then.saturating_duration_since(at));
        let total = at.elapsed();
        let began = SystemTime::now().checked_sub(total).unwrap_or(UNIX_EPOCH);
        let times = (micros(total), outcome.sent.map(since), outcome.first_byte.map(since));
        let peer = self.peer.borrow().clone();
        let (latency, (client_identity, server_identity)) = match edge.direction {
            Direction::Outbound => {
                (RequestLatency::of_client(times.0, times.1, times.2), (None, peer))
            }
            Direction::Inbound => {
                (RequestLatency::of_server(times.0, times.1, times.2), (peer, None))
            }
        };
        TappedRequest {
            at_unix_us: micros(began.duration_since(UNIX_EPOCH).unwrap_or_default()),
            direction: edge.direction.as_str().into(),
            client: qualified(&edge.client_namespace, &edge.client),
            client_identity,
            server: qualified(&edge.server_namespace, &edge.server),
            server_identity,
            service: edge.service.to_string(),
            mtls: edge.mtls,
            protocol: self.protocol.into(),
            method: self.method.clone(),
            authority: self.authority.clone(),
            target: String::from_utf8_lossy(&masked_target(&self.target)).into(),
            route: self.route.clone(),
            retries: self.retries.get(),
            status: outcome.status,
            grpc_status: outcome.grpc_status,
            request_bytes: outcome.bytes.0,
            response_bytes: outcome.bytes.1,
            error: outcome.error.map(Into::into),
            latency,
            headers: Vec::new(),
            decisions: Vec::new(),
            request_body: None,
            response_body: None,
            followed: None,
            mark: self.mark.get().map(|mark| format!("{mark:016x}").into()),
        }
    }
}

/// Headers without secrets, up to a limit of bytes.
fn shown<'h>(headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Vec<(Box<str>, Box<str>)> {
    let mut left = MAX_HEADER_BYTES;
    let mut shown = Vec::new();
    for (name, value) in headers {
        let Some(rest) = left.checked_sub(name.len().saturating_add(value.len())) else { break };
        left = rest;
        let value = match is_secret(name) {
            true => MASK.into(),
            false => String::from_utf8_lossy(value).into(),
        };
        shown.push((name.into(), value));
    }
    shown
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The path of a target. For `http://host/a?b` it is `/a`.
pub(crate) fn path(target: &[u8]) -> &[u8] {
    let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
    let target = target.get(..end).unwrap_or_default();
    let Some(scheme) = target.windows(3).position(|part| part == b"://") else { return target };
    let rest = target.get(scheme.saturating_add(3)..).unwrap_or_default();
    let slash = rest.iter().position(|byte| *byte == b'/');
    slash.and_then(|slash| rest.get(slash..)).unwrap_or(b"/")
}

/// A number that differs between requests; it is not secret.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
