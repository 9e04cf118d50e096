//! One watch: turns the objects of a kind into events.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{TryStream, TryStreamExt};
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use leno_resources::{Object, ObjectKey};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::connect::CONNECT_TIMEOUT;
use super::followed::Followed;
use super::{NoObject, Visit};
use crate::Misread;

/// First wait after a watch has failed; it doubles with each further failure.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// Longest wait between attempts. The watch resumes at most this long after the API server is back,
/// and an API server that is down gets only a few requests a second from each replica.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// If no further failure follows a failure for this long, the next attempt has succeeded.
const SETTLED: Duration = LONGEST_WAIT.saturating_add(CONNECT_TIMEOUT);
/// How often a kind that the cluster does not have is tried again: it may be installed at any time.
const NO_KIND_WAIT: Duration = Duration::from_secs(5);
/// How often in a row a kind that existed must be missing before it counts as removed: half a
/// minute.
const NO_KIND_ROUNDS: u32 = 6;

/// An event of one kind's watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// A list of all objects begins.
    Begin,
    /// An object was created or modified.
    Put(Object),
    /// An object exists but is invalid: its last good state stays in effect. For a route or a policy, with the
    /// mistake that its status reports.
    Kept(ObjectKey, Option<Misread>),
    /// An object was deleted.
    Gone(ObjectKey),
    /// The list of all objects is complete.
    Complete,
    /// The cluster has no such kind.
    NoKind,
    /// The API server answers that it cannot list the objects of the kind.
    Unreadable,
}

/// Where the watch of a kind sends its events.
#[derive(Clone)]
pub(super) struct KindEvents {
    /// The kind, as its position among the watched ones.
    pub(super) nth: usize,
    pub(super) events: mpsc::Sender<(usize, Event)>,
    pub(super) followed: Arc<Followed>,
}

impl Visit for KindEvents {
    type Output = ();

    async fn visit<K>(
        self,
        versions: Vec<Api<K>>,
        make: impl Fn(K) -> Result<Object, NoObject> + Send + Sync,
    ) where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        follow(versions, self, make).await;
    }
}

/// Why a watch ended.
enum Ended {
    /// The receiver was dropped.
    Unheard,
    /// The cluster has no such kind.
    NoKind,
}

impl KindEvents {
    /// Records that the watch works.
    fn reached(&self) {
        if self.followed.reached(self.nth) {
            tracing::info!(kind = self.followed.name(self.nth), "is followed again");
        }
    }

    /// Sends an event; false if the receiver was dropped.
    async fn tell(&self, event: Event) -> bool {
        self.events.send((self.nth, event)).await.is_ok()
    }
}

/// Watches one kind until the receiver is dropped, in the first of its versions that the cluster
/// has.
async fn follow<K>(
    versions: Vec<Api<K>>,
    teller: KindEvents,
    make: impl Fn(K) -> Result<Object, NoObject>,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut absence = Absence::default();
    loop {
        for api in &versions {
            if let Ended::Unheard = follow_one(api, &teller, &make, &mut absence).await {
                return;
            }
        }
        let was_there = teller.followed.has_listed(teller.nth);
        if absence.again(was_there) {
            let kind = teller.followed.name(teller.nth);
            tracing::info!(
                kind,
                "the cluster has no such kind; it is followed once it is installed"
            );
            if !teller.tell(Event::NoKind).await {
                return;
            }
        }
        // The absence is current knowledge again, even if the API server had not answered for a
        // while.
        if absence.is_gone(was_there) {
            teller.reached();
        }
        tokio::time::sleep(NO_KIND_WAIT).await;
    }
}

/// How often in a row the API server did not have a kind.
#[derive(Debug, Default)]
struct Absence {
    rounds: u32,
}

impl Absence {
    /// Counts one more attempt; returns whether the kind counts as removed from now on. A kind that
    /// existed has to be missing for a while: an API server that is starting or being reconfigured
    /// may not list it for a moment, and all objects of the kind would be dropped.
    fn again(&mut self, was_there: bool) -> bool {
        self.rounds = self.rounds.saturating_add(1);
        self.rounds == Self::needed(was_there)
    }

    /// Whether the kind counts as removed.
    fn is_gone(&self, was_there: bool) -> bool {
        self.rounds >= Self::needed(was_there)
    }

    fn needed(was_there: bool) -> u32 {
        if was_there { NO_KIND_ROUNDS } else { 1 }
    }

    /// Records that the kind exists; returns whether it counted as removed before.
    fn end(&mut self, was_there: bool) -> bool {
        let was_gone = self.is_gone(was_there);
        self.rounds = 0;
        was_gone
    }
}

async fn follow_one<K>(
    api: &Api<K>,
    teller: &KindEvents,
    make: &impl Fn(K) -> Result<Object, NoObject>,
    absence: &mut Absence,
) -> Ended
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let KindEvents { nth, followed, .. } = teller;
    let config = watcher::Config::default().page_size(followed.page(*nth));
    let begin = || watcher(api.clone(), config.clone()).backoff(Patience::default());
    let mut watch = pin!(begin());
    // True from the beginning of a list to its end, even while parts of it are retried.
    let mut listing = false;
    loop {
        let event = match next(&mut watch, teller, listing).await {
            Ok(Some(event)) => event,
            // The server ended the watch: start again.
            Ok(None) => {
                listing = false;
                watch.set(begin());
                continue;
            }
            Err(error) if is_no_kind(&error) => return Ended::NoKind,
            Err(error) => {
                if followed.failed(*nth, &error) {
                    let (kind, error) = (followed.name(*nth), &error as &dyn std::error::Error);
                    tracing::warn!(kind, error, "cannot be followed; trying again");
                }
                if is_answer(&error)
                    && !followed.has_listed(*nth)
                    && !teller.tell(Event::Unreadable).await
                {
                    return Ended::Unheard;
                }
                continue;
            }
        };
        // Until the list is complete, the known objects may be outdated.
        listing = matches!(event, watcher::Event::Init | watcher::Event::InitApply(_));
        if !listing {
            teller.reached();
        }
        let event = match event {
            watcher::Event::Init => Event::Begin,
            watcher::Event::InitDone => {
                if absence.end(followed.has_listed(*nth)) {
                    tracing::info!(kind = followed.name(*nth), "the cluster has this kind now");
                }
                followed.listed(*nth);
                Event::Complete
            }
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                made(make(object), followed, *nth)
            }
            watcher::Event::Delete(object) => match make(object) {
                Ok(object) => Event::Gone(object.key()),
                Err(NoObject::Absent(key) | NoObject::Bad { key, .. }) => Event::Gone(key),
            },
        };
        if !teller.tell(event).await {
            return Ended::Unheard;
        }
    }
}

/// The next event of a watch. A watch that failed counts as working again once neither a failure
/// nor an event follows for a bounded time, because the watcher retries within that time and
/// reports only a failure or the first event. This does not apply during a new list, which ends
/// with an event and may take long.
async fn next<W: TryStream + Unpin>(
    watch: &mut W,
    teller: &KindEvents,
    listing: bool,
) -> Result<Option<W::Ok>, W::Error> {
    let KindEvents { nth, followed, .. } = teller;
    while !listing && followed.is_failing(*nth) && followed.has_listed(*nth) {
        match timeout(SETTLED, watch.try_next()).await {
            Ok(next) => return next,
            Err(_elapsed) => teller.reached(),
        }
    }
    watch.try_next().await
}

fn made(made: Result<Object, NoObject>, followed: &Followed, nth: usize) -> Event {
    match made {
        Ok(object) => Event::Put(object),
        Err(NoObject::Absent(key)) => Event::Gone(key),
        Err(NoObject::Bad { key, reason, outline }) => {
            followed.refused(nth);
            tracing::warn!(%key, reason, "is not understood; its last good state holds");
            Event::Kept(key, outline.map(|object| Misread { object: *object, reason }))
        }
    }
}

/// Whether the API server has answered that it cannot list the kind, for example because a right is
/// missing or a conversion webhook fails. False while it cannot be reached.
fn is_answer(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::InitialListFailed(kube::Error::Api(_)))
}

/// Whether the API server does not have the kind: its CustomResourceDefinition is not installed.
fn is_no_kind(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// The waits between attempts. Each is twice as long as the one before, up to a bound, minus a
/// random part of up to a half, so that replicas do not retry at the same time.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
}

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        // 2^8 times the first wait exceeds the longest.
        let doubled = FIRST_WAIT * 2_u32.pow(self.failures.min(8));
        self.failures += 1;
        let wait = doubled.min(LONGEST_WAIT);
        Some(wait.mul_f64(1.0 - 0.5 * chance()))
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A random number from 0 to 1, from the hasher's random keys.
fn chance() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    let random = u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or_default();
    f64::from(random) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_that_was_there_is_gone_only_after_it_was_missing_for_a_while() {
        let mut absence = Absence::default();
        assert!(absence.again(false), "one that never was is missing at once");
        assert!(!absence.again(false), "and that is said once");
        assert!(absence.end(false), "it is there now");
        for _ in 1..NO_KIND_ROUNDS {
            assert!(!absence.again(true));
        }
        assert!(!absence.end(true), "it was away for a moment only");
        let gone = (0..NO_KIND_ROUNDS).filter(|_| absence.again(true)).count();
        assert_eq!(gone, 1);
        assert!(absence.end(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_listed_anew_is_not_followed_again_before_the_end_of_the_list() {
        let (events, _receiver) = mpsc::channel(1);
        let teller = KindEvents { nth: 0, events, followed: Arc::default() };
        teller.followed.listed(0);
        teller.followed.failed(0, &watcher::Error::NoResourceVersion);
        let mut silent = futures_util::stream::pending::<Result<(), watcher::Error>>();
        let long = SETTLED * 10;
        assert!(timeout(long, next(&mut silent, &teller, true)).await.is_err());
        assert!(teller.followed.is_failing(0));
        assert!(timeout(long, next(&mut silent, &teller, false)).await.is_err());
        assert!(!teller.followed.is_failing(0), "a watch without news goes on");
    }

    #[test]
    fn waits_grow_to_a_bound_and_begin_anew_after_a_success() {
        let mut patience = Patience::default();
        let waits: Vec<Duration> = patience.by_ref().take(40).collect();
        assert!(waits[0] <= FIRST_WAIT && waits[0] >= FIRST_WAIT / 2, "{waits:?}");
        let bounds = (LONGEST_WAIT / 2)..=LONGEST_WAIT;
        assert!(waits[8..].iter().all(|wait| bounds.contains(wait)), "{waits:?}");
        patience.reset();
        assert!(patience.next().unwrap() <= FIRST_WAIT);
    }
}
