//! A bounded number of places, shared among holders, so that no holder takes them all.
//!
//! When all places are held, the holder with the most loses its oldest one to the holder that asks.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::accept;

/// Places for the connections of holders: addresses or identities.
#[derive(Debug)]
pub struct Shares<K> {
    total: usize,
    each: usize,
    holders: Arc<Mutex<Holders<K>>>,
}

/// By holder and, within one holder, by age.
#[derive(Debug)]
struct Holders<K> {
    next: u64,
    count: usize,
    /// Dropping a sender ends its share.
    of: HashMap<K, BTreeMap<u64, oneshot::Sender<()>>>,
}

/// The right to one place. It ends when it is dropped, or when another holder gets the place.
#[derive(Debug)]
pub struct Share<K: Clone + Eq + Hash> {
    holder: K,
    number: u64,
    lost: oneshot::Receiver<()>,
    holders: Arc<Mutex<Holders<K>>>,
}

impl<K> Clone for Shares<K> {
    fn clone(&self) -> Self {
        Self { total: self.total, each: self.each, holders: Arc::clone(&self.holders) }
    }
}

impl<K: Clone + Eq + Hash> Shares<K> {
    /// `total` places, at most `each` of them for one holder.
    #[must_use]
    pub fn new(total: usize, each: usize) -> Self {
        Self { total, each, holders: Arc::default() }
    }

    /// A place for `holder`; `None` if it holds as many as one holder may.
    #[must_use]
    pub fn take(&self, holder: K) -> Option<Share<K>> {
        let mut holders = lock(&self.holders);
        if holders.of.get(&holder).is_some_and(|held| held.len() >= self.each) {
            return None;
        }
        if holders.count >= self.total {
            holders.cut_oldest_of_largest();
        }
        let (number, lost) = holders.insert(holder.clone());
        Some(Share { holder, number, lost, holders: Arc::clone(&self.holders) })
    }

    /// Places that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        lock(&self.holders).count
    }
}

impl Shares<IpAddr> {
    /// The next connection that gets a place by its client's address. Other connections are closed, and
    /// failures are logged.
    pub async fn accept(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, Share<IpAddr>) {
        loop {
            let (stream, client) = accept("connection", || listener.accept()).await;
            match self.take(client.ip().to_canonical()) {
                Some(share) => return (stream, client, share),
                None => tracing::debug!(%client, "connection closed: its address has many"),
            }
        }
    }
}

impl<K> Default for Holders<K> {
    fn default() -> Self {
        Self { next: 0, count: 0, of: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Holders<K> {
    fn insert(&mut self, holder: K) -> (u64, oneshot::Receiver<()>) {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.count = self.count.saturating_add(1);
        let (sender, lost) = oneshot::channel();
        self.of.entry(holder).or_default().insert(number, sender);
        (number, lost)
    }

    fn remove(&mut self, holder: &K, number: u64) {
        let Some(held) = self.of.get_mut(holder) else { return };
        if held.remove(&number).is_some() {
            self.count = self.count.saturating_sub(1);
        }
        if held.is_empty() {
            self.of.remove(holder);
        }
    }

    /// Linear in the holders, but needed only when all places are held. Of equally large holders,
    /// the one with the oldest share loses it.
    fn cut_oldest_of_largest(&mut self) {
        let oldest = |(holder, held): (&K, &BTreeMap<u64, _>)| {
            Some((held.len(), std::cmp::Reverse(*held.keys().next()?), holder.clone()))
        };
        let largest = self.of.iter().filter_map(oldest).max_by_key(|(len, age, _)| (*len, *age));
        if let Some((_, std::cmp::Reverse(number), holder)) = largest {
            self.remove(&holder, number);
        }
    }
}

impl<K: Clone + Eq + Hash> Share<K> {
    /// The output of `work`; `None` if the place went to another holder before `work` ended.
    pub async fn hold<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = &mut self.lost => None,
        }
    }

    /// Ready once the place went to another holder.
    pub fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.lost).poll(context).map(drop)
    }
}

impl<K: Clone + Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        lock(&self.holders).remove(&self.holder, self.number);
    }
}

/// A panic of another thread leaves the table sound: each change of it is whole.
fn lock<K>(holders: &Mutex<Holders<K>>) -> MutexGuard<'_, Holders<K>> {
    holders.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_holder_takes_all_places_and_the_largest_loses_its_oldest() {
        let shares = Shares::new(4, 3);
        let mut many: Vec<Share<&str>> = (0..3).map(|_| shares.take("a").unwrap()).collect();
        assert!(shares.take("a").is_none(), "as many as one holder may have");
        let second = shares.take("b").unwrap();
        let _third = shares.take("c").unwrap();
        assert_eq!(shares.held(), 4);
        let oldest = many.remove(0);
        assert_eq!(oldest.hold(std::future::pending::<()>()).await, None, "c got its place");
        assert_eq!(second.hold(async { "work" }).await, Some("work"));
        assert_eq!(shares.held(), 3);
        many.clear();
        assert_eq!(shares.held(), 1);
    }

    #[tokio::test]
    async fn of_equally_large_holders_the_oldest_share_is_lost() {
        let shares = Shares::new(2, 2);
        let (a, b) = (shares.take("a").unwrap(), shares.take("b").unwrap());
        let _c = shares.take("c").unwrap();
        assert_eq!(a.hold(std::future::pending::<()>()).await, None);
        assert_eq!(b.hold(async { "work" }).await, Some("work"));
    }

    #[tokio::test]
    async fn an_ipv4_address_mapped_into_ipv6_is_the_same_holder() {
        let listener = TcpListener::bind("[::]:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shares = Shares::new(4, 1);
        let _first = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (_stream, client, share) = shares.accept(&listener).await;
        assert!(client.ip().is_ipv6(), "the listener takes both families");
        assert_eq!(share.holder, IpAddr::from([127, 0, 0, 1]));
    }
}
