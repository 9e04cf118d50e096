//! Who holds the connections of the listener, so that no client takes them all.
//!
//! ```text
//! accepted ─► unproven, by address ─► certificate shown ─► proven, by identity and address
//!                    └─ none within UNPROVEN_TIME: closed
//! ```
//! Where all places are held, the holder of most of them loses its oldest to the one that asks.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use leno_types::Identity;
use tokio::sync::oneshot;

/// How long a connection without a certificate lives. A proxy opens one for its first certificate, gets it in
/// milliseconds, and waits 5 s for it at most.
pub(crate) const UNPROVEN_TIME: Duration = Duration::from_secs(30);

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// With a certificate: one or two of each proxy, for twice the proxies of a large mesh.
    pub(crate) proven: usize,
    /// With certificates of one identity: a service account may have thousands of pods.
    pub(crate) of_identity: usize,
    /// With certificates, from one address: the pods of a node may share one (masquerading).
    pub(crate) of_address: usize,
    /// Without a certificate: handshakes, and proxies that ask for their first one.
    pub(crate) unproven: usize,
    /// Without a certificate, from one address.
    pub(crate) unproven_of_address: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            proven: 16_384,
            of_identity: 8_192,
            of_address: 1_024,
            unproven: 1_024,
            unproven_of_address: 256,
        }
    }
}

/// All connections, by their holders.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shares {
    bounds: Bounds,
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    unproven: Holders<IpAddr>,
    proven: Holders<Identity>,
    /// Proven connections from each address.
    addresses: HashMap<IpAddr, usize>,
}

/// Connections by their holder and, of one holder, by age. The end of a sender cuts its connection.
#[derive(Debug)]
struct Holders<K> {
    count: usize,
    of: HashMap<K, BTreeMap<u64, oneshot::Sender<()>>>,
}

/// The right to one connection, until it is dropped or lost.
#[derive(Debug)]
pub(crate) struct Share {
    number: u64,
    address: IpAddr,
    identity: Option<Identity>,
    lost: oneshot::Receiver<()>,
    held: Arc<Mutex<Held>>,
}

impl Shares {
    #[cfg(test)]
    fn new(bounds: Bounds) -> Self {
        Self { bounds, held: Arc::default() }
    }

    /// A share for a connection that was accepted. `None` if its address has as many as it may.
    pub(crate) fn unproven(&self, address: IpAddr) -> Option<Share> {
        let address = address.to_canonical();
        let mut held = lock(&self.held);
        if held.unproven.count_of(&address) >= self.bounds.unproven_of_address {
            return None;
        }
        if held.unproven.count >= self.bounds.unproven {
            held.unproven.cut_oldest_of_largest();
        }
        let number = held.number();
        let lost = held.unproven.insert(address, number);
        Some(Share { number, address, identity: None, lost, held: Arc::clone(&self.held) })
    }

    /// The share of the same connection once it has shown a certificate. `None` if the identity or the address
    /// has as many as it may.
    pub(crate) fn proven(&self, share: Share, identity: Identity) -> Option<Share> {
        let address = share.address;
        drop(share);
        let mut held = lock(&self.held);
        let of_address = held.addresses.get(&address).copied().unwrap_or_default();
        if held.proven.count_of(&identity) >= self.bounds.of_identity
            || of_address >= self.bounds.of_address
        {
            return None;
        }
        if held.proven.count >= self.bounds.proven {
            held.proven.cut_oldest_of_largest();
        }
        *held.addresses.entry(address).or_default() += 1;
        let number = held.number();
        let lost = held.proven.insert(identity.clone(), number);
        let identity = Some(identity);
        Some(Share { number, address, identity, lost, held: Arc::clone(&self.held) })
    }
}

impl Held {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl<K> Default for Holders<K> {
    fn default() -> Self {
        Self { count: 0, of: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash> Holders<K> {
    fn count_of(&self, holder: &K) -> usize {
        self.of.get(holder).map_or(0, BTreeMap::len)
    }

    fn insert(&mut self, holder: K, number: u64) -> oneshot::Receiver<()> {
        let (sender, lost) = oneshot::channel();
        self.of.entry(holder).or_default().insert(number, sender);
        self.count += 1;
        lost
    }

    fn remove(&mut self, holder: &K, number: u64) {
        let Some(held) = self.of.get_mut(holder) else { return };
        if held.remove(&number).is_some() {
            self.count -= 1;
        }
        if held.is_empty() {
            self.of.remove(holder);
        }
    }

    /// Only where all are held, so that its time, linear in the holders, is spent seldom.
    fn cut_oldest_of_largest(&mut self) {
        let largest = self.of.iter().max_by_key(|(_, held)| held.len());
        let oldest =
            largest.and_then(|(holder, held)| Some((holder.clone(), *held.keys().next()?)));
        if let Some((holder, number)) = oldest {
            self.remove(&holder, number);
        }
    }
}

impl Share {
    /// Ready once the share is lost to another client.
    pub(crate) fn poll_lost(&mut self, context: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.lost).poll(context).map(drop)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = lock(&self.held);
        let Some(identity) = &self.identity else {
            return held.unproven.remove(&self.address, self.number);
        };
        held.proven.remove(identity, self.number);
        if let Some(count) = held.addresses.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                held.addresses.remove(&self.address);
            }
        }
    }
}

/// Every change is whole, so that what a panic left behind is still sound.
fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    const BOUNDS: Bounds =
        Bounds { proven: 4, of_identity: 3, of_address: 3, unproven: 4, unproven_of_address: 3 };

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn identity(name: &str) -> Identity {
        format!("spiffe://cluster.local/ns/shop/sa/{name}").parse().unwrap()
    }

    fn is_lost(share: &mut Share) -> bool {
        share.poll_lost(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_stranger_cannot_hold_the_places_of_others() {
        let shares = Shares::new(BOUNDS);
        let mut many: Vec<Share> = (0..3).map(|_| shares.unproven(address(1)).unwrap()).collect();
        assert!(shares.unproven(address(1)).is_none(), "as many as one address may have");
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        assert!(shares.unproven(mapped).is_none(), "the same address");
        let _second = shares.unproven(address(2)).unwrap();
        let third = shares.unproven(address(3));
        assert!(third.is_some(), "all are held, and it gets one");
        assert!(
            is_lost(&mut many[0]) && !is_lost(&mut many[1]),
            "the oldest of the largest holder"
        );
        drop((many, third));
        assert_eq!(lock(&shares.held).unproven.count, 1);
    }

    #[test]
    fn an_identity_cannot_hold_the_places_of_others() {
        let shares = Shares::new(BOUNDS);
        let proven = |name: &str, last: u8| {
            shares.proven(shares.unproven(address(last)).unwrap(), identity(name))
        };
        let mut many: Vec<Share> = (1..4).map(|last| proven("a", last).unwrap()).collect();
        assert!(proven("a", 4).is_none(), "as many as one identity may have");
        let _b = proven("b", 4).unwrap();
        let _c = proven("c", 5).unwrap();
        assert!(is_lost(&mut many[0]), "the oldest of the identity that has most");
        drop(many);
        assert_eq!(lock(&shares.held).unproven.count, 0, "a share is proven or unproven");
        assert_eq!(lock(&shares.held).addresses.len(), 2);
        let _more: Vec<Share> = (0..2).map(|_| proven("d", 4).unwrap()).collect();
        assert!(proven("e", 4).is_none(), "as many as one address may have");
    }
}
