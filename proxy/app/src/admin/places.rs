//! Who holds the places for connections, so that no client takes them all.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Places of a listener. Where all are taken, the client that has the most gives up its oldest for one
/// that has fewer.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    total: usize,
    each: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// By age.
    by_number: BTreeMap<u64, (IpAddr, Option<AbortHandle>)>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    number: u64,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    /// So many in all, and for each address.
    pub(crate) fn new(total: usize, each: usize) -> Self {
        Self { total, each, taken: Arc::default() }
    }

    /// A place for a client; none where its address has as many as it may.
    pub(crate) fn take(&self, address: IpAddr) -> Option<Place> {
        let address = address.to_canonical();
        let mut taken = lock(&self.taken);
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        taken.by_number.values().for_each(|(holder, _)| *counts.entry(*holder).or_default() += 1);
        if counts.get(&address).is_some_and(|count| *count >= self.each) {
            return None;
        }
        if taken.by_number.len() >= self.total {
            let most = counts.values().copied().max().unwrap_or_default();
            let oldest = taken.by_number.iter().find(|(_, (holder, _))| counts[holder] == most);
            let oldest = oldest.map(|(number, _)| *number);
            let ended = oldest.and_then(|number| taken.by_number.remove(&number));
            if let Some((_, Some(task))) = ended {
                task.abort();
            }
        }
        let number = taken.next;
        taken.next += 1;
        taken.by_number.insert(number, (address, None));
        Some(Place { number, taken: Arc::clone(&self.taken) })
    }

    /// Says what to end when place `number` is given to somebody else.
    pub(crate) fn held(&self, number: u64, task: AbortHandle) {
        match lock(&self.taken).by_number.get_mut(&number) {
            Some((_, holder)) => *holder = Some(task),
            // It has ended, or its place was given away at once.
            None => task.abort(),
        }
    }
}

impl Place {
    /// Its number.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.taken).by_number.remove(&self.number);
    }
}

/// Every change of it is whole, so that one that panicked has left it good.
fn lock(taken: &Mutex<Taken>) -> MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_all_places_and_who_has_most_gives_one_up() {
        let places = Places::new(4, 3);
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut many: Vec<Place> = (0..3).map(|_| places.take(address(1)).unwrap()).collect();
        assert!(places.take(address(1)).is_none(), "as many as it may");
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert!(places.take(mapped).is_none(), "the same address");
        let _second = places.take(address(2)).unwrap();
        let _third = places.take(address(3)).unwrap();
        let holders = || {
            let taken = lock(&places.taken);
            taken.by_number.iter().map(|(n, (ip, _))| (*n, *ip)).collect::<Vec<_>>()
        };
        let [one, two, three] = [1, 2, 3].map(address);
        assert_eq!(holders(), [(1, one), (2, one), (3, two), (4, three)]);
        many.clear();
        assert_eq!(holders(), [(3, two), (4, three)]);
    }
}
