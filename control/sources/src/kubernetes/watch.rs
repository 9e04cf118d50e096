//! Watches the objects of one kind, and converts the reports of the watch to events.

use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use leno_kube::{Api, Resource, WatchError, WatchReport, WatchSelection, is_status, watch};
use leno_resources::{Object, ObjectKey};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::followed::WatchStates;
use super::{KindOperation, SkippedObject};
use crate::MisreadObject;

/// How often a kind that the cluster does not have is tried again. It may be installed at any time.
const NO_KIND_WAIT: Duration = Duration::from_secs(5);
/// How many attempts in a row must find a kind missing, after it existed, before it counts as removed. Together
/// they take half a minute.
const NO_KIND_ROUNDS: u32 = 6;

/// An event of one kind's watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum KindEvent {
    /// A list of all objects begins.
    Begin,
    /// An object was created or modified.
    Put(Object),
    /// An object exists but is invalid, so its last valid state stays in effect. For a route or a policy, the
    /// event has the mistake that its status must report. An authorization policy without a valid state denies
    /// every client.
    Kept(ObjectKey, Option<MisreadObject>),
    /// An object was deleted.
    Gone(ObjectKey),
    /// The list of all objects is complete.
    Complete,
    /// The cluster has no such kind.
    NoKind,
    /// The API server has answered that it cannot list the objects of the kind.
    Unreadable,
}

/// Where the watch of a kind sends its events.
#[derive(Clone)]
pub(super) struct KindEvents {
    /// The position of the kind among the watched ones.
    pub(super) nth: usize,
    pub(super) events: mpsc::Sender<(usize, KindEvent)>,
    pub(super) followed: Arc<WatchStates>,
}

impl KindOperation for KindEvents {
    type Output = ();

    async fn run<K>(
        self,
        versions: Vec<Api<K>>,
        make: impl Fn(K) -> Result<Object, SkippedObject> + Send + Sync,
    ) where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        follow(versions, self, make).await;
    }
}

/// Why a watch ended.
enum WatchEnd {
    /// The receiver was dropped.
    Unheard,
    /// The cluster has no such kind.
    NoKind,
}

impl KindEvents {
    /// Records that the watch works.
    fn reached(&self) {
        if self.followed.reached(self.nth) {
            tracing::info!(kind = self.followed.name(self.nth), "is watched again");
        }
    }

    /// Sends an event. Returns false if the receiver was dropped.
    async fn send(&self, event: KindEvent) -> bool {
        self.events.send((self.nth, event)).await.is_ok()
    }

    /// Converts an event of the watch.
    fn event<K>(
        &self,
        event: leno_kube::Event<K>,
        make: &impl Fn(K) -> Result<Object, SkippedObject>,
        absence: &mut Absence,
    ) -> KindEvent {
        let Self { nth, followed, .. } = self;
        // Until a list is complete, the known objects may be outdated, so the watch does not count as working.
        if !matches!(event, leno_kube::Event::Init | leno_kube::Event::InitApply(_)) {
            self.reached();
        }
        match event {
            leno_kube::Event::Init => KindEvent::Begin,
            leno_kube::Event::InitDone => {
                if absence.end(followed.has_listed(*nth)) {
                    tracing::info!(kind = followed.name(*nth), "the cluster has this kind now");
                }
                followed.listed(*nth);
                KindEvent::Complete
            }
            leno_kube::Event::InitApply(object) | leno_kube::Event::Apply(object) => {
                made(make(object), followed, *nth)
            }
            leno_kube::Event::Delete(object) => match make(object) {
                Ok(object) => KindEvent::Gone(object.key()),
                Err(SkippedObject::Absent(key) | SkippedObject::Bad { key, .. }) => {
                    KindEvent::Gone(key)
                }
            },
        }
    }
}

/// Watches one kind until the receiver is dropped, in the first of its versions that the cluster
/// has.
async fn follow<K>(
    versions: Vec<Api<K>>,
    reporter: KindEvents,
    make: impl Fn(K) -> Result<Object, SkippedObject>,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut absence = Absence::default();
    loop {
        for api in &versions {
            if let WatchEnd::Unheard = follow_one(api, &reporter, &make, &mut absence).await {
                return;
            }
        }
        let was_there = reporter.followed.has_listed(reporter.nth);
        if absence.again(was_there) {
            let kind = reporter.followed.name(reporter.nth);
            tracing::info!(
                kind,
                "the cluster has no such kind; it is watched once it is installed"
            );
            if !reporter.send(KindEvent::NoKind).await {
                return;
            }
        }
        // The API server has answered that the kind does not exist, so the watch does not count as failing.
        if absence.is_gone(was_there) {
            reporter.reached();
        }
        tokio::time::sleep(NO_KIND_WAIT).await;
    }
}

/// Counts how many times in a row the API server did not have a kind.
#[derive(Debug, Default)]
struct Absence {
    rounds: u32,
}

impl Absence {
    /// Counts one more attempt. Returns whether the kind counts as removed from now on. A kind that existed must
    /// be missing for a while: an API server that is starting or being reconfigured may not list it for a moment,
    /// and all objects of the kind would be dropped.
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

    /// Records that the kind exists. Returns whether it counted as removed before.
    fn end(&mut self, was_there: bool) -> bool {
        let was_gone = self.is_gone(was_there);
        self.rounds = 0;
        was_gone
    }
}

async fn follow_one<K>(
    api: &Api<K>,
    reporter: &KindEvents,
    make: &impl Fn(K) -> Result<Object, SkippedObject>,
    absence: &mut Absence,
) -> WatchEnd
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let KindEvents { nth, followed, .. } = reporter;
    let selection = WatchSelection { page: followed.page(*nth), ..WatchSelection::default() };
    let mut reports = pin!(watch(api.clone(), selection));
    while let Some(report) = reports.next().await {
        let event = match report {
            WatchReport::Failed(error) if is_no_kind(&error) => return WatchEnd::NoKind,
            WatchReport::Failed(error) => {
                if followed.failed(*nth, &error) {
                    let (kind, error) = (followed.name(*nth), &error as &dyn std::error::Error);
                    tracing::warn!(kind, error, "cannot be watched; retrying");
                }
                if !is_answer(&error) || followed.has_listed(*nth) {
                    continue;
                }
                KindEvent::Unreadable
            }
            WatchReport::Resumed => {
                reporter.reached();
                continue;
            }
            WatchReport::Event(event) => reporter.event(event, make, absence),
        };
        if !reporter.send(event).await {
            break;
        }
    }
    WatchEnd::Unheard
}

fn made(made: Result<Object, SkippedObject>, followed: &WatchStates, nth: usize) -> KindEvent {
    match made {
        Ok(object) => KindEvent::Put(object),
        Err(SkippedObject::Absent(key)) => KindEvent::Gone(key),
        Err(SkippedObject::Bad { key, reason, outline }) => {
            followed.refused(nth);
            tracing::warn!(%key, reason, "cannot be parsed; its last valid state stays in effect");
            KindEvent::Kept(key, outline.map(|object| MisreadObject { object: *object, reason }))
        }
    }
}

/// Whether the API server has answered that it cannot list the kind, for example because a right is missing or a
/// conversion webhook fails. False if the API server cannot be reached.
fn is_answer(error: &WatchError) -> bool {
    let in_list = matches!(error, WatchError::WatchError(_));
    in_list || matches!(request_error(error), Some(leno_kube::Error::Api(_)))
}

/// Whether the API server does not have the kind: its CustomResourceDefinition is not installed.
fn is_no_kind(error: &WatchError) -> bool {
    request_error(error).is_some_and(|error| is_status(error, 404))
}

/// The error of a request for a list or a watch. `None` if the request itself succeeded and something failed
/// later.
fn request_error(error: &WatchError) -> Option<&leno_kube::Error> {
    match error {
        WatchError::InitialListFailed(error) | WatchError::WatchStartFailed(error) => Some(error),
        _ => None,
    }
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
}
