//! Collects the events of all watches, and combines them into updates.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use leno_index::ObjectChange;
use leno_resources::{Kind, ObjectKey};
use tokio::time::Instant;

use super::watch::KindEvent;
use super::{WATCHED, WatchedKind};
use crate::MisreadObject;

/// How long the first update waits for a kind that the API server cannot list. An API server that is starting may
/// refuse a list for a moment. If the first update did not wait, proxies would be informed that no such objects
/// exist.
const UNREADABLE: Duration = Duration::from_secs(15);

/// The known objects of every kind, and the changes that were not sent yet.
#[derive(Debug, Default)]
pub(super) struct Collector {
    kinds: [State; WATCHED.len()],
    pending: PendingChanges,
    /// The newest state of each invalid route and policy that was not reported yet.
    misread: BTreeMap<ObjectKey, MisreadObject>,
    /// Whether the first update, which contains all kinds, was sent.
    begun: bool,
}

/// The newest unsent change of each object. Its size is bounded by the number of objects, even if no update can be
/// sent for a long time. Objects that are sent early are not in it.
#[derive(Debug, Default)]
struct PendingChanges(BTreeMap<ObjectKey, ObjectChange>);

/// Whether a cluster has so many objects of this kind that the objects of the first list are sent before the list
/// is complete. The objects of these kinds have no status that could report missing objects too early.
fn is_early(kind: Kind) -> bool {
    matches!(kind, Kind::Service | Kind::EndpointSlice | Kind::Workload)
}

#[derive(Debug, Default)]
struct State {
    complete: bool,
    /// When the API server first answered that it cannot list the objects; `None` after a list.
    unreadable: Option<Instant>,
    known: BTreeSet<ObjectKey>,
    /// Objects that exist but are invalid, whether or not there is a last valid state.
    kept: BTreeSet<ObjectKey>,
    /// During a list that is not the first: the keys of the objects listed so far.
    listed: Option<BTreeSet<ObjectKey>>,
}

impl Collector {
    pub(super) fn take(&mut self, nth: usize, event: KindEvent) {
        let (state, pending, begun) = (&mut self.kinds[nth], &mut self.pending, self.begun);
        match event {
            // During a first list, no object can be missing.
            KindEvent::Begin => state.listed = state.has_any().then(BTreeSet::new),
            KindEvent::Put(object) => {
                let key = object.key();
                if let Some(listed) = &mut state.listed {
                    listed.insert(key.clone());
                }
                state.kept.remove(&key);
                self.misread.remove(&key);
                state.known.insert(key.clone());
                pending.0.insert(key, ObjectChange::Upsert(object));
            }
            KindEvent::Kept(key, misread) => {
                // If no valid state of the policy is known, for example after a restart, its outline takes effect.
                // Otherwise requests that the policy denies would be permitted.
                let is_first = !state.known.contains(&key);
                let outline = misread.as_ref().filter(|_| key.kind == Kind::AuthorizationPolicy);
                if let (true, Some(outline)) = (is_first, outline) {
                    state.known.insert(key.clone());
                    pending.0.insert(key.clone(), ObjectChange::Upsert(outline.object.clone()));
                }
                self.misread.extend(misread.map(|misread| (key.clone(), misread)));
                if let Some(listed) = &mut state.listed {
                    listed.insert(key.clone());
                }
                state.kept.insert(key);
            }
            KindEvent::Gone(key) => {
                if let Some(listed) = &mut state.listed {
                    listed.remove(&key);
                }
                self.misread.remove(&key);
                // The deletion is sent whether or not the object was valid.
                if state.known.remove(&key) | state.kept.remove(&key) {
                    pending.end(key, begun);
                }
            }
            KindEvent::Complete => {
                if let Some(listed) = state.listed.take() {
                    state.keep_only(&listed, pending, begun);
                }
                state.complete = true;
                state.unreadable = None;
            }
            KindEvent::Unreadable => {
                state.unreadable.get_or_insert_with(Instant::now);
            }
            KindEvent::NoKind => {
                state.listed = None;
                state.keep_only(&BTreeSet::new(), pending, begun);
                state.complete = true;
            }
        }
    }

    /// How many objects of a kind have a state that is in effect.
    pub(super) fn count(&self, nth: usize) -> usize {
        self.kinds[nth].known.len()
    }

    /// The kinds that were not listed yet.
    pub(super) fn missing(&self) -> Vec<WatchedKind> {
        let all = WATCHED.into_iter().zip(&self.kinds);
        all.filter(|(_, state)| !state.complete).map(|(watched, _)| watched).collect()
    }

    /// Whether the first update must wait for a kind that has not been listed. If the API server cannot list a
    /// kind, because a right is missing or a conversion webhook is broken, the first update waits only for a
    /// limited time. After that, only objects of this kind are missing. It waits without limit for namespaces,
    /// services, endpoints and pods, because nothing can be served without them.
    fn waits(&self) -> bool {
        let missing = self.missing();
        let needed = |one: &WatchedKind| match one {
            WatchedKind::Core(kind) => *kind != Kind::ConfigMap,
            WatchedKind::Pods => true,
            WatchedKind::Custom(_) => false,
        };
        if missing.iter().any(needed) {
            return true;
        }
        let waited = |state: &State| {
            state.complete || state.unreadable.is_some_and(|since| since.elapsed() >= UNREADABLE)
        };
        !self.kinds.iter().all(waited)
    }

    /// Before the first update: objects of kinds that usually have many, which are sent in advance.
    pub(super) fn early(&mut self) -> Vec<ObjectChange> {
        if self.begun {
            return Vec::new();
        }
        let early = self.pending.0.extract_if(.., |key, _| is_early(key.kind));
        early.map(|(_, change)| change).collect()
    }

    /// Returns the changes to send now. There are none before all kinds that can be listed were listed. The first
    /// update then has all objects, even if there are none; later ones have the differences.
    pub(super) fn changes(&mut self) -> Option<Vec<ObjectChange>> {
        if !self.begun {
            if self.waits() {
                return None;
            }
            let missing = self.missing();
            if !missing.is_empty() {
                let missing: Vec<_> = missing.into_iter().map(WatchedKind::as_str).collect();
                tracing::error!(?missing, "serving without these kinds: they cannot be listed");
            }
            self.begun = true;
            return Some(self.pending.take());
        }
        Some(self.pending.take()).filter(|changes| !changes.is_empty())
    }

    /// The invalid routes and policies that were not reported yet. The caller calls this after
    /// [`changes`](Self::changes), and reports the result after those changes. Returns nothing before the first
    /// update.
    pub(super) fn misread(&mut self) -> Vec<MisreadObject> {
        if !self.begun {
            return Vec::new();
        }
        let misread = mem::take(&mut self.misread).into_iter();
        let kept = |key: &ObjectKey| self.kinds.iter().any(|state| state.kept.contains(key));
        misread.filter(|(key, _)| kept(key)).map(|(_, misread)| misread).collect()
    }
}

impl PendingChanges {
    /// Records the deletion of an object. Before the first update, receivers do not have the object, unless it was
    /// sent early.
    fn end(&mut self, key: ObjectKey, begun: bool) {
        if begun || is_early(key.kind) {
            self.0.insert(key.clone(), ObjectChange::Delete(key));
        } else {
            self.0.remove(&key);
        }
    }

    fn take(&mut self) -> Vec<ObjectChange> {
        mem::take(&mut self.0).into_values().collect()
    }
}

impl State {
    fn has_any(&self) -> bool {
        !self.known.is_empty() || !self.kept.is_empty()
    }

    /// Removes the objects that the list did not contain.
    fn keep_only(
        &mut self,
        listed: &BTreeSet<ObjectKey>,
        pending: &mut PendingChanges,
        begun: bool,
    ) {
        let gone: BTreeSet<_> = self.known.union(&self.kept).collect();
        let gone = gone.into_iter().filter(|key| !listed.contains(key));
        gone.for_each(|key| pending.end(key.clone(), begun));
        self.known.retain(|key| listed.contains(key));
        self.kept.retain(|key| listed.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_resources::{Kind, Object};

    fn namespace(name: &str) -> Object {
        let mut namespace = leno_resources::Namespace::default();
        namespace.metadata.name = Some(name.to_owned());
        Object::Namespace(Box::new(namespace))
    }

    fn all_empty_but_the_first(collector: &mut Collector) {
        for nth in 1..WATCHED.len() {
            collector.take(nth, KindEvent::NoKind);
        }
    }

    #[test]
    fn nothing_is_told_before_every_kind_was_listed() {
        let mut collector = Collector::default();
        collector.take(0, KindEvent::Begin);
        collector.take(0, KindEvent::Put(namespace("a")));
        all_empty_but_the_first(&mut collector);
        assert_eq!(collector.changes(), None);
        assert_eq!(collector.missing(), [WatchedKind::Core(Kind::Namespace)]);
        collector.take(0, KindEvent::Complete);
        assert_eq!(collector.changes(), Some(vec![ObjectChange::Upsert(namespace("a"))]));
        assert_eq!(collector.changes(), None);
    }

    fn pod(name: &str) -> Object {
        let metadata = leno_resources::Metadata { name: name.to_owned(), ..Default::default() };
        let spec = leno_resources::WorkloadSpec::default();
        Object::Workload(Box::new(leno_resources::Workload { metadata, spec, status: None }))
    }

    #[test]
    fn pods_of_the_first_list_are_sent_early_and_those_that_go_meanwhile_are_taken_back() {
        const PODS: usize = 3;
        assert_eq!(WATCHED[PODS], WatchedKind::Pods);
        let mut collector = Collector::default();
        collector.take(0, KindEvent::Begin);
        collector.take(0, KindEvent::Put(namespace("a")));
        collector.take(PODS, KindEvent::Begin);
        collector.take(PODS, KindEvent::Put(pod("p")));
        collector.take(PODS, KindEvent::Put(pod("q")));
        let both = [ObjectChange::Upsert(pod("p")), ObjectChange::Upsert(pod("q"))];
        assert_eq!(collector.early(), both);
        assert_eq!(collector.changes(), None, "the lists are not complete");
        // The list has failed and begins again.
        collector.take(PODS, KindEvent::Begin);
        collector.take(PODS, KindEvent::Put(pod("q")));
        collector.take(PODS, KindEvent::Complete);
        let deleted = ObjectChange::Delete(pod("p").key());
        assert_eq!(collector.early(), [deleted, ObjectChange::Upsert(pod("q"))]);
        collector.take(PODS, KindEvent::Put(pod("r")));
        (0..WATCHED.len()).filter(|nth| ![0, PODS].contains(nth)).for_each(|nth| {
            collector.take(nth, KindEvent::NoKind);
        });
        collector.take(0, KindEvent::Complete);
        let rest = [ObjectChange::Upsert(namespace("a")), ObjectChange::Upsert(pod("r"))];
        assert_eq!(collector.changes(), Some(rest.to_vec()));
        collector.take(PODS, KindEvent::Put(pod("s")));
        assert_eq!(collector.early(), [], "changes are sent as one from now on");
        assert_eq!(collector.changes(), Some(vec![ObjectChange::Upsert(pod("s"))]));
    }

    #[test]
    fn an_empty_cluster_is_told_of_once() {
        let mut collector = Collector::default();
        collector.take(0, KindEvent::Begin);
        collector.take(0, KindEvent::Complete);
        all_empty_but_the_first(&mut collector);
        assert_eq!(collector.changes(), Some(vec![]));
        assert_eq!(collector.changes(), None);
    }

    #[test]
    fn objects_missing_in_a_new_list_are_deleted_and_unknown_ones_are_not() {
        let mut collector = Collector::default();
        collector.take(0, KindEvent::Begin);
        collector.take(0, KindEvent::Put(namespace("a")));
        collector.take(0, KindEvent::Put(namespace("b")));
        collector.take(0, KindEvent::Complete);
        all_empty_but_the_first(&mut collector);
        collector.changes();
        collector.take(0, KindEvent::Begin);
        collector.take(0, KindEvent::Put(namespace("b")));
        collector.take(0, KindEvent::Complete);
        collector.take(0, KindEvent::Gone(namespace("c").key()));
        let expected =
            [ObjectChange::Delete(namespace("a").key()), ObjectChange::Upsert(namespace("b"))];
        assert_eq!(collector.changes(), Some(expected.to_vec()));
        collector.take(0, KindEvent::NoKind);
        assert_eq!(collector.changes(), Some(vec![ObjectChange::Delete(namespace("b").key())]));
    }

    /// The API server cannot list the kind, for example because a conversion webhook is broken or a right is
    /// missing.
    #[tokio::test(start_paused = true)]
    async fn a_kind_that_cannot_be_listed_costs_its_own_objects_only() {
        let route =
            WATCHED.iter().position(|one| *one == WatchedKind::Custom(Kind::HttpRoute)).unwrap();
        let all_but = |collector: &mut Collector, nth: usize| {
            let others = (0..WATCHED.len()).filter(|other| *other != nth);
            others.for_each(|other| collector.take(other, KindEvent::NoKind));
        };
        let mut collector = Collector::default();
        all_but(&mut collector, route);
        collector.take(route, KindEvent::Unreadable);
        assert_eq!(collector.changes(), None, "it may be there in a moment");
        tokio::time::advance(UNREADABLE).await;
        collector.take(route, KindEvent::Unreadable);
        assert_eq!(collector.changes(), Some(vec![]), "the others are served");
        collector.take(route, KindEvent::Begin);
        collector.take(route, KindEvent::Put(namespace("a")));
        collector.take(route, KindEvent::Complete);
        assert_eq!(collector.changes(), Some(vec![ObjectChange::Upsert(namespace("a"))]));

        let mut collector = Collector::default();
        all_but(&mut collector, 3);
        assert_eq!(WATCHED[3], WatchedKind::Pods);
        collector.take(3, KindEvent::Unreadable);
        tokio::time::advance(UNREADABLE * 100).await;
        collector.take(3, KindEvent::Unreadable);
        assert_eq!(collector.changes(), None, "without pods there is nothing to serve");
    }

    /// What the source sends after each batch of events, in order: the changes, then invalid objects.
    fn told(collector: &mut Collector) -> (Option<Vec<ObjectChange>>, Vec<MisreadObject>) {
        (collector.changes(), collector.misread())
    }

    fn kept(name: &str, reason: &str) -> (KindEvent, MisreadObject) {
        let misread = MisreadObject { object: namespace(name), reason: reason.to_owned() };
        (KindEvent::Kept(namespace(name).key(), Some(misread.clone())), misread)
    }

    #[test]
    fn invalid_objects_are_reported_once_with_the_first_changes() {
        let mut collector = Collector::default();
        let (event, misread) = kept("a", "why");
        collector.take(0, KindEvent::Begin);
        collector.take(0, event);
        all_empty_but_the_first(&mut collector);
        assert_eq!(told(&mut collector), (None, vec![]));
        collector.take(0, KindEvent::Complete);
        assert_eq!(told(&mut collector), (Some(vec![]), vec![misread]));
        assert_eq!(told(&mut collector), (None, vec![]));
        collector.take(0, KindEvent::Gone(namespace("a").key()));
        let gone = Some(vec![ObjectChange::Delete(namespace("a").key())]);
        assert_eq!(told(&mut collector), (gone, vec![]));
    }

    #[test]
    fn the_outline_of_an_invalid_authorization_policy_counts_until_it_has_a_good_state() {
        let policy = |rules: &str| {
            let spec = format!(r#"{{"selector":{{}},"rules":{rules}}}"#);
            let text = format!(
                r#"{{"apiVersion":"leno.dev/v1alpha1","kind":"AuthorizationPolicy",
                "metadata":{{"name":"p","namespace":"shop"}},"spec":{spec}}}"#
            );
            leno_resources::parse("p", &text).unwrap().objects.remove(0).value
        };
        let (outline, good) = (policy("[]"), policy("[{}]"));
        let misread = || {
            let misread = MisreadObject { object: outline.clone(), reason: "why".to_owned() };
            KindEvent::Kept(outline.key(), Some(misread))
        };
        let mut collector = Collector::default();
        collector.take(0, misread());
        (0..WATCHED.len()).for_each(|nth| collector.take(nth, KindEvent::NoKind));
        assert_eq!(told(&mut collector).0, Some(vec![]), "it is gone");

        let upsert = |object: &Object| Some(vec![ObjectChange::Upsert(object.clone())]);
        collector.take(0, misread());
        let (changes, said) = told(&mut collector);
        assert_eq!((changes, said.len()), (upsert(&outline), 1));
        collector.take(0, KindEvent::Put(good.clone()));
        assert_eq!(told(&mut collector).0, upsert(&good));
        collector.take(0, misread());
        let (changes, said) = told(&mut collector);
        assert_eq!((changes, said.len()), (None, 1), "the last good state stays in effect");
        collector.take(0, KindEvent::Gone(outline.key()));
        assert_eq!(told(&mut collector).0, Some(vec![ObjectChange::Delete(outline.key())]));
    }

    #[test]
    fn only_the_newest_state_of_an_object_in_a_batch_is_reported() {
        let mut collector = Collector::default();
        (0..WATCHED.len()).for_each(|nth| collector.take(nth, KindEvent::NoKind));
        told(&mut collector);
        let put = || KindEvent::Put(namespace("a"));
        let upsert = || Some(vec![ObjectChange::Upsert(namespace("a"))]);
        collector.take(0, put());
        collector.take(0, kept("a", "first").0);
        let (event, newest) = kept("a", "newest");
        collector.take(0, event);
        assert_eq!(told(&mut collector), (upsert(), vec![newest]));
        collector.take(0, kept("a", "why").0);
        collector.take(0, put());
        assert_eq!(told(&mut collector), (upsert(), vec![]), "it is understood again");
        collector.take(0, kept("a", "why").0);
        collector.take(0, KindEvent::Gone(namespace("a").key()));
        let gone = Some(vec![ObjectChange::Delete(namespace("a").key())]);
        assert_eq!(told(&mut collector), (gone, vec![]));
    }

    #[test]
    fn changes_do_not_pile_up_while_they_cannot_be_sent() {
        let mut collector = Collector::default();
        collector.take(0, KindEvent::Begin);
        for _ in 0..1_000 {
            collector.take(0, KindEvent::Put(namespace("a")));
            collector.take(0, KindEvent::Put(namespace("b")));
            collector.take(0, KindEvent::Gone(namespace("b").key()));
        }
        assert_eq!(collector.pending.0.len(), 1);
        collector.take(0, KindEvent::Complete);
        all_empty_but_the_first(&mut collector);
        assert_eq!(collector.changes(), Some(vec![ObjectChange::Upsert(namespace("a"))]));
    }

    #[test]
    fn an_object_that_no_longer_parses_keeps_its_last_value_also_after_a_new_list() {
        let mut collector = Collector::default();
        collector.take(0, KindEvent::Begin);
        collector.take(0, KindEvent::Put(namespace("a")));
        collector.take(0, KindEvent::Complete);
        all_empty_but_the_first(&mut collector);
        collector.changes();
        collector.take(0, KindEvent::Begin);
        collector.take(0, KindEvent::Kept(namespace("a").key(), None));
        collector.take(0, KindEvent::Complete);
        assert_eq!(collector.changes(), None);
        assert_eq!(collector.count(0), 1);
    }
}
