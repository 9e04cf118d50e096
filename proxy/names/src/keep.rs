//! The names that a proxy watches. For each name, a task keeps the addresses up to date.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::ask::{AskError, Resolvers};
use crate::question::DnsAnswer;

/// How many names are watched at once. Further names get no addresses. A mesh has tens of external services.
pub const MAX_NAMES: usize = 1024;
/// The shortest and the longest time for which a response is used. A time to live of zero must not cause a flood of
/// queries, and a time to live of a week must not hide that a service has moved.
const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The first and the longest wait after a failed resolution.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long addresses are used while no resolver confirms them. It is longer than an outage of resolvers usually lasts,
/// but short enough that the addresses are not used long after they were assigned to another host.
const MAX_STALE: Duration = Duration::from_secs(6 * 3600);

/// The state of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NameState {
    /// The first resolution has not ended yet.
    #[default]
    Pending,
    /// The name's addresses, IPv4 first.
    Addresses(Arc<[IpAddr]>),
    /// The name has no addresses. The reason is for metrics and logs.
    Nothing(&'static str),
}

/// How many resolutions there were since the start, by result, and how many names there are now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Resolutions that found addresses.
    pub resolved: u64,
    /// Resolutions that found that there are no addresses.
    pub absent: u64,
    /// Resolutions that failed: no resolver responded, or one responded with an error.
    pub failed: u64,
    /// The number of names that are watched now.
    pub names: u64,
    /// Names whose last resolution failed and whose old addresses are in use now.
    pub stale: u64,
    /// Watches that were refused because of [`MAX_NAMES`].
    pub refused: u64,
}

/// The names that a proxy watches. All workers (threads) of the proxy share them. A clone refers to the same names.
#[derive(Clone)]
pub struct Names(Arc<NamesState>);

struct NamesState {
    resolvers: Resolvers,
    /// The watched names. Each has the sender of its state, whose receivers are the watches.
    known: Mutex<HashMap<Arc<str>, watch::Sender<NameState>>>,
    /// A version that increases whenever the state of any name changes.
    changes: watch::Sender<u64>,
    resolved: AtomicU64,
    absent: AtomicU64,
    failed: AtomicU64,
    stale: AtomicU64,
    refused: AtomicU64,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Names").field(&self.counts()).finish()
    }
}

impl Names {
    /// Uses these resolvers. Sends no query before the first [`Names::watch`].
    #[must_use]
    pub fn new(resolvers: Resolvers) -> Self {
        Self(Arc::new(NamesState {
            resolvers,
            known: Mutex::default(),
            changes: watch::Sender::new(0),
            resolved: AtomicU64::new(0),
            absent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }))
    }

    /// Watches a host's addresses. The first watch starts a task on the caller's runtime; the task
    /// ends after the last receiver is dropped.
    ///
    /// # Panics
    /// If called outside of a runtime.
    #[must_use]
    pub fn watch(&self, host: &str) -> watch::Receiver<NameState> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let mut known = self.0.known();
        if let Some(sender) = known.get(host.as_str()) {
            return sender.subscribe();
        }
        if known.len() >= MAX_NAMES {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(host, "not resolved: {MAX_NAMES} names are watched already");
            return watch::Sender::new(NameState::Nothing("too-many-names")).subscribe();
        }
        let (sender, receiver) = watch::channel(NameState::Pending);
        let host: Arc<str> = host.into();
        known.insert(Arc::clone(&host), sender.clone());
        drop(known);
        tokio::spawn(keep(Arc::clone(&self.0), host, sender));
        receiver
    }

    /// Notifies whenever the state of any name changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// The present counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let of = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Counts {
            resolved: of(&self.0.resolved),
            absent: of(&self.0.absent),
            failed: of(&self.0.failed),
            names: self.0.known().len() as u64,
            stale: of(&self.0.stale),
            refused: of(&self.0.refused),
        }
    }
}

impl NamesState {
    /// A panic cannot leave the map half changed, so a poisoned lock is safe to use.
    fn known(&self) -> MutexGuard<'_, HashMap<Arc<str>, watch::Sender<NameState>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves the IPv4 and the IPv6 addresses at the same time. Returns an error only if the query for one family
    /// failed and the other family has no addresses.
    async fn resolve(&self, host: &str) -> Result<DnsAnswer, AskError> {
        let both = tokio::join!(self.resolvers.ask(host, false), self.resolvers.ask(host, true));
        let (mut addresses, mut hold) = (Vec::new(), Duration::MAX);
        let (mut no_name, mut error) = (false, None);
        for said in [both.0, both.1] {
            match said {
                Ok(DnsAnswer::Addresses(of_family, ttl)) => {
                    addresses.extend(of_family);
                    hold = hold.min(ttl);
                }
                Ok(DnsAnswer::None(ttl)) => hold = hold.min(ttl),
                Ok(DnsAnswer::NoName(ttl)) => {
                    no_name = true;
                    hold = hold.min(ttl);
                }
                Ok(DnsAnswer::Truncated) => {}
                Err(failure) => error = Some(failure),
            }
        }
        match error {
            Some(error) if addresses.is_empty() => Err(error),
            // Resolve again soon, because of the family whose query failed.
            Some(_) => Ok(DnsAnswer::Addresses(addresses, hold.min(RETRY.1))),
            None if !addresses.is_empty() => Ok(DnsAnswer::Addresses(addresses, hold)),
            None if no_name => Ok(DnsAnswer::NoName(hold)),
            None => Ok(DnsAnswer::None(hold)),
        }
    }

    fn publish(&self, sender: &watch::Sender<NameState>, found: NameState) {
        let changed = sender.send_if_modified(|known| {
            let differs = *known != found;
            *known = found;
            differs
        });
        if changed {
            self.changes.send_modify(|version| *version = version.wrapping_add(1));
        }
    }

    /// Removes a name if it has no receivers. Returns whether it had none.
    fn forget(&self, host: &str, sender: &watch::Sender<NameState>) -> bool {
        // While this holds the lock, no other task can begin to watch the name.
        let mut known = self.known();
        let unwatched = sender.receiver_count() == 0;
        if unwatched {
            known.remove(host);
        }
        unwatched
    }
}

/// Keeps one name up to date until it has no receivers.
async fn keep(shared: Arc<NamesState>, host: Arc<str>, sender: watch::Sender<NameState>) {
    let mut retry = RETRY.0;
    let mut confirmed = Instant::now();
    let mut is_stale = false;
    loop {
        let said = shared.resolve(&host).await;
        // Change the counts before receivers are notified, so that the counts never contradict the states that
        // receivers see.
        if std::mem::replace(&mut is_stale, false) {
            shared.stale.fetch_sub(1, Ordering::Relaxed);
        }
        let wait = match said {
            Ok(DnsAnswer::Addresses(addresses, hold)) => {
                shared.resolved.fetch_add(1, Ordering::Relaxed);
                (retry, confirmed) = (RETRY.0, Instant::now());
                shared.publish(&sender, NameState::Addresses(sorted(addresses)));
                hold.clamp(HOLD.0, HOLD.1)
            }
            Ok(DnsAnswer::NoName(hold) | DnsAnswer::None(hold)) => {
                shared.absent.fetch_add(1, Ordering::Relaxed);
                retry = RETRY.0;
                shared.publish(&sender, NameState::Nothing("no-such-name"));
                hold.clamp(HOLD.0, HOLD.1)
            }
            Ok(DnsAnswer::Truncated) => retry,
            Err(error) => {
                shared.failed.fetch_add(1, Ordering::Relaxed);
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%host, error, "not resolved; addresses that are known stay in use");
                let has = matches!(*sender.borrow(), NameState::Addresses(_));
                is_stale = has && confirmed.elapsed() < MAX_STALE;
                if is_stale {
                    shared.stale.fetch_add(1, Ordering::Relaxed);
                } else {
                    shared.publish(&sender, NameState::Nothing("resolver-failed"));
                }
                let wait = retry;
                retry = retry.saturating_mul(2).min(RETRY.1);
                wait
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = sender.closed() => {}
        }
        if sender.receiver_count() == 0 && shared.forget(&host, &sender) {
            if is_stale {
                shared.stale.fetch_sub(1, Ordering::Relaxed);
            }
            return;
        }
    }
}

/// The addresses in order, so that a resolver that rotates the addresses in its responses causes no change.
fn sorted(mut addresses: Vec<IpAddr>) -> Arc<[IpAddr]> {
    addresses.sort_unstable();
    addresses.into()
}

#[cfg(test)]
mod tests;
