//! Publishes the trust bundle to proxies, and records which bundle each proxy reports to use.
//!
//! ```text
//!  Authority ──► PlaneState::trust ──► every stream: TrustBundle ──► the proxy uses it
//!                                                                  │
//!  a rotation's next phase ◄── TrustTable ◄── TrustInUse (hash) ◄──┘
//! ```
//! A record lasts as long as its stream. If the proxy does not use the newest bundle, the record is kept for
//! [`DEPARTED`] longer, so that a proxy that is reconnecting still counts.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_identity::{Authority, AuthorityTrust};
use leno_types::InstanceName;
use leno_wire::trust::{TrustBundle, bundle_hash};
use leno_wire::{Bytes, encode, proto};
use tokio::time::Instant;

use crate::encodings::version_of;
use crate::state::PlaneState;

/// How long a proxy still counts after its stream has ended, if it did not use the wanted bundle. A proxy that has
/// lost its stream reconnects within a third of this time.
pub const DEPARTED: Duration = Duration::from_secs(20);

/// Proxies must accept at least as many roots as the authority may have.
const _: () = assert!(leno_identity::MAX_ROOTS <= leno_wire::trust::MAX_ROOTS);

/// Most records of proxies without a stream, which is as many as there may be streams. Further proxies are not recorded
/// when their streams end.
const MAX_DEPARTED: usize = crate::MAX_STREAMS;

/// The bundle and the certificate that a proxy uses for its handshakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustInUse {
    /// The hash of the roots with which it verifies peers.
    pub bundle: String,
    /// The identifier of the key that has signed its certificate.
    pub issuer: String,
}

/// A proxy, and the trust bundle that it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyTrust {
    /// The instance that the proxy serves.
    pub instance: InstanceName,
    /// Its last report; `None` before the first one. A proxy of an earlier release never reports.
    pub in_use: Option<TrustInUse>,
    /// Whether its stream is open.
    pub connected: bool,
}

/// The bundle, encoded once for all streams.
#[derive(Clone, Debug)]
pub(crate) struct PublishedTrust {
    pub(crate) version: Arc<str>,
    pub(crate) resource: Bytes,
    /// What a proxy reports that uses this bundle.
    in_use: TrustInUse,
}

/// The reports of all proxies that are connected to this control plane.
#[derive(Debug, Default)]
pub(crate) struct TrustTable(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    next: u64,
    /// The reports by stream. A proxy that reconnects has two streams for a moment.
    open: BTreeMap<u64, (InstanceName, Option<TrustInUse>)>,
    /// The last report of each proxy without a stream, and when its stream ended.
    departed: HashMap<InstanceName, (Option<TrustInUse>, Instant)>,
}

/// The record of one stream. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct TrustRecord {
    state: Arc<PlaneState>,
    number: u64,
}

impl PublishedTrust {
    fn new(domain: &str, trust: &AuthorityTrust) -> Self {
        let roots: Vec<Bytes> = trust.bundle_der().into_iter().map(Bytes::from).collect();
        let bundle = bundle_hash(&roots);
        let issuer = trust.issuer().to_owned();
        let revoked = trust.state().revocations();
        let der = |roots: &Vec<Vec<u8>>| roots.iter().cloned().map(Bytes::from).collect();
        let federated = trust.federated_der().iter();
        let federated = federated.map(|(domain, roots)| (domain.clone(), der(roots))).collect();
        let sent = TrustBundle { roots, issuer: issuer.clone(), revoked, federated };
        let any = encode::trust_bundle(&sent);
        let version: Arc<str> = version_of(&any.value).into();
        let resource = proto::Resource {
            version: version.to_string(),
            resource: Some(any),
            name: domain.to_owned(),
            ..Default::default()
        };
        let in_use = TrustInUse { bundle, issuer };
        Self { version, resource: encode::resource(&resource), in_use }
    }
}

impl PlaneState {
    /// Publishes the bundle of an authority whenever it changes. Never returns while the authority exists.
    pub(crate) async fn follow_trust(&self, authority: &Authority) {
        let mut changes = authority.changes();
        loop {
            changes.borrow_and_update();
            self.publish_trust(authority);
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Publishes the authority's present bundle. From now on [`wanted_trust`](Self::wanted_trust) returns it.
    pub fn publish_trust(&self, authority: &Authority) {
        let next = PublishedTrust::new(authority.trust_domain().as_str(), &authority.trust());
        let mut published = self.trust.write().unwrap_or_else(PoisonError::into_inner);
        if published.as_ref().is_some_and(|before| before.version == next.version) {
            return;
        }
        let roots = authority.trust().bundle_der().len();
        if roots > leno_identity::MAX_ROOTS {
            // This happens if another replica has begun a rotation before it had the roots of an additional
            // authority, which this replica already has. The rotation waits until this replica publishes its bundle.
            tracing::error!(
                roots,
                "the last trust bundle stays in effect, because proxies would reject the next one"
            );
            return;
        }
        tracing::info!(bundle = next.in_use.bundle, issuer = next.in_use.issuer, "trust published");
        *published = Some(next);
        drop(published);
        let woken = self.subscriptions.publish_trust(Instant::now());
        self.metrics.wakeups.add(woken);
    }

    pub(crate) fn published_trust(&self) -> Option<PublishedTrust> {
        self.trust.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The bundle that proxies should use; `None` before one was published.
    #[must_use]
    pub fn wanted_trust(&self) -> Option<TrustInUse> {
        self.published_trust().map(|published| published.in_use)
    }

    /// The proxies that are connected here, and those that have recently disconnected without using the wanted
    /// bundle.
    #[must_use]
    pub fn proxies(&self) -> Vec<ProxyTrust> {
        self.trusting.proxies(self.wanted_trust().as_ref())
    }

    /// Starts a record of the bundle that the proxy of a stream uses.
    pub(crate) fn record_trust(self: &Arc<Self>, instance: &InstanceName) -> TrustRecord {
        let number = self.trusting.open(instance);
        TrustRecord { state: Arc::clone(self), number }
    }
}

impl TrustTable {
    fn open(&self, instance: &InstanceName) -> u64 {
        let mut records = self.records();
        let number = records.next;
        records.next += 1;
        // The last report of a proxy is valid until the proxy sends another one.
        let known = records.departed.remove(instance).and_then(|(in_use, _)| in_use);
        records.open.insert(number, (instance.clone(), known));
        number
    }

    fn report(&self, number: u64, in_use: TrustInUse) {
        if let Some((_, reported)) = self.records().open.get_mut(&number) {
            *reported = Some(in_use);
        }
    }

    fn close(&self, number: u64, now: Instant) {
        let mut records = self.records();
        let Some((instance, in_use)) = records.open.remove(&number) else { return };
        if records.open.values().any(|(other, _)| *other == instance) {
            return;
        }
        records.departed.retain(|_, (_, left)| now.duration_since(*left) < DEPARTED);
        if records.departed.len() < MAX_DEPARTED {
            records.departed.insert(instance, (in_use, now));
        }
    }

    fn proxies(&self, wanted: Option<&TrustInUse>) -> Vec<ProxyTrust> {
        let now = Instant::now();
        let records = self.records();
        let away = records.departed.iter().filter(|(_, (in_use, left))| {
            now.duration_since(*left) < DEPARTED && in_use.as_ref() != wanted
        });
        let away = away.map(|(instance, (in_use, _))| (instance, in_use, false));
        // If a proxy has two streams, the later one counts, which has the higher number.
        let open = records.open.values().map(|(instance, in_use)| (instance, in_use, true));
        let latest: BTreeMap<_, _> = away
            .chain(open)
            .map(|(instance, in_use, connected)| {
                let (instance, in_use) = (instance.clone(), in_use.clone());
                (instance.clone(), ProxyTrust { instance, in_use, connected })
            })
            .collect();
        latest.into_values().collect()
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        // Poisoning is ignored, because entries are inserted and removed as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrustRecord {
    /// Stores a report of the proxy.
    pub(crate) fn report(&self, reported: proto::TrustInUse) {
        let proto::TrustInUse { mut bundle, mut issuer } = reported;
        // Valid hashes and identifiers are shorter, so a truncated value never equals one.
        bundle.truncate(bundle.floor_char_boundary(MAX_REPORTED));
        issuer.truncate(issuer.floor_char_boundary(MAX_REPORTED));
        self.state.trusting.report(self.number, TrustInUse { bundle, issuer });
    }
}

/// Most bytes of each reported value that are kept.
const MAX_REPORTED: usize = 128;

impl Drop for TrustRecord {
    fn drop(&mut self) {
        self.state.trusting.close(self.number, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use(bundle: &str) -> TrustInUse {
        TrustInUse { bundle: bundle.to_owned(), issuer: "key".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_proxy_that_left_before_it_was_up_to_date_counts_for_a_while() {
        let table = TrustTable::default();
        let web: InstanceName = "shop/web-0".parse().unwrap();
        let wanted = in_use("new");
        let facts = || {
            let proxies = table.proxies(Some(&wanted));
            proxies.into_iter().map(|one| (one.in_use, one.connected)).collect::<Vec<_>>()
        };
        let first = table.open(&web);
        assert_eq!(facts(), [(None, true)]);
        table.report(first, in_use("old"));
        table.close(first, Instant::now());
        assert_eq!(facts(), [(Some(in_use("old")), false)]);
        let second = table.open(&web);
        assert_eq!(
            facts(),
            [(Some(in_use("old")), true)],
            "until it reports, its last report counts"
        );
        table.report(second, in_use("new"));
        let third = table.open(&web);
        table.report(third, in_use("newer"));
        assert_eq!(facts(), [(Some(in_use("newer")), true)], "two streams are one proxy");
        table.close(third, Instant::now());
        table.close(second, Instant::now());
        assert_eq!(facts(), [], "it was up to date");
        let fourth = table.open(&web);
        table.report(fourth, in_use("old"));
        table.close(fourth, Instant::now());
        tokio::time::advance(DEPARTED).await;
        assert_eq!(facts(), [], "it does not come back");
    }
}
