//! How many requests the workload takes.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use leno_http::{Answer, HeaderLine, RequestView};
use leno_resilience::{KeyedLimit, MAX_KEYS, Rate, Verdict};
use leno_telemetry::{Counter, Registry};
use leno_types::traffic::{LimitKey, RateLimit};

use crate::Client;

/// Said in `leno-error` when a limit is reached.
pub(crate) const RATE_LIMITED: &str = "rate-limited";

/// The limits of one worker. All of them count every request that they are for, those of a request
/// that another one refuses, too.
#[derive(Debug)]
pub(crate) struct RateLimits(Vec<Limit>);

#[derive(Debug)]
struct Limit {
    port: Option<u16>,
    key: LimitKey,
    state: RefCell<KeyedLimit>,
}

/// What a client's requests are counted by, for one connection.
#[derive(Debug)]
pub(crate) struct Key {
    port: u16,
    /// Its identity, or its address where it has none.
    client: String,
}

impl RateLimits {
    /// The limits of one of `workers` workers, which share them evenly.
    pub(crate) fn new(limits: &[RateLimit], workers: u16) -> Self {
        let limit = |limit: &RateLimit| {
            let rate = Rate::new(limit.requests, limit.per, limit.burst);
            let rate = rate.map(|rate| rate.divided(workers.into()));
            let keys = if limit.key == LimitKey::Workload { 1 } else { MAX_KEYS };
            let state = RefCell::new(KeyedLimit::new(rate, keys));
            Limit { port: limit.port, key: limit.key.clone(), state }
        };
        Self(limits.iter().map(limit).collect())
    }

    /// What this client's requests are counted by; none where nothing is.
    pub(crate) fn key(&self, client: &Client, port: u16) -> Option<Key> {
        if self.0.is_empty() {
            return None;
        }
        let mut name = String::new();
        let written = match &client.identity {
            Some(identity) => write!(name, "{identity}"),
            None => write!(name, "{}", client.address.ip()),
        };
        written.ok().map(|()| Key { port, client: name })
    }

    /// Counts a request; how long to wait where it may not pass.
    pub(crate) fn check(
        &self,
        registry: &Registry,
        key: Option<&Key>,
        request: RequestView<'_>,
    ) -> Result<(), Duration> {
        let Some(key) = key else { return Ok(()) };
        let now = Instant::now();
        let mut wait = None;
        for limit in self.0.iter().filter(|limit| limit.port.is_none_or(|port| port == key.port)) {
            let value: &[u8] = match &limit.key {
                LimitKey::Workload => b"",
                LimitKey::Client => key.client.as_bytes(),
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
