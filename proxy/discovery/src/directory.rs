//! The directory, which resolves addresses to services and workloads. Workers share it and watch its entries.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leno_types::mesh::{Resolution, ServerPolicy, Service, Subject};
use leno_types::{InstanceName, ServiceName, canonical};
use leno_wire::proto::TrustInUse;
use leno_wire::trust::TrustBundle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::certificate::Certificate;
use crate::leases::Leases;
use crate::table::{HeldService, Resource, Table};
use crate::watches::{Asker, Watches};

/// Resolves addresses. Cheap to clone; all clones share one state.
#[derive(Clone)]
pub struct Directory(Kind, Leases);

#[derive(Clone)]
enum Kind {
    Live(Arc<Live>),
    Fixed(Arc<Fixed>),
}

/// The state of the proxy's connection to its control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether a stream to the control plane is open.
    pub connected: bool,
    /// How long `connected` has had its present value.
    pub since: Duration,
    /// The age of the state in use: zero while connected, otherwise the time since the last stream ended, or since the
    /// start if there was none. The age of a fixed directory is always zero.
    pub age: Duration,
    /// The number of services and workloads in the directory.
    pub resources: usize,
    /// The number of watched addresses.
    pub addresses: usize,
    /// How many watches were refused because of [`crate::MAX_WATCHED`] or [`crate::MAX_LOOKED_UP`].
    pub refused: u64,
    /// How many responses of the control plane were rejected, in part or completely.
    pub nacks: u64,
    /// How many streams were opened.
    pub connects: u64,
}

/// The state that the workers watch and that the client fills.
pub(crate) struct Live {
    instance: InstanceName,
    state: Mutex<State>,
    /// Whether every service that workloads of the same identity use is resolved.
    prefetched: watch::Sender<bool>,
    policy: watch::Sender<Option<Arc<ServerPolicy>>>,
    /// The trust bundle that the control plane has sent.
    trust: watch::Sender<Option<Arc<TrustBundle>>>,
    /// Notifies the client that something must be sent: `State::watches`, `State::in_use` or `State::unknown_keys` has
    /// changed.
    wanted: Notify,
}

struct State {
    table: Table,
    watches: Watches,
    /// Whether the control plane has sent the list of services that workloads of the same identity use.
    uses_known: bool,
    connected: bool,
    /// When `connected` changed last.
    changed: Instant,
    /// When the last stream ended, or when this was created.
    heard: Instant,
    refused: u64,
    nacks: u64,
    connects: u64,
    /// The certificate and trust bundle that handshakes use, and whether that must still be reported on this stream.
    in_use: Option<(TrustInUse, bool)>,
    /// Issuers of tokens with unknown keys that were not reported yet. There are at most as many as the server policy
    /// has, and at most [`MAX_UNKNOWN_KEYS`].
    unknown_keys: BTreeSet<String>,
}

/// How many issuers may wait to be reported. Further issuers are reported with a later token.
const MAX_UNKNOWN_KEYS: usize = 64;

struct Fixed {
    resolver: Box<dyn Fn(&Subject) -> Resolution + Send + Sync>,
    policy: watch::Sender<Option<Arc<ServerPolicy>>>,
}

impl Directory {
    pub(crate) fn live(instance: InstanceName, leases: Leases) -> (Self, Arc<Live>) {
        let live = Arc::new(Live::new(instance));
        (Self(Kind::Live(Arc::clone(&live)), leases), live)
    }

    /// A directory that never changes, for static mode and tests. It has no server policy unless
    /// [`Directory::with_server_policy`] sets one.
    #[must_use]
    pub fn fixed(resolver: impl Fn(&Subject) -> Resolution + Send + Sync + 'static) -> Self {
        let fixed = Fixed { resolver: Box::new(resolver), policy: watch::Sender::new(None) };
        Self(Kind::Fixed(Arc::new(fixed)), Leases::none())
    }

    /// Sets the server policy of a fixed directory. Other directories get theirs from the control plane.
    #[must_use]
    pub fn with_server_policy(self, policy: ServerPolicy) -> Self {
        if let Kind::Fixed(fixed) = &self.0 {
            fixed.policy.send_replace(Some(Arc::new(policy)));
        }
        self
    }

    /// Watches to what an address resolves. The first watch of an address queries the control plane. The receiver
    /// starts with the current value, which may be [`Resolution::Pending`].
    ///
    /// When the connection to the control plane is lost, receivers keep the last value. Each call takes a lock for a
    /// short time, so keep the receiver instead of calling this for every connection.
    ///
    /// At most [`crate::MAX_WATCHED`] addresses are watched. To make room for one more, some addresses without
    /// receivers are dropped. If all have receivers, an address that resolves to a service or workload is watched
    /// nevertheless; any other address is [`Resolution::Unknown`].
    #[must_use]
    pub fn watch(&self, ip: IpAddr) -> watch::Receiver<Resolution> {
        self.ask(of_address(ip), Asker::Outbound)
    }

    /// Watches the address of a client. Any host that can connect causes such watches, so they have a limit of their
    /// own, [`crate::MAX_LOOKED_UP`], and never take the place of addresses that the workload dials. Beyond the limit,
    /// the look-up stays [`Resolution::Pending`], and its sender is closed.
    #[must_use]
    pub fn look_up(&self, ip: IpAddr) -> watch::Receiver<Resolution> {
        self.ask(of_address(ip), Asker::Inbound)
    }

    /// Watches the address of a client for the access log. Such watches have a limit of their own,
    /// [`crate::MAX_LOGGED`], because they last as long as the connection.
    #[must_use]
    pub fn look_up_for_log(&self, ip: IpAddr) -> watch::Receiver<Resolution> {
        self.ask(of_address(ip), Asker::Log)
    }

    /// Watches a service by its name. Routes refer to services by name, and these may have no
    /// address.
    #[must_use]
    pub fn watch_service(&self, name: &ServiceName) -> watch::Receiver<Resolution> {
        self.ask(Subject::Service(name.clone()), Asker::Outbound)
    }

    fn ask(&self, subject: Subject, asker: Asker) -> watch::Receiver<Resolution> {
        match &self.0 {
            Kind::Live(live) => live.watch(subject, asker),
            Kind::Fixed(fixed) => watch::Sender::new((fixed.resolver)(&subject)).subscribe(),
        }
    }

    /// The policy that inbound enforces for this proxy's workload. `None` until the control plane
    /// has sent it.
    #[must_use]
    pub fn server_policy(&self) -> watch::Receiver<Option<Arc<ServerPolicy>>> {
        match &self.0 {
            Kind::Live(live) => live.policy.subscribe(),
            Kind::Fixed(fixed) => fixed.policy.subscribe(),
        }
    }

    /// Waits until every service that workloads of the same identity use is resolved. If a proxy is ready only then,
    /// its first calls need not wait. Returns at once for a fixed directory.
    pub async fn prefetched(&self) {
        if let Kind::Live(live) = &self.0 {
            let mut prefetched = live.prefetched.subscribe();
            // The sender lives as long as `self`.
            let _ended = prefetched.wait_for(|prefetched| *prefetched).await;
        }
    }

    /// The services that the control plane has sent, by name. Empty for a fixed directory, which
    /// has no list.
    #[must_use]
    pub fn services(&self) -> Vec<Arc<Service>> {
        match &self.0 {
            Kind::Live(live) => live.state().table.services(),
            Kind::Fixed(_) => Vec::new(),
        }
    }

    /// Tells the control plane that all handshakes from now on use this certificate and its roots. Does nothing for a
    /// fixed directory.
    pub fn uses(&self, certificate: &Certificate) {
        if let Kind::Live(live) = &self.0 {
            let (bundle, issuer) = certificate.acknowledged();
            live.set_in_use(TrustInUse { bundle, issuer });
        }
    }

    /// Tells the control plane that a token of this issuer names a key which the server policy does not have. Takes a
    /// lock, so call it rarely. Does nothing for a fixed directory.
    pub fn report_unknown_key(&self, issuer: &str) {
        if let Kind::Live(live) = &self.0 {
            live.report_unknown_key(issuer);
        }
    }

    /// Leases of shared rate limits.
    #[must_use]
    pub fn leases(&self) -> &Leases {
        &self.1
    }

    /// The state of the proxy's connection to its control plane.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.0 {
            Kind::Live(live) => live.status(),
            Kind::Fixed(_) => Status { connected: true, ..Status::default() },
        }
    }
}

fn of_address(ip: IpAddr) -> Subject {
    Subject::Address(canonical(SocketAddr::new(ip, 0)).ip())
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Directory").field(&self.status()).finish()
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("instance", &self.instance).finish_non_exhaustive()
    }
}

impl Live {
    fn new(instance: InstanceName) -> Self {
        let now = Instant::now();
        let state = State {
            table: Table::default(),
            watches: Watches::default(),
            uses_known: false,
            connected: false,
            changed: now,
            heard: now,
            refused: 0,
            nacks: 0,
            connects: 0,
            in_use: None,
            unknown_keys: BTreeSet::new(),
        };
        Self {
            instance,
            state: Mutex::new(state),
            prefetched: watch::Sender::new(false),
            policy: watch::Sender::new(None),
            trust: watch::Sender::new(None),
            wanted: Notify::new(),
        }
    }

    pub(crate) fn instance(&self) -> &InstanceName {
        &self.instance
    }

    /// Waits until something must be sent: subscriptions, the certificate in use, or unknown keys.
    pub(crate) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Ignores poisoning: a panic cannot leave the state half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, subject: Subject, asker: Asker) -> watch::Receiver<Resolution> {
        let mut state = self.state();
        if let Some(receiver) = state.watches.subscribe(&subject, asker) {
            return receiver;
        }
        let (room, dropped) = state.watches.make_room(asker);
        if dropped {
            state.forget_unneeded();
        }
        let resolution = state.table.resolve(&subject);
        let known = matches!(resolution, Resolution::Service(_) | Resolution::Workload(_));
        // An address that resolves is watched even beyond the limit. The number of such addresses is bounded by the
        // resources that the control plane has sent. Without a watch, outbound would treat a meshed address as unmeshed
        // and dial it in plaintext.
        if !room && !known {
            state.refused = state.refused.wrapping_add(1);
            // Requests that a policy denies to some clients must not become permitted because there are many clients.
            let answer = match asker {
                Asker::Inbound | Asker::Log => Resolution::Pending,
                Asker::Outbound | Asker::Prefetch => Resolution::Unknown,
            };
            return watch::Sender::new(answer).subscribe();
        }
        let receiver = state.watches.insert(subject, asker, resolution);
        drop(state);
        self.wanted.notify_one();
        receiver
    }

    fn status(&self) -> Status {
        let state = self.state();
        Status {
            connected: state.connected,
            since: state.changed.elapsed(),
            age: if state.connected { Duration::ZERO } else { state.heard.elapsed() },
            resources: state.table.len(),
            addresses: state.watches.len(),
            refused: state.refused,
            nacks: state.nacks,
            connects: state.connects,
        }
    }

    /// The addresses to subscribe to, and those to unsubscribe from, since the last call. If an address is in both
    /// lists, it was dropped and is watched again, so the unsubscription must take effect first.
    pub(crate) fn take_changes(&self) -> (Vec<Subject>, Vec<Subject>) {
        self.state().watches.take_changes()
    }

    /// The subjects that must be prefetched since the last call. The workload does not use them yet.
    pub(crate) fn take_prefetch(&self) -> Vec<Subject> {
        self.state().watches.take_prefetch()
    }

    /// All watched subjects and the versions of all resources, for the first request of a stream.
    pub(crate) fn resume(&self) -> (Vec<Subject>, HashMap<String, String>) {
        let mut state = self.state();
        (state.watches.resume(), state.table.versions())
    }

    /// Called when a stream has opened.
    pub(crate) fn connected(&self) {
        let mut state = self.state();
        state.connected = true;
        state.connects = state.connects.wrapping_add(1);
        state.changed = Instant::now();
    }

    /// Called when the stream has ended. The state that was received so far stays in use.
    pub(crate) fn disconnected(&self) {
        let mut state = self.state();
        if state.connected {
            state.connected = false;
            state.changed = Instant::now();
            state.heard = state.changed;
        }
    }

    /// Called when a response was rejected, in part or completely.
    pub(crate) fn count_nack(&self) {
        let mut state = self.state();
        state.nacks = state.nacks.wrapping_add(1);
    }

    /// The service whose resource has this name.
    pub(crate) fn service(&self, name: &str) -> Option<HeldService> {
        self.state().table.service(name)
    }

    /// Requests a resource again as a whole. The current value stays in use until the resource arrives.
    pub(crate) fn refetch(&self, name: &str) {
        let mut state = self.state();
        for subject in state.table.subjects(name) {
            state.watches.refetch(subject);
        }
        drop(state);
        self.wanted.notify_one();
    }

    pub(crate) fn set_policy(&self, policy: Option<Arc<ServerPolicy>>) {
        self.policy.send_if_modified(|current| {
            let differs = *current != policy;
            *current = policy;
            differs
        });
    }

    /// Stores a bundle that the control plane has sent.
    pub(crate) fn set_trust(&self, bundle: TrustBundle) {
        self.trust.send_replace(Some(Arc::new(bundle)));
    }

    /// The trust bundle that the control plane has sent last.
    pub(crate) fn trust(&self) -> watch::Receiver<Option<Arc<TrustBundle>>> {
        self.trust.subscribe()
    }

    fn set_in_use(&self, in_use: TrustInUse) {
        let mut state = self.state();
        if state.in_use.as_ref().is_some_and(|(before, _)| *before == in_use) {
            return;
        }
        state.in_use = Some((in_use, true));
        drop(state);
        self.wanted.notify_one();
    }

    fn report_unknown_key(&self, issuer: &str) {
        let mut state = self.state();
        if state.unknown_keys.len() >= MAX_UNKNOWN_KEYS
            || !state.unknown_keys.insert(issuer.to_owned())
        {
            return;
        }
        drop(state);
        self.wanted.notify_one();
    }

    /// The issuers of tokens with unknown keys, since the last call.
    pub(crate) fn take_unknown_keys(&self) -> Vec<String> {
        std::mem::take(&mut self.state().unknown_keys).into_iter().collect()
    }

    /// The certificate and trust bundle that handshakes use, for the first request of a stream. They then count as
    /// reported.
    pub(crate) fn in_use(&self) -> Option<TrustInUse> {
        self.state().in_use.as_mut().map(|(in_use, is_new)| {
            *is_new = false;
            in_use.clone()
        })
    }

    /// The certificate and trust bundle, for a later request of a stream. `None` if they have not changed since they
    /// were reported.
    pub(crate) fn take_in_use(&self) -> Option<TrustInUse> {
        let is_new = self.state().in_use.as_ref().is_some_and(|(_, is_new)| *is_new);
        if is_new { self.in_use() } else { None }
    }

    /// Applies the addresses of one response.
    pub(crate) fn apply(
        &self,
        resources: Vec<(String, Resource)>,
        removed: &[String],
        absent: &[Subject],
    ) {
        let mut state = self.state();
        let mut changed: Vec<Subject> = Vec::new();
        for name in removed {
            changed.extend(state.table.remove(name));
        }
        for (name, resource) in resources {
            changed.extend(state.table.insert(&name, resource));
        }
        for subject in absent {
            state.table.set_absent(subject.clone());
            changed.push(subject.clone());
        }
        for subject in changed {
            let mut resolution = state.table.resolve(&subject);
            if matches!(resolution, Resolution::Pending) {
                // The resource was removed, so the address is no longer known.
                resolution = Resolution::Unknown;
            }
            state.watches.publish(&subject, resolution);
        }
        self.check_prefetched(&state);
    }

    /// Watches the services that workloads of the same identity use.
    pub(crate) fn prefetch(&self, services: Vec<ServiceName>) {
        let mut state = self.state();
        state.uses_known = true;
        for name in services {
            let subject = Subject::Service(name);
            let now = state.table.resolve(&subject);
            state.watches.prefetch(subject, now);
        }
        self.check_prefetched(&state);
        drop(state);
        self.wanted.notify_one();
    }

    fn check_prefetched(&self, state: &State) {
        if !*self.prefetched.borrow() && state.has_prefetched() {
            self.prefetched.send_replace(true);
        }
    }

    /// Drops addresses that have had no receivers for [`crate::IDLE`]. The next [`Live::take_changes`] returns them.
    pub(crate) fn sweep(&self) {
        let mut state = self.state();
        if state.watches.sweep() {
            state.forget_unneeded();
        }
    }
}

impl State {
    /// Drops resources whose addresses are no longer watched.
    fn forget_unneeded(&mut self) {
        let Self { table, watches, .. } = self;
        table.retain(|subject| watches.contains(subject));
    }

    /// Whether every service that workloads of the same identity use is resolved.
    fn has_prefetched(&self) -> bool {
        let is_known = |subject| !matches!(self.table.resolve(subject), Resolution::Pending);
        self.uses_known && self.watches.prefetched().all(is_known)
    }
}

#[cfg(test)]
mod tests;
