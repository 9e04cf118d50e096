//! The rate limits of the workload.

mod table;

use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_discovery::Leases;
use leno_http::{Answer, HeaderLine, RequestView};
use leno_resilience::{KeyedLimit, Verdict};
use leno_telemetry::{Counter, Registry};
use leno_types::traffic::{LimitKey, RateLimit};
use leno_types::{Identity, InstanceName};

use crate::Client;

use table::LeasedLimit;
pub use table::LimitTable;

/// The value of `leno-error` when a limit is reached.
pub(crate) const RATE_LIMITED: &str = "rate-limited";

/// The rate limits, with what one worker needs to enforce them. A request counts against every limit that applies to
/// it, even if another limit refuses it.
#[derive(Debug)]
pub(crate) struct RateLimits {
    limits: Vec<Rc<Limit>>,
}

#[derive(Debug)]
struct Limit {
    /// The limit as discovery has sent it.
    said: RateLimit,
    state: RefCell<State>,
}

#[derive(Debug)]
enum State {
    /// A limit of this proxy alone. Its workers share the counts.
    Own(KeyedLimit),
    /// A limit that all proxies share, and in this proxy all workers and all ports to which it applies.
    Leased(Arc<LeasedLimit>),
}

/// The keys by which the requests of one connection are counted.
#[derive(Debug)]
pub(crate) struct Key {
    port: u16,
    identity: Option<Identity>,
    address: IpAddr,
    /// The client's identity, or its address if it has no identity. Made when a limit first needs it.
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
        Self { limits: Vec::new() }
    }

    /// The limits of a workload on one worker. A limit that `before` already has keeps its counts, and so does one whose
    /// counts another worker holds in `table`.
    pub(crate) fn new(
        limits: &[RateLimit],
        before: &Self,
        (table, workload): (&LimitTable, &InstanceName),
        leases: &Leases,
    ) -> Self {
        let limit = |said: &RateLimit| {
            if let Some(known) = before.limits.iter().find(|known| known.said == *said) {
                return Rc::clone(known);
            }
            let state = match said.is_global {
                true => State::Leased(table.leased(said, leases)),
                false => State::Own(KeyedLimit::new(table.get(workload, said))),
            };
            Rc::new(Limit { said: said.clone(), state: RefCell::new(state) })
        };
        Self { limits: limits.iter().map(limit).collect() }
    }

    /// Whether this value was built from these limits.
    pub(crate) fn is_of(&self, limits: &[RateLimit]) -> bool {
        self.limits.iter().map(|limit| &limit.said).eq(limits)
    }

    /// Counts a request. The error says how long to wait until the request may pass.
    pub(crate) fn check(
        &self,
        registry: &Registry,
        key: &Key,
        request: RequestView<'_>,
    ) -> Result<(), Duration> {
        if self.limits.is_empty() {
            return Ok(());
        }
        let now = leno_transport::now();
        let mut wait = None;
        let here = |limit: &&Rc<Limit>| limit.said.port.is_none_or(|port| port == key.port);
        for limit in self.limits.iter().filter(here) {
            let value: &[u8] = match &limit.said.key {
                LimitKey::Workload => b"",
                LimitKey::Client => key.client().as_bytes(),
                LimitKey::Header(name) => request.header(name).unwrap_or_default(),
            };
            let verdict = match &mut *limit.state.borrow_mut() {
                State::Own(own) => {
                    let evicted = own.evicted();
                    let verdict = own.check(value, now);
                    registry.count_many(
                        Counter::RateLimitKeysEvicted,
                        own.evicted().wrapping_sub(evicted),
                    );
                    verdict
                }
                State::Leased(leased) => leased.check(registry, now),
            };
            if let Verdict::Limited(until) = verdict {
                wait = wait.max(Some(until));
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

    /// Drops keys that need not be kept.
    pub(crate) fn sweep(&self) {
        for limit in &self.limits {
            if let State::Own(own) = &mut *limit.state.borrow_mut() {
                own.sweep(leno_transport::now());
            }
        }
    }
}

/// `Retry-After` in whole seconds, at least one (RFC 9110 section 10.2.3).
pub(crate) fn retry_after(wait: Duration) -> Option<HeaderLine> {
    let seconds = wait.as_millis().div_ceil(1_000).max(1);
    HeaderLine::new("retry-after", seconds.to_string().as_bytes()).ok()
}

/// A 429 response with the header `line`, which [`retry_after`] has made.
pub(crate) fn answer(line: Option<&HeaderLine>) -> Answer<'_> {
    let headers = line.map_or(&[][..], std::slice::from_ref);
    Answer { headers, ..Answer::error(429, RATE_LIMITED) }
}
