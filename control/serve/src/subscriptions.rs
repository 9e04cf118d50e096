//! The subscriptions of all streams, so that a change of the index wakes only the streams that need it.
//!
//! ```text
//!   change of the index ──► Subscriptions ──► Mailbox of each subscribed stream ──► its task wakes
//!                           subject -> streams    subjects to compare, each once
//! ```
//!
//! A mailbox contains names, not values. So it never has more entries than its stream has subscriptions, however
//! many changes there are before the stream reads it. The stream then sends the newest values.
//!
//! The number of all subscriptions is bounded, and a namespace may have at most as many as are still free. So if
//! one namespace takes as many as it can, it gets half of them and half stay free; if two do, each gets a third.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_index::ChangedNames;
use leno_types::InstanceName;
use leno_types::mesh::Subject;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Most subscriptions of all streams, of about 300 bytes each. 2,000 proxies with 66 subscriptions each, as in
/// `make scale`, use 13 % of them. One namespace that takes as many as it can uses about 150 MB.
const MAX_ALL: usize = 1 << 20;
/// How many subscriptions each stream may always have, even if others use up the rest. It is enough for the
/// addresses that a usual workload calls.
const OF_EACH: usize = 128;

/// All subscriptions. The lock is only held for hash look-ups; nothing is encoded or sent under it.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions(Mutex<SubscriptionTable>);

#[derive(Debug, Default)]
struct SubscriptionTable {
    /// The mailboxes of the streams that are subscribed to each subject.
    subjects: HashMap<Subject, Vec<Arc<Mailbox>>>,
    /// The number of subscriptions of each namespace's streams.
    by_namespace: HashMap<Arc<str>, usize>,
    /// The number of all subscriptions to subjects.
    count: usize,
    /// The mailboxes of the streams that are subscribed to the policy of each workload.
    policies: HashMap<InstanceName, Vec<Arc<Mailbox>>>,
    trust: Vec<Arc<Mailbox>>,
}

/// What has changed for one stream since it last read this.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    changes: Mutex<StreamChanges>,
    wake: Notify,
}

/// The content of a mailbox.
#[derive(Debug, Default)]
pub(crate) struct StreamChanges {
    /// Subjects whose answer may have changed. The stream is subscribed to each of them.
    pub(crate) subjects: HashSet<Subject>,
    /// Whether the policy of the stream's own workload has changed.
    pub(crate) policy: bool,
    /// Whether the trust bundle has changed.
    pub(crate) trust: bool,
    /// When the first of the changes was received.
    pub(crate) since: Option<Instant>,
}

impl Mailbox {
    /// Returns when there are changes to read.
    pub(crate) async fn changed(&self) {
        self.wake.notified().await;
    }

    pub(crate) fn take(&self) -> StreamChanges {
        std::mem::take(&mut self.changes())
    }

    /// Adds changes, and wakes the stream unless it has not yet read the changes for which it was last woken.
    fn put(&self, since: Instant, new: StreamChanges) -> bool {
        let mut changes = self.changes();
        let was_empty = changes.subjects.is_empty() && !changes.policy && !changes.trust;
        if was_empty {
            changes.subjects = new.subjects;
        } else {
            changes.subjects.extend(new.subjects);
        }
        changes.policy |= new.policy;
        changes.trust |= new.trust;
        changes.since.get_or_insert(since);
        drop(changes);
        if was_empty {
            self.wake.notify_one();
        }
        was_empty
    }

    /// Poisoning is ignored, because changes under the lock are complete even after a panic.
    fn changes(&self) -> MutexGuard<'_, StreamChanges> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The changes of one update, by the address of the mailbox that gets them.
#[derive(Default)]
struct Deliveries(HashMap<*const Mailbox, (Arc<Mailbox>, StreamChanges)>);

impl Deliveries {
    fn of(&mut self, mailbox: &Arc<Mailbox>) -> &mut StreamChanges {
        let empty = || (Arc::clone(mailbox), StreamChanges::default());
        &mut self.0.entry(Arc::as_ptr(mailbox)).or_insert_with(empty).1
    }

    /// Puts the changes into their mailboxes. Returns how many streams this wakes.
    fn put_all(self, since: Instant) -> u64 {
        let deliveries = self.0.into_values();
        deliveries.map(|(mailbox, changes)| u64::from(mailbox.put(since, changes))).sum()
    }
}

impl Subscriptions {
    /// Subscribes a stream to subjects, as far as the bounds of its namespace permit. The stream already has
    /// `held` subscriptions. Returns how many were added. The caller must read the index after this call, so that
    /// no change is missed.
    pub(crate) fn add<'a>(
        &self,
        mailbox: &Arc<Mailbox>,
        (namespace, held): (&str, usize),
        subjects: impl Iterator<Item = &'a Subject>,
    ) -> usize {
        let mut all = self.subscribed();
        let mut added = 0;
        for subject in subjects {
            if held + added >= OF_EACH && !all.has_room(namespace) {
                break;
            }
            all.count(namespace);
            all.subjects.entry(subject.clone()).or_default().push(Arc::clone(mailbox));
            added += 1;
        }
        added
    }

    pub(crate) fn remove<'a>(
        &self,
        mailbox: &Arc<Mailbox>,
        namespace: &str,
        subjects: impl Iterator<Item = &'a Subject>,
    ) {
        let mut all = self.subscribed();
        for subject in subjects {
            if remove(&mut all.subjects, subject, mailbox) {
                all.uncount(namespace);
            }
        }
    }

    /// The number of subscriptions of all streams.
    pub(crate) fn count(&self) -> u64 {
        self.subscribed().count as u64
    }

    pub(crate) fn add_policy(&self, mailbox: &Arc<Mailbox>, of: &InstanceName) {
        self.subscribed().policies.entry(of.clone()).or_default().push(Arc::clone(mailbox));
    }

    pub(crate) fn remove_policy(&self, mailbox: &Arc<Mailbox>, of: &InstanceName) {
        let _ = remove(&mut self.subscribed().policies, of, mailbox);
    }

    pub(crate) fn add_trust(&self, mailbox: &Arc<Mailbox>) {
        self.subscribed().trust.push(Arc::clone(mailbox));
    }

    pub(crate) fn remove_trust(&self, mailbox: &Arc<Mailbox>) {
        self.subscribed().trust.retain(|one| !Arc::ptr_eq(one, mailbox));
    }

    /// Notifies the streams that have subscribed to the trust bundle. Returns how many of them it wakes.
    pub(crate) fn publish_trust(&self, since: Instant) -> u64 {
        let all = self.subscribed();
        let changed = || StreamChanges { trust: true, ..StreamChanges::default() };
        all.trust.iter().map(|one| u64::from(one.put(since, changed()))).sum()
    }

    /// Whether a stream has subscribed to the subject.
    pub(crate) fn has(&self, subject: &Subject) -> bool {
        self.subscribed().subjects.contains_key(subject)
    }

    /// Whether a stream has subscribed to the policy of a workload.
    pub(crate) fn has_policy(&self, of: &InstanceName) -> bool {
        self.subscribed().policies.contains_key(of)
    }

    /// Notifies the subscribed streams of changes that were received at `since`. Returns how many of them it
    /// wakes. Each stream gets all of its changes at once. Otherwise a stream that is woken by the first change
    /// would send only a part of the update, and the rest with its next push.
    pub(crate) fn publish(&self, changed: &ChangedNames, since: Instant) -> u64 {
        let mut deliveries = Deliveries::default();
        let all = self.subscribed();
        let services = changed.services.iter().cloned().map(Subject::Service);
        for subject in changed.addresses.iter().copied().map(Subject::Address).chain(services) {
            for mailbox in all.subjects.get(&subject).into_iter().flatten() {
                deliveries.of(mailbox).subjects.insert(subject.clone());
            }
        }
        for mailbox in changed.policies.iter().filter_map(|of| all.policies.get(of)).flatten() {
            deliveries.of(mailbox).policy = true;
        }
        drop(all);
        deliveries.put_all(since)
    }

    /// Poisoning is ignored, because changes under the lock are complete even after a panic.
    fn subscribed(&self) -> MutexGuard<'_, SubscriptionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SubscriptionTable {
    /// Whether a namespace may add a subscription, which it may if it has fewer than are free.
    fn has_room(&self, namespace: &str) -> bool {
        let held = self.by_namespace.get(namespace).copied().unwrap_or_default();
        held < MAX_ALL.saturating_sub(self.count)
    }

    fn count(&mut self, namespace: &str) {
        self.count += 1;
        match self.by_namespace.get_mut(namespace) {
            Some(held) => *held += 1,
            None => _ = self.by_namespace.insert(namespace.into(), 1),
        }
    }

    fn uncount(&mut self, namespace: &str) {
        let Some(held) = self.by_namespace.get_mut(namespace) else { return };
        self.count -= 1;
        *held -= 1;
        if *held == 0 {
            self.by_namespace.remove(namespace);
        }
    }
}

/// Removes a mailbox. Returns whether it was there.
fn remove<K: Eq + Hash>(
    of: &mut HashMap<K, Vec<Arc<Mailbox>>>,
    key: &K,
    mailbox: &Arc<Mailbox>,
) -> bool {
    let Some(mailboxes) = of.get_mut(key) else { return false };
    let place = mailboxes.iter().position(|one| Arc::ptr_eq(one, mailbox));
    if let Some(place) = place {
        mailboxes.swap_remove(place);
    }
    if mailboxes.is_empty() {
        of.remove(key);
    }
    place.is_some()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use leno_types::ServiceName;

    use super::*;

    fn changed(service: &str) -> ChangedNames {
        ChangedNames { services: [service.parse().unwrap()].into(), ..ChangedNames::default() }
    }

    fn subject(service: &str) -> Subject {
        Subject::Service(service.parse::<ServiceName>().unwrap())
    }

    #[test]
    fn a_change_wakes_the_streams_that_asked_and_each_once() {
        let subscriptions = Subscriptions::default();
        let [one, other] = [Arc::<Mailbox>::default(), Arc::default()];
        subscriptions.add(&one, ("shop", 0), [subject("shop/a"), subject("shop/b")].iter());
        subscriptions.add(&other, ("shop", 0), [subject("shop/b")].iter());
        assert_eq!(subscriptions.publish(&changed("shop/a"), Instant::now()), 1);
        assert_eq!(
            subscriptions.publish(&changed("shop/a"), Instant::now()),
            0,
            "it has not read its mailbox yet"
        );
        assert_eq!(subscriptions.publish(&changed("shop/b"), Instant::now()), 1);
        assert_eq!(subscriptions.publish(&changed("shop/c"), Instant::now()), 0);
        assert_eq!(one.take().subjects, [subject("shop/a"), subject("shop/b")].into());
        assert_eq!(other.take().subjects, [subject("shop/b")].into());
        assert_eq!(
            subscriptions.publish(&changed("shop/a"), Instant::now()),
            1,
            "it has read its mailbox"
        );
    }

    /// Each stream subscribes to more subjects than its namespace may have.
    #[test]
    fn a_namespace_that_takes_all_subscriptions_leaves_as_many_to_others() {
        let subscriptions = Subscriptions::default();
        let [one, two, small, last] = [(); 4].map(|()| Arc::<Mailbox>::default());
        let numbers = 0..=u32::try_from(MAX_ALL / 2).unwrap();
        let many: Vec<Subject> =
            numbers.map(|number| Subject::Address(Ipv4Addr::from(number).into())).collect();
        let all = || many.iter();
        let first = subscriptions.add(&one, ("one", 0), all());
        assert_eq!(first, MAX_ALL / 2);
        assert_eq!(subscriptions.add(&one, ("one", first), all()), 0, "its share is used up");
        let second = subscriptions.add(&two, ("two", 0), all());
        assert_eq!(second, MAX_ALL / 4);
        let wanted = [subject("shop/a"), subject("shop/b")];
        assert_eq!(subscriptions.add(&small, ("shop", 0), wanted.iter()), 2);
        // Even if the share of its namespace is used up, a stream still gets what a usual workload needs.
        assert_eq!(subscriptions.add(&last, ("one", 0), all()), OF_EACH);
        assert_eq!(subscriptions.count() as usize, first + second + 2 + OF_EACH);
        assert_eq!(subscriptions.publish(&changed("shop/b"), Instant::now()), 1);

        subscriptions.remove(&one, "one", all().take(first));
        subscriptions.remove(&one, "one", all().take(1));
        assert_eq!(subscriptions.count() as usize, second + 2 + OF_EACH, "each is counted once");
        let next = subscriptions.add(&two, ("two", second), all().skip(second).take(1));
        assert_eq!(next, 1, "ended subscriptions are free again");
        for (mailbox, namespace) in [(&one, "one"), (&two, "two"), (&last, "one")] {
            subscriptions.remove(mailbox, namespace, all());
        }
        subscriptions.remove(&small, "shop", wanted.iter());
        assert_eq!(subscriptions.count(), 0);
        assert!(subscriptions.subscribed().by_namespace.is_empty());
    }

    #[test]
    fn a_stream_gets_all_changes_of_an_update_at_once() {
        const SERVICES: usize = 200;
        const UPDATES: usize = 50;
        let names = (0..SERVICES).map(|number| format!("shop/s{number}"));
        let subjects: HashSet<Subject> = names.map(|name| subject(&name)).collect();
        let update = ChangedNames {
            services: (0..SERVICES)
                .map(|number| format!("shop/s{number}").parse().unwrap())
                .collect(),
            policies: ["shop/web-0".parse().unwrap()].into(),
            ..ChangedNames::default()
        };
        let (subscriptions, mailbox) = (Subscriptions::default(), Arc::<Mailbox>::default());
        subscriptions.add(&mailbox, ("shop", 0), subjects.iter());
        subscriptions.add_policy(&mailbox, &"shop/web-0".parse().unwrap());
        let publishing = std::sync::atomic::AtomicBool::new(true);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for _ in 0..UPDATES {
                    subscriptions.publish(&update, Instant::now());
                }
                publishing.store(false, std::sync::atomic::Ordering::Release);
            });
            // This stream keeps reading its mailbox.
            let mut looks = 0;
            while publishing.load(std::sync::atomic::Ordering::Acquire) || looks == 0 {
                let changes = mailbox.take();
                if !changes.subjects.is_empty() || changes.policy {
                    looks += 1;
                    assert_eq!((changes.subjects.len(), changes.policy), (SERVICES, true));
                }
            }
        });
    }

    #[test]
    fn a_stream_that_left_is_not_kept() {
        let subscriptions = Subscriptions::default();
        let mailbox = Arc::<Mailbox>::default();
        let web: InstanceName = "shop/web-0".parse().unwrap();
        subscriptions.add(&mailbox, ("shop", 0), [subject("shop/a")].iter());
        subscriptions.add_policy(&mailbox, &web);
        assert!(subscriptions.has(&subject("shop/a")) && subscriptions.has_policy(&web));
        subscriptions.remove(&mailbox, "shop", [subject("shop/a")].iter());
        subscriptions.remove_policy(&mailbox, &web);
        assert!(!subscriptions.has(&subject("shop/a")) && !subscriptions.has_policy(&web));
        assert_eq!(Arc::strong_count(&mailbox), 1);
    }
}
