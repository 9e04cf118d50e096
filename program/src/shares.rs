//! A bounded number of places, for example for connections, that is shared among holders so that no holder takes them
//! all. A holder is a client, by its address or its identity.
//!
//! If a place is requested while all are taken, the holder with the most places loses one to the requester. By default
//! it loses its oldest place. For work that is worthless unless it is finished ([`Shares::keeping`]), the largest
//! holder loses its newest place, and only if it has at least two places more than the requester. Otherwise the request
//! is refused.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use crate::accept;

/// A table of the places and their holders. A clone refers to the same table.
#[derive(Debug)]
pub struct Shares<K> {
    total: usize,
    each: usize,
    /// The holders to which the bound `each` does not apply.
    unbounded: Arc<[K]>,
    when_full: WhenFull,
    holders: Arc<Mutex<Holders<K>>>,
}

/// What happens if a holder requests a place while all are taken.
#[derive(Clone, Copy, Debug)]
enum WhenFull {
    /// It gets the oldest place of the largest holder.
    TakeOldest,
    /// The largest holder loses its newest place to the requester if it has at least two more places than the
    /// requester. Otherwise the request is refused.
    TakeNewestOfLarger,
}

/// How many places of [`Shares`] are taken now, and what was counted since they were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShareCounts {
    /// Places that are held.
    pub held: usize,
    /// Refusals of a holder that had as many places as one may have, or for which there was none.
    pub refused: u64,
    /// Places that went to another holder.
    pub lost: u64,
}

/// The places that are taken, by holder, and for each holder by age: numbers are assigned in ascending order.
#[derive(Debug)]
struct Holders<K> {
    next: u64,
    count: usize,
    refused: u64,
    lost: u64,
    /// Dropping a sender ends its share.
    of: HashMap<K, BTreeMap<u64, oneshot::Sender<()>>>,
}

/// One place, held until this value is dropped or until another holder gets the place. [`Share::hold`] and
/// [`Share::poll_lost`] report the latter.
#[derive(Debug)]
pub struct Share<K: Clone + Eq + Hash> {
    holder: K,
    number: u64,
    lost: oneshot::Receiver<()>,
    holders: Arc<Mutex<Holders<K>>>,
}

impl<K> Clone for Shares<K> {
    fn clone(&self) -> Self {
        let (unbounded, holders) = (Arc::clone(&self.unbounded), Arc::clone(&self.holders));
        Self { unbounded, holders, ..*self }
    }
}

impl<K: Clone + Eq + Hash> Shares<K> {
    /// `total` places, at most `each` of them for one holder.
    #[must_use]
    pub fn new(total: usize, each: usize) -> Self {
        let (unbounded, when_full) = (Arc::default(), WhenFull::TakeOldest);
        Self { total, each, unbounded, when_full, holders: Arc::default() }
    }

    /// Like [`Shares::new`], but for work that is worthless unless it is finished: see the module's documentation.
    #[must_use]
    pub fn keeping(total: usize, each: usize) -> Self {
        Self { when_full: WhenFull::TakeNewestOfLarger, ..Self::new(total, each) }
    }

    /// Exempts these holders from the bound for one holder. They may take all places, and lose them to others like any
    /// holder.
    #[must_use]
    pub fn with_unbounded(self, unbounded: Vec<K>) -> Self {
        Self { unbounded: unbounded.into(), ..self }
    }

    /// Takes a place for `holder`. `None` if it holds as many as one holder may, or if all are taken and no other
    /// holder loses one to it.
    #[must_use]
    pub fn take(&self, holder: K) -> Option<Share<K>> {
        let mut holders = lock(&self.holders);
        if self.make_room(&mut holders, &holder).is_none() {
            holders.refused = holders.refused.saturating_add(1);
            return None;
        }
        let (number, lost) = holders.insert(holder.clone());
        Some(Share { holder, number, lost, holders: Arc::clone(&self.holders) })
    }

    /// Makes room for one more place of `holder`. `None` if it must not get one.
    fn make_room(&self, holders: &mut Holders<K>, holder: &K) -> Option<()> {
        let own = holders.of.get(holder).map_or(0, BTreeMap::len);
        if own >= self.each && !self.unbounded.contains(holder) {
            return None;
        }
        if holders.count >= self.total {
            match self.when_full {
                WhenFull::TakeOldest => holders.cut_oldest_of_largest(),
                WhenFull::TakeNewestOfLarger => holders.cut_newest_of_larger(own)?,
            }
            holders.lost = holders.lost.saturating_add(1);
        }
        Some(())
    }

    /// The number of places that are taken.
    #[must_use]
    pub fn held(&self) -> usize {
        lock(&self.holders).count
    }

    /// The number of places that are taken now, and how many requests were refused and places lost so far.
    #[must_use]
    pub fn counts(&self) -> ShareCounts {
        let holders = lock(&self.holders);
        ShareCounts { held: holders.count, refused: holders.refused, lost: holders.lost }
    }
}

impl Shares<IpAddr> {
    /// Accepts connections until one gets a place by its client's address, and returns it. Connections without a place
    /// are closed; failures are logged.
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
        Self { next: 0, count: 0, refused: 0, lost: 0, of: HashMap::new() }
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

    /// Takes the oldest place of the holder with the most places. If several have the most, the one with the oldest
    /// place loses it. This looks at every holder, but is needed only while all places are taken.
    fn cut_oldest_of_largest(&mut self) {
        let oldest = |(holder, held): (&K, &BTreeMap<u64, _>)| {
            Some((held.len(), std::cmp::Reverse(*held.keys().next()?), holder.clone()))
        };
        let largest = self.of.iter().filter_map(oldest).max_by_key(|(len, age, _)| (*len, *age));
        if let Some((_, std::cmp::Reverse(number), holder)) = largest {
            self.remove(&holder, number);
        }
    }

    /// Takes the newest place of the holder with the most places. `None` if it does not have at least two places more
    /// than `own`.
    fn cut_newest_of_larger(&mut self, own: usize) -> Option<()> {
        let (holder, held) = self.of.iter().max_by_key(|(_, held)| held.len())?;
        if own.saturating_add(2) > held.len() {
            return None;
        }
        let (holder, number) = (holder.clone(), *held.last_key_value()?.0);
        self.remove(&holder, number);
        Some(())
    }
}

impl<K: Clone + Eq + Hash> Share<K> {
    /// Runs `work` while this place is held, and returns its output. Returns `None` as soon as another holder gets the
    /// place; `work` is then dropped.
    pub async fn hold<T>(mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            _ = &mut self.lost => None,
        }
    }

    /// Ready as soon as another holder has got the place.
    pub fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.lost).poll(context).map(drop)
    }
}

impl<K: Clone + Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        lock(&self.holders).remove(&self.holder, self.number);
    }
}

/// Ignores poisoning: a panic cannot leave the table inconsistent.
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
        assert_eq!(shares.counts(), ShareCounts { held: 1, refused: 1, lost: 1 });
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
    async fn kept_places_go_to_a_holder_with_two_fewer_than_the_largest_alone() {
        let shares = Shares::keeping(5, 3);
        let mut first: Vec<_> = (0..3).map(|_| shares.take("a").unwrap()).collect();
        assert!(shares.take("a").is_none(), "as many as one holder may have");
        let second: Vec<_> = (0..2).map(|_| shares.take("b").unwrap()).collect();
        assert!(shares.take("b").is_none(), "it would have as many as the first had");
        let third = shares.take("c").unwrap();
        let newest = first.pop().unwrap();
        assert_eq!(newest.hold(std::future::pending::<()>()).await, None);
        let oldest = first.remove(0);
        assert_eq!(oldest.hold(async { "asked" }).await, Some("asked"));
        assert_eq!(third.hold(async { "asked" }).await, Some("asked"));
        drop((first, second));
        let held = lock(&shares.holders);
        assert!(held.count == 0 && held.of.is_empty(), "{held:?}");
    }

    #[test]
    fn equal_holders_keep_their_places() {
        let shares = Shares::keeping(2, 2);
        let _held = ["a", "b"].map(|holder| shares.take(holder).unwrap());
        assert!(shares.take("c").is_none());
    }

    #[test]
    fn a_holder_without_a_bound_may_have_all_places_until_others_ask() {
        let shares = Shares::keeping(4, 1).with_unbounded(vec!["a"]);
        let _own: Vec<_> = (0..4).map(|_| shares.take("a").unwrap()).collect();
        assert!(shares.take("a").is_none());
        let _other = shares.take("b").unwrap();
        assert!(shares.take("b").is_none(), "more than it may have");
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
