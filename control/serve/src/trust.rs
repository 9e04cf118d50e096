//! Which proxy trusts what, as the proxies themselves report it, and the bundle that they are sent.
//!
//! ```text
//!  Authority ──► State::trust ──► every stream: TrustBundle ──► the proxy puts it into use
//!                                                                  │
//!  a rotation's next phase ◄── TrustTable ◄── TrustInUse (hash) ◄──┘
//! ```
//! A record lasts as long as its stream, and for [`DEPARTED`] longer if its proxy is not up to date: a proxy that
//! connects again soon must not be overlooked meanwhile.

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

/// How long a proxy counts whose stream has ended before it used what it should. A proxy that lost its stream is back
/// within a third of this.
pub const DEPARTED: Duration = Duration::from_secs(20);

/// What proxies accept.
const _: () = assert!(leno_identity::MAX_ROOTS <= leno_wire::trust::MAX_ROOTS);

/// Most records of proxies without a stream; the oldest ones give way. As many as there may be streams.
const MAX_DEPARTED: usize = crate::MAX_STREAMS;

/// What a proxy uses for its handshakes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustInUse {
    /// The hash of the roots that it verifies peers with.
    pub bundle: String,
    /// The key that has signed its certificate.
    pub issuer: String,
}

/// A proxy, and what it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyTrust {
    /// Its workload.
    pub instance: InstanceName,
    /// What it has reported. `None` before its first report, and for ever if it is of an earlier release.
    pub in_use: Option<TrustInUse>,
    /// Whether its stream is open.
    pub connected: bool,
}

/// The bundle, encoded once for all streams.
#[derive(Clone, Debug)]
pub(crate) struct PublishedTrust {
    pub(crate) version: Arc<str>,
    pub(crate) resource: Bytes,
    in_use: TrustInUse,
}

/// What all proxies of this control plane have reported.
#[derive(Debug, Default)]
pub(crate) struct TrustTable(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    next: u64,
    /// By stream: while a proxy connects again it has two.
    open: BTreeMap<u64, (InstanceName, Option<TrustInUse>)>,
    departed: HashMap<InstanceName, (Option<TrustInUse>, Instant)>,
}

/// The record of one stream, until it is dropped.
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
    /// Sends proxies the bundle of an authority whenever it changes. Never ends while the authority lives.
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

    /// Sends proxies the bundle that the authority has now. From here on [`wanted_trust`](Self::wanted_trust) is of it.
    pub fn publish_trust(&self, authority: &Authority) {
        let next = PublishedTrust::new(authority.trust_domain().as_str(), &authority.trust());
        let mut published = self.trust.write().unwrap_or_else(PoisonError::into_inner);
        if published.as_ref().is_some_and(|before| before.version == next.version) {
            return;
        }
        let roots = authority.trust().bundle_der().len();
        if roots > leno_identity::MAX_ROOTS {
            // Another replica has begun a rotation before it had the roots of another authority that this one has. It waits
            // for this one.
            tracing::error!(
                roots,
                "the last trust bundle stays: proxies would refuse the next one"
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

    /// What proxies should use now; `None` before it was published.
    #[must_use]
    pub fn wanted_trust(&self) -> Option<TrustInUse> {
        self.published_trust().map(|published| published.in_use)
    }

    /// The proxies that are connected here, and those that have just left without using what they should.
    #[must_use]
    pub fn proxies(&self) -> Vec<ProxyTrust> {
        self.trusting.proxies(self.wanted_trust().as_ref())
    }

    /// Begins to record what the proxy of a stream uses.
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
        // What a proxy has reported holds until it reports something else.
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
        // Of two streams of one proxy the later one holds: its number is higher.
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
        // Whole entries only: what a panic left behind is still sound.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TrustRecord {
    /// Takes a report of the proxy.
    pub(crate) fn report(&self, reported: proto::TrustInUse) {
        let proto::TrustInUse { mut bundle, mut issuer } = reported;
        // A hash and an identifier are shorter: what is longer equals neither.
        bundle.truncate(bundle.floor_char_boundary(MAX_REPORTED));
        issuer.truncate(issuer.floor_char_boundary(MAX_REPORTED));
        self.state.trusting.report(self.number, TrustInUse { bundle, issuer });
    }
}

/// Longest part of a report that is kept, in bytes.
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
        assert_eq!(facts(), [(Some(in_use("old")), true)], "until it reports, it is as it was");
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
