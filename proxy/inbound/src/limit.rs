//! How many requests the workload takes.

use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_http::{Answer, HeaderLine, RequestView};
use leno_resilience::{KeyedLimit, MAX_KEYS, Rate, Verdict};
use leno_telemetry::{Counter, Registry};
use leno_types::Identity;
use leno_types::traffic::{LimitKey, RateLimit};

use crate::Client;

/// Said in `leno-error` when a limit is reached.
pub(crate) const RATE_LIMITED: &str = "rate-limited";

/// The limits of one worker. All of them count every request that they are for, those of a request
/// that another one refuses, too.
#[derive(Debug)]
pub(crate) struct RateLimits(Vec<Rc<Limit>>);

#[derive(Debug)]
struct Limit {
    said: RateLimit,
    state: RefCell<KeyedLimit>,
}

/// What a client's requests are counted by, for one connection.
#[derive(Debug)]
pub(crate) struct Key {
    port: u16,
    identity: Option<Identity>,
    address: IpAddr,
    /// Its identity, or its address where it has none; made when a limit asks for it.
    client: OnceCell<String>,
}

impl Key {
    pub(crate) fn new(client: &Client, port: u16) -> Self {
        let (identity, address) = (client.identity.clone(), client.address.ip());
        Self { port, identity, address, client: OnceCell::new() }
    }

    fn client(&self) -> &str {
        self.client.get_or_init(|| match &self.identity {
            Some(identity) => identity.to_string(),
            None => self.address.to_string(),
        })
    }
}

impl RateLimits {
    /// No limit.
    pub(crate) const fn none() -> Self {
        Self(Vec::new())
    }

    /// The limits of one of `workers` workers, which share them evenly. One that `before` has already
    /// keeps its counts.
    pub(crate) fn new(limits: &[RateLimit], before: &Self, workers: u16) -> Self {
        let limit = |said: &RateLimit| {
            if let Some(known) = before.0.iter().find(|known| known.said == *said) {
                return Rc::clone(known);
            }
            let rate = Rate::new(said.requests, said.per, said.burst);
            let rate = rate.map(|rate| rate.divided(workers.into()));
            let keys = if said.key == LimitKey::Workload { 1 } else { MAX_KEYS };
            let state = RefCell::new(KeyedLimit::new(rate, keys));
            Rc::new(Limit { said: said.clone(), state })
        };
        Self(limits.iter().map(limit).collect())
    }

    /// Whether it is what these say.
    pub(crate) fn is_of(&self, limits: &[RateLimit]) -> bool {
        self.0.iter().map(|limit| &limit.said).eq(limits)
    }

    /// Counts a request; how long to wait where it may not pass.
    pub(crate) fn check(
        &self,
        registry: &Registry,
        key: &Key,
        request: RequestView<'_>,
    ) -> Result<(), Duration> {
        if self.0.is_empty() {
            return Ok(());
        }
        let now = Instant::now();
        let mut wait = None;
        let here = |limit: &&Rc<Limit>| limit.said.port.is_none_or(|port| port == key.port);
        for limit in self.0.iter().filter(here) {
            let value: &[u8] = match &limit.said.key {
                LimitKey::Workload => b"",
                LimitKey::Client => key.client().as_bytes(),
                LimitKey::Header(name) => request.header(name).unwrap_or_default(),
            };
            let mut state = limit.state.borrow_mut();
            let evicted = state.evicted();
            if let Verdict::Limited(until) = state.check(value, now) {
                wait = wait.max(Some(until));
            }
            for _ in evicted..state.evicted() {
                registry.count(Counter::RateLimitKeysEvicted);
            }
        }
        match wait {
            None => Ok(()),
            Some(wait) => {
                registry.count(Counter::RateLimited);
                Err(wait)
            }
        }
    }

    /// Forgets keys that need not be kept.
    pub(crate) fn sweep(&self) {
        for limit in &self.0 {
            limit.state.borrow_mut().sweep(Instant::now());
        }
    }
}

/// `Retry-After` in whole seconds, at least one (RFC 9110 section 10.2.3).
pub(crate) fn retry_after(wait: Duration) -> Option<HeaderLine> {
    let seconds = wait.as_millis().div_ceil(1_000).max(1);
    HeaderLine::new("Retry-After", seconds.to_string().as_bytes()).ok()
}

/// 429 with that header.
pub(crate) fn answer(line: Option<&HeaderLine>) -> Answer<'_> {
    let headers = line.map_or(&[][..], std::slice::from_ref);
    Answer { headers, ..Answer::error(429, RATE_LIMITED) }
}
