//! The rate limits of the workload.

mod table;

use std::cell::{OnceCell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_discovery::{Asker, Lease, Leases};
use leno_http::{Answer, HeaderLine, RequestView};
use leno_resilience::lease::{Ask, Grant, Holder};
use leno_resilience::{KeyedLimit, Verdict};
use leno_telemetry::{Counter, Registry};
use leno_types::Identity;
use leno_types::traffic::{LimitKey, RateLimit};

use crate::Client;

pub use table::LimitTable;

/// The value of `leno-error` when a limit is reached.
pub(crate) const RATE_LIMITED: &str = "rate-limited";

/// The rate limits, with what one worker needs to enforce them. A request counts against every limit that applies to
/// it, even if another limit refuses it.
#[derive(Debug)]
pub(crate) struct RateLimits {
    limits: Vec<Rc<Limit>>,
    /// Requests tokens for shared limits from the control plane. `None` if no limit is shared.
    asker: Option<Rc<RefCell<Asker>>>,
}

#[derive(Debug)]
struct Limit {
    said: RateLimit,
    state: RefCell<State>,
}

#[derive(Debug)]
enum State {
    /// A limit of this proxy alone. Its workers share the counts.
    Own(KeyedLimit),
    /// A limit that all proxies share. In this proxy, all ports to which it applies share it, too.
    Shared(Rc<SharedLimit>),
}

/// The part that this worker has of a limit that all proxies share.
#[derive(Debug)]
struct SharedLimit {
    /// The name of the limit, which is the same in all proxies.
    name: Arc<str>,
    holder: RefCell<Holder>,
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
        Self { limits: Vec::new(), asker: None }
    }

    /// The limits of one of `workers` workers. A limit that `before` has keeps its counts, and so does a limit whose
    /// counts another worker has in `table`.
    pub(crate) fn new(
        limits: &[RateLimit],
        before: &Self,
        table: &LimitTable,
        (workers, leases): (u16, &Leases),
    ) -> Self {
        let mut shared: Vec<Rc<SharedLimit>> = Vec::new();
        let mut limit = |said: &RateLimit| {
            if let Some(known) = before.limits.iter().find(|known| known.said == *said) {
                if let State::Shared(known) = &*known.state.borrow() {
                    shared.push(Rc::clone(known));
                }
                return Rc::clone(known);
            }
            let state = match said.is_global {
                true => {
                    let of = SharedLimit::of(said, &shared, workers);
                    shared.push(Rc::clone(&of));
                    State::Shared(of)
                }
                false => State::Own(KeyedLimit::new(table.get(said))),
            };
            Rc::new(Limit { said: said.clone(), state: RefCell::new(state) })
        };
        let limits: Vec<_> = limits.iter().map(&mut limit).collect();
        let is_shared = limits.iter().any(|limit| limit.said.is_global);
        let asker =
            || before.asker.clone().unwrap_or_else(|| Rc::new(RefCell::new(leases.asker())));
        Self { limits, asker: is_shared.then(asker) }
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
        self.take_leases();
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
                State::Shared(shared) => self.of_shared(registry, shared, now),
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

    /// Checks a limit that all proxies share. Requests more tokens if it is time.
    fn of_shared(&self, registry: &Registry, shared: &SharedLimit, now: Instant) -> Verdict {
        let mut holder = shared.holder.borrow_mut();
        let verdict = holder.check(now);
        if holder.is_alone(now) {
            registry.count(Counter::RateLimitAlone);
        }
        if let (Some(Ask { wanted }), Some(asker)) = (holder.ask(now), &self.asker) {
            asker.borrow().ask(&shared.name, wanted);
        }
        verdict
    }

    /// Takes the tokens that arrived since the last request.
    fn take_leases(&self) {
        let Some(asker) = &self.asker else { return };
        while let Some(Lease { limit: name, tokens, holders }) = asker.borrow_mut().take() {
            // The control plane does not know the limit yet, or no longer.
            if holders == 0 {
                continue;
            }
            let own = self.limits.iter().find_map(|limit| match &*limit.state.borrow() {
                State::Shared(own) if own.name == name => Some(Rc::clone(own)),
                _ => None,
            });
            if let Some(own) = own {
                own.holder.borrow_mut().granted(Grant { tokens, holders });
            }
        }
    }

    /// Drops keys that are no longer needed.
    pub(crate) fn sweep(&self) {
        for limit in &self.limits {
            if let State::Own(own) = &mut *limit.state.borrow_mut() {
                own.sweep(leno_transport::now());
            }
        }
    }
}

impl SharedLimit {
    /// The state that another port already has for this limit, or a new state.
    fn of(said: &RateLimit, known: &[Rc<Self>], workers: u16) -> Rc<Self> {
        let name = said.shared_name();
        if let Some(known) = known.iter().find(|known| *known.name == *name) {
            return Rc::clone(known);
        }
        let holder = RefCell::new(Holder::new(said.requests, said.per, workers));
        Rc::new(Self { name: name.into(), holder })
    }
}

/// The `Retry-After` header in whole seconds, at least one (RFC 9110 section 10.2.3).
pub(crate) fn retry_after(wait: Duration) -> Option<HeaderLine> {
    let seconds = wait.as_millis().div_ceil(1_000).max(1);
    HeaderLine::new("retry-after", seconds.to_string().as_bytes()).ok()
}

/// A 429 response with that header.
pub(crate) fn answer(line: Option<&HeaderLine>) -> Answer<'_> {
    let headers = line.map_or(&[][..], std::slice::from_ref);
    Answer { headers, ..Answer::error(429, RATE_LIMITED) }
}
