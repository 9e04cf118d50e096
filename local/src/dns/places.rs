//! Places of questions that wait for the host's resolvers, shared out among clients.
//!
//! Where a resolver does not answer, questions go on to the next one only if they keep their places that long. So a full
//! table refuses new questions, unless it makes the clients more equal: then the client with most questions loses its
//! newest.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// See the module.
#[derive(Debug)]
pub(super) struct Places {
    total: usize,
    each: usize,
    /// Have no bound of their own: all proxies of a node and the control plane ask from there.
    unbounded: Vec<IpAddr>,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    count: usize,
    /// By client and age. Dropping a sender ends its place.
    of: HashMap<IpAddr, BTreeMap<u64, oneshot::Sender<()>>>,
}

/// The right to one place, until it is dropped or another client gets it.
#[derive(Debug)]
pub(super) struct Place {
    client: IpAddr,
    number: u64,
    lost: oneshot::Receiver<()>,
    held: Arc<Mutex<Held>>,
}

impl Places {
    pub(super) fn new(total: usize, each: usize) -> Self {
        Self { total, each, unbounded: Vec::new(), held: Arc::default() }
    }

    /// These clients may have all places.
    pub(super) fn with_unbounded(self, unbounded: Vec<IpAddr>) -> Self {
        Self { unbounded, ..self }
    }

    /// A place, if there is one for this client.
    pub(super) fn take(&self, client: IpAddr) -> Option<Place> {
        let mut held = lock(&self.held);
        let own = held.of(client);
        if own >= self.each && !self.unbounded.contains(&client) {
            return None;
        }
        if held.count >= self.total {
            let largest = held.of.keys().copied().max_by_key(|client| held.of(*client))?;
            if own.saturating_add(2) > held.of(largest) {
                return None;
            }
            let newest = held.of.get(&largest).and_then(|numbers| numbers.last_key_value());
            let newest = newest.map(|(number, _)| *number)?;
            held.remove(largest, newest);
        }
        let (number, lost) = held.insert(client);
        Some(Place { client, number, lost, held: Arc::clone(&self.held) })
    }
}

impl Held {
    fn of(&self, client: IpAddr) -> usize {
        self.of.get(&client).map_or(0, BTreeMap::len)
    }

    fn insert(&mut self, client: IpAddr) -> (u64, oneshot::Receiver<()>) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.count = self.count.saturating_add(1);
        let (sender, lost) = oneshot::channel();
        self.of.entry(client).or_default().insert(number, sender);
        (number, lost)
    }

    fn remove(&mut self, client: IpAddr, number: u64) {
        let Some(numbers) = self.of.get_mut(&client) else { return };
        if numbers.remove(&number).is_some() {
            self.count = self.count.saturating_sub(1);
        }
        if numbers.is_empty() {
            self.of.remove(&client);
        }
    }
}

impl Place {
    /// The output of `work`; `None` if another client got the place before `work` ended.
    pub(super) async fn hold<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = &mut self.lost => None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.held).remove(self.client, self.number);
    }
}

/// A panic of another thread leaves the table sound: each change of it is whole.
fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> IpAddr {
        IpAddr::from([10, 89, 0, last])
    }

    #[tokio::test]
    async fn a_full_table_gives_a_place_to_a_client_with_two_fewer_than_the_largest_alone() {
        let places = Places::new(5, 3);
        let mut first: Vec<_> = (0..3).map(|_| places.take(client(1)).unwrap()).collect();
        assert!(places.take(client(1)).is_none(), "as many as one client may have");
        let second: Vec<_> = (0..2).map(|_| places.take(client(2)).unwrap()).collect();
        assert!(places.take(client(2)).is_none(), "it would have as many as the first had");
        let third = places.take(client(3)).unwrap();
        let newest = first.pop().unwrap();
        assert_eq!(newest.hold(std::future::pending::<()>()).await, None);
        let oldest = first.remove(0);
        assert_eq!(oldest.hold(async { "asked" }).await, Some("asked"));
        assert_eq!(third.hold(async { "asked" }).await, Some("asked"));
        drop((first, second));
        let held = lock(&places.held);
        assert!(held.count == 0 && held.of.is_empty(), "{held:?}");
    }

    #[test]
    fn equal_clients_keep_their_places() {
        let places = Places::new(2, 2);
        let _held = [1, 2].map(|last| places.take(client(last)).unwrap());
        assert!(places.take(client(3)).is_none());
    }

    #[test]
    fn a_client_without_a_bound_may_have_all_places_until_others_ask() {
        let places = Places::new(4, 1).with_unbounded(vec![client(1)]);
        let _own: Vec<_> = (0..4).map(|_| places.take(client(1)).unwrap()).collect();
        assert!(places.take(client(1)).is_none());
        let _other = places.take(client(2)).unwrap();
        assert!(places.take(client(2)).is_none(), "more than it may have");
    }
}
