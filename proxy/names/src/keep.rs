//! Names that somebody watches, each kept up to date by a task.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::ask::{AskError, Resolvers};
use crate::question::Said;

/// Most names watched at once; one more has no addresses. A mesh has tens of external services.
pub const MAX_NAMES: usize = 1024;
/// Bounds on how long an answer is used: a time to live of zero must not become a flood of questions,
/// and one of a week must not outlive a move.
const HOLD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// First and longest wait after nobody has answered.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// How long addresses are used that nobody confirms: longer than an outage of resolvers, shorter than
/// the memory of whoever gave the addresses to somebody else.
const MAX_STALE: Duration = Duration::from_secs(6 * 3600);

/// What is known of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Found {
    /// Nobody has answered yet.
    #[default]
    Pending,
    /// Its addresses, IPv4 first.
    Addresses(Arc<[IpAddr]>),
    /// It has none: why, for metrics and logs.
    Nothing(&'static str),
}

/// How questions went since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Resolutions that came to addresses.
    pub resolved: u64,
    /// Resolutions that came to "there is none".
    pub absent: u64,
    /// Resolutions that nobody answered.
    pub failed: u64,
    /// Names watched now.
    pub names: u64,
    /// Names whose addresses are older than they should be now.
    pub stale: u64,
    /// Watches refused for [`MAX_NAMES`].
    pub refused: u64,
}

/// The names that a proxy watches, shared by its workers. Cheap to clone.
#[derive(Clone)]
pub struct Names(Arc<Shared>);

struct Shared {
    resolvers: Resolvers,
    known: Mutex<HashMap<Arc<str>, watch::Sender<Found>>>,
    /// Changes with every answer that differs.
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
    /// Nothing is asked before the first [`Names::watch`].
    #[must_use]
    pub fn new(resolvers: Resolvers) -> Self {
        Self(Arc::new(Shared {
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

    /// What is known of a host, now and later. The first watch begins a task on the runtime of the
    /// caller, which ends when the last receiver is dropped.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[must_use]
    pub fn watch(&self, host: &str) -> watch::Receiver<Found> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let mut known = self.0.known();
        if let Some(sender) = known.get(host.as_str()) {
            return sender.subscribe();
        }
        if known.len() >= MAX_NAMES {
            self.0.refused.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(host, "not resolved: {MAX_NAMES} names are watched already");
            return watch::Sender::new(Found::Nothing("too-many-names")).subscribe();
        }
        let (sender, receiver) = watch::channel(Found::Pending);
        let host: Arc<str> = host.into();
        known.insert(Arc::clone(&host), sender.clone());
        drop(known);
        tokio::spawn(keep(Arc::clone(&self.0), host, sender));
        receiver
    }

    /// Changes whenever any name has another answer.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// How it went so far.
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

impl Shared {
    /// No change is left half done while the lock is held.
    fn known(&self) -> MutexGuard<'_, HashMap<Arc<str>, watch::Sender<Found>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both families; an error only where neither has addresses and one is not known.
    async fn resolve(&self, host: &str) -> Result<Said, AskError> {
        let both = tokio::join!(self.resolvers.ask(host, false), self.resolvers.ask(host, true));
        let (mut addresses, mut hold) = (Vec::new(), Duration::MAX);
        let (mut no_name, mut error) = (false, None);
        for said in [both.0, both.1] {
            match said {
                Ok(Said::Addresses(of_family, ttl)) => {
                    addresses.extend(of_family);
                    hold = hold.min(ttl);
                }
                Ok(Said::None(ttl)) => hold = hold.min(ttl),
                Ok(Said::NoName(ttl)) => {
                    no_name = true;
                    hold = hold.min(ttl);
                }
                Ok(Said::Truncated) => {}
                Err(failure) => error = Some(failure),
            }
        }
        match error {
            Some(error) if addresses.is_empty() => Err(error),
            // The other family is asked for again soon.
            Some(_) => Ok(Said::Addresses(addresses, hold.min(RETRY.1))),
            None if !addresses.is_empty() => Ok(Said::Addresses(addresses, hold)),
            None if no_name => Ok(Said::NoName(hold)),
            None => Ok(Said::None(hold)),
        }
    }

    fn publish(&self, sender: &watch::Sender<Found>, found: Found) {
        let changed = sender.send_if_modified(|known| {
            let differs = *known != found;
            *known = found;
            differs
        });
        if changed {
            self.changes.send_modify(|version| *version += 1);
        }
    }

    /// Forgets a name that nobody watches; whether it did.
    fn forget(&self, host: &str, sender: &watch::Sender<Found>) -> bool {
        // Under the lock nobody can begin to watch it meanwhile.
        let mut known = self.known();
        let unwatched = sender.receiver_count() == 0;
        if unwatched {
            known.remove(host);
        }
        unwatched
    }
}

/// Keeps one name up to date until nobody watches it.
async fn keep(shared: Arc<Shared>, host: Arc<str>, sender: watch::Sender<Found>) {
    let mut retry = RETRY.0;
    let mut confirmed = Instant::now();
    let mut is_stale = false;
    loop {
        let said = shared.resolve(&host).await;
        // Before anybody hears of the answer.
        if std::mem::replace(&mut is_stale, false) {
            shared.stale.fetch_sub(1, Ordering::Relaxed);
        }
        let wait = match said {
            Ok(Said::Addresses(addresses, hold)) => {
                shared.resolved.fetch_add(1, Ordering::Relaxed);
                (retry, confirmed) = (RETRY.0, Instant::now());
                shared.publish(&sender, Found::Addresses(sorted(addresses)));
                hold.clamp(HOLD.0, HOLD.1)
            }
            Ok(Said::NoName(hold) | Said::None(hold)) => {
                shared.absent.fetch_add(1, Ordering::Relaxed);
                retry = RETRY.0;
                shared.publish(&sender, Found::Nothing("no-such-name"));
                hold.clamp(HOLD.0, HOLD.1)
            }
            Ok(Said::Truncated) => retry,
            Err(error) => {
                shared.failed.fetch_add(1, Ordering::Relaxed);
                let error: &dyn std::error::Error = &error;
                tracing::warn!(%host, error, "not resolved; addresses that are known stay in use");
                let has = matches!(*sender.borrow(), Found::Addresses(_));
                is_stale = has && confirmed.elapsed() < MAX_STALE;
                if is_stale {
                    shared.stale.fetch_add(1, Ordering::Relaxed);
                } else {
                    shared.publish(&sender, Found::Nothing("resolver-failed"));
                }
                let wait = retry;
                retry = (retry * 2).min(RETRY.1);
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

/// In an order of their own, so that a resolver that turns its answers round changes nothing.
fn sorted(mut addresses: Vec<IpAddr>) -> Arc<[IpAddr]> {
    addresses.sort_unstable();
    addresses.into()
}

#[cfg(test)]
mod tests;
