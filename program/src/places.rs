//! Shares out a listener's connection slots, so that no client takes them all.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// Pause after a failed accept, so that a full descriptor table does not cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connection slots of a listener. When all are taken, a new connection evicts the oldest
/// connection of the address that has the most.
#[derive(Clone, Debug)]
pub struct Places {
    total: usize,
    each: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    /// By age. Dropping a sender tells the holder of the slot that it was evicted.
    by_number: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
}

/// One slot, held until it is dropped.
#[derive(Debug)]
pub struct Place {
    number: u64,
    lost: oneshot::Receiver<()>,
    taken: Arc<Mutex<Taken>>,
}

impl Places {
    /// At most `total` connections, and at most `each` per client address.
    #[must_use]
    pub fn new(total: usize, each: usize) -> Self {
        Self { total, each, taken: Arc::default() }
    }

    /// The next connection that gets a slot. Other connections are closed, and errors are logged.
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

    /// A slot for a client; `None` if its address already has its maximum.
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
    /// Runs `work` while the slot is held; `None` if the connection was evicted before the work was
    /// done.
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

/// No change of the state can panic halfway, so that it is valid even after a panic.
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
