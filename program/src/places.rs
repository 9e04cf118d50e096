//! Who holds the places for connections, so that no client takes them all.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Pause after a failed accept, so that a full descriptor table is not a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Places of a listener. Where all are taken, the client that has the most gives up its oldest for one
/// that has fewer.
#[derive(Clone, Debug)]
pub struct Places {
    total: usize,
    each: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// By age. Who holds the place hears of its end by the sender's.
    by_number: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Place {
    number: u64,
    lost: oneshot::Receiver<()>,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    /// So many in all, and for each address.
    #[must_use]
    pub fn new(total: usize, each: usize) -> Self {
        Self { total, each, taken: Arc::default() }
    }

    /// The next connection that has a place; others are closed, and what fails is logged.
    pub async fn accept(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, Place) {
        loop {
            match listener.accept().await {
                Ok((stream, client)) => match self.take(client.ip()) {
                    Some(place) => return (stream, client, place),
                    None => tracing::debug!(%client, "connection closed: its address has many"),
                },
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// A place for a client; none where its address has as many as it may.
    fn take(&self, address: IpAddr) -> Option<Place> {
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
            if let Some(oldest) = oldest.map(|(number, _)| *number) {
                taken.by_number.remove(&oldest);
            }
        }
        let number = taken.next;
        taken.next += 1;
        let (held, lost) = oneshot::channel();
        taken.by_number.insert(number, (address, held));
        Some(Place { number, lost, taken: Arc::clone(&self.taken) })
    }
}

impl Place {
    /// Works while the place is held; nothing if it was given to somebody else before the end.
    pub async fn hold<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = &mut self.lost => None,
        }
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

    #[tokio::test]
    async fn nobody_takes_all_places_and_who_has_most_gives_one_up() {
        let places = Places::new(4, 3);
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut many: Vec<Place> = (0..3).map(|_| places.take(address(1)).unwrap()).collect();
        assert!(places.take(address(1)).is_none(), "as many as it may");
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert!(places.take(mapped).is_none(), "the same address");
        let second = places.take(address(2)).unwrap();
        let _third = places.take(address(3)).unwrap();
        let holders = || {
            let taken = lock(&places.taken);
            taken.by_number.iter().map(|(n, (ip, _))| (*n, *ip)).collect::<Vec<_>>()
        };
        let [one, two, three] = [1, 2, 3].map(address);
        assert_eq!(holders(), [(1, one), (2, one), (3, two), (4, three)]);
        let oldest = many.remove(0);
        assert_eq!(oldest.hold(std::future::pending::<()>()).await, None, "it was given away");
        assert_eq!(second.hold(async { "work" }).await, Some("work"));
        many.clear();
        assert_eq!(holders(), [(4, three)]);
    }
}
