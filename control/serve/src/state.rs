//! The index, shared by all streams, with what each resource looks like on the wire.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use aws_lc_rs::digest::{SHA256, digest};
use leno_index::{Change, Changed, Index};
use leno_types::mesh::{Resolution, ServerPolicy, Service, Subject, Workload};
use leno_types::{Identity, InstanceName, Removal};
use leno_wire::{MAX_PREFETCH, encode, names, proto};
use tokio::sync::watch;

use crate::metrics::Metrics;

/// Changes that streams can follow one by one; one that is further behind compares everything.
const LOG: usize = 1_024;
/// Bytes of a digest that make a version: enough that no two contents ever share one.
const VERSION_BYTES: usize = 16;

/// The state that a control plane serves from. One writer, any number of streams.
#[derive(Debug)]
pub struct State {
    tables: RwLock<Tables>,
    /// Resources as last encoded, by name: of a service one for each set of routes that it comes with.
    /// Locked after `tables`, never before.
    encoded: Mutex<HashMap<String, Vec<Arc<Encoded>>>>,
    version: watch::Sender<u64>,
    pub(crate) metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Tables {
    index: Index,
    version: u64,
    /// The last changes, oldest first; the last entry led to `version`.
    log: VecDeque<Arc<Touched>>,
}

/// What one change concerns.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    pub(crate) subjects: HashSet<Subject>,
    /// Names of resources.
    pub(crate) names: HashSet<String>,
    /// Namespaces in which something to prefetch has changed.
    pub(crate) namespaces: HashSet<Arc<str>>,
    pub(crate) policies: HashSet<InstanceName>,
}

/// The changes since a version.
pub(crate) enum Changes {
    Each(Vec<Arc<Touched>>),
    /// They are no longer known one by one.
    TooMany,
}

/// A resource as it is sent: made once, shared by all streams.
#[derive(Debug)]
pub(crate) struct Encoded {
    message: proto::Resource,
    source: Source,
}

/// What a resource was made of. While the index holds the same value, the encoding holds too.
#[derive(Clone, Debug)]
enum Source {
    Service(Arc<Service>),
    Workload(Arc<Workload>),
    Policy(Arc<ServerPolicy>),
}

/// The state at one moment: nothing changes while it is held.
pub(crate) struct View<'a> {
    tables: RwLockReadGuard<'a, Tables>,
    state: &'a State,
}

impl State {
    /// Serves what `index` holds.
    #[must_use]
    pub fn new(index: Index) -> Arc<Self> {
        let tables = Tables { index, version: 0, log: VecDeque::new() };
        Arc::new(Self {
            tables: RwLock::new(tables),
            encoded: Mutex::default(),
            version: watch::Sender::new(0),
            metrics: Arc::default(),
        })
    }

    /// Applies changes as one: no stream sees a part of them.
    pub fn apply(&self, changes: Vec<Change>) {
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let before = tables.index.removal();
        let changed = tables.index.apply_all(changes);
        self.tell_of_removal(before, tables.index.removal());
        if changed.is_empty() {
            return;
        }
        let touched = Touched::from(changed);
        self.forget(&touched);
        tables.version += 1;
        if tables.log.len() == LOG {
            tables.log.pop_front();
        }
        tables.log.push_back(Arc::new(touched));
        let version = tables.version;
        drop(tables);
        self.metrics.index_version.set(version);
        self.version.send_replace(version);
    }

    fn tell_of_removal(&self, before: Removal, now: Removal) {
        if before == now {
            return;
        }
        self.metrics.removal.set(now.number().into());
        match now {
            Removal::None => tracing::info!(%before, "the mesh stays: its removal was taken back"),
            step => {
                tracing::warn!(%step, "the mesh is being removed: leno uninstall has begun a step")
            }
        }
    }

    /// Appends what is counted, as Prometheus text (`leno_control_*`).
    pub fn render_metrics(&self, text: &mut String) {
        self.metrics.render(text);
    }

    /// Looks into the index, which does not change meanwhile; for a short while only, as nothing is
    /// applied meanwhile either.
    pub fn look<T>(&self, look: impl FnOnce(&Index) -> T) -> T {
        look(&self.tables().index)
    }

    /// How often the index has changed.
    #[must_use]
    pub fn version(&self) -> u64 {
        *self.version.borrow()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// What has changed since `seen`, and the version that leads to.
    pub(crate) fn since(&self, seen: u64) -> (u64, Changes) {
        let tables = self.tables();
        let behind = usize::try_from(tables.version - seen).unwrap_or(usize::MAX);
        let changes = match tables.log.len().checked_sub(behind) {
            Some(first) => Changes::Each(tables.log.range(first..).cloned().collect()),
            None => Changes::TooMany,
        };
        (tables.version, changes)
    }

    pub(crate) fn view(&self) -> View<'_> {
        View { tables: self.tables(), state: self }
    }

    /// Who an instance is, as the index has it.
    pub(crate) fn identity_of(&self, instance: &InstanceName) -> Option<Identity> {
        self.tables().index.identity_of(instance).cloned()
    }

    fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        // The index is pure and its changes do not panic; were one to, the rest is still served.
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets go of encodings of what has changed; streams that hold one keep it until they send it.
    fn forget(&self, touched: &Touched) {
        let mut encoded = self.encodings();
        for name in &touched.names {
            encoded.remove(name);
        }
        for instance in &touched.policies {
            encoded.remove(&instance.to_string());
        }
        self.metrics.cached_resources.set(encoded.len() as u64);
    }

    /// The encoding of `source`, made where there is none yet.
    fn encode(&self, name: String, source: Source) -> Arc<Encoded> {
        let mut encoded = self.encodings();
        let of_name = encoded.entry(name.clone()).or_default();
        if let Some(known) = of_name.iter().find(|known| known.source.is(&source)) {
            return Arc::clone(known);
        }
        let made = Arc::new(Encoded::new(name, source));
        of_name.push(Arc::clone(&made));
        self.metrics.cached_resources.set(encoded.len() as u64);
        made
    }

    fn encodings(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Encoded>>>> {
        self.encoded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Encoded {
    fn new(name: String, source: Source) -> Self {
        let (any, ips) = match &source {
            Source::Service(service) => (encode::service(service), service.vips.as_slice()),
            Source::Workload(workload) => (encode::workload(workload), &*workload.addresses),
            Source::Policy(policy) => (encode::server_policy(policy), [].as_slice()),
        };
        let digest = digest(&SHA256, &any.value);
        let version = digest.as_ref()[..VERSION_BYTES].iter().map(|b| format!("{b:02x}")).collect();
        let aliases = ips.iter().copied().map(names::of_address).collect();
        let message = proto::Resource { version, resource: Some(any), name, aliases };
        Self { message, source }
    }

    pub(crate) fn name(&self) -> &str {
        &self.message.name
    }

    /// The same for the same content, whoever encoded it: proxies show it to the next control plane.
    pub(crate) fn version(&self) -> &str {
        &self.message.version
    }

    /// Its weight in a response, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.message.resource.as_ref().map_or(0, |any| any.value.len())
    }

    /// The message; its bytes are shared.
    pub(crate) fn message(&self) -> proto::Resource {
        self.message.clone()
    }
}

impl Source {
    /// Whether both are the same value, not only an equal one.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Service(a), Self::Service(b)) => Arc::ptr_eq(a, b),
            (Self::Workload(a), Self::Workload(b)) => Arc::ptr_eq(a, b),
            (Self::Policy(a), Self::Policy(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl From<Changed> for Touched {
    fn from(changed: Changed) -> Self {
        let Changed { services, workloads, policies, addresses } = changed;
        let subjects = addresses.into_iter().map(Subject::Address);
        let subjects = subjects.chain(services.iter().cloned().map(Subject::Service)).collect();
        let names = services.iter().map(names::of_service);
        let names = names.chain(workloads.iter().map(names::of_workload)).collect();
        let namespaces = services.into_iter().map(|service| service.namespace);
        let namespaces = namespaces.chain(workloads.into_iter().map(|w| w.namespace)).collect();
        Self { subjects, names, namespaces, policies: policies.into_iter().collect() }
    }
}

impl View<'_> {
    /// What a proxy in the namespace `client` is told of a subject.
    pub(crate) fn at(&self, subject: &Subject, client: &str) -> Option<Arc<Encoded>> {
        match self.tables.index.resolve(subject, client) {
            Resolution::Service(service) => Some(self.service(service)),
            Resolution::Workload(workload) => Some(self.workload(workload)),
            Resolution::Unknown | Resolution::Pending => None,
        }
    }

    /// The services and workloads of a namespace, at most [`MAX_PREFETCH`] of each, by name: the
    /// same ones for every stream.
    pub(crate) fn prefetch(&self, namespace: &str) -> Vec<Arc<Encoded>> {
        let index = &self.tables.index;
        let mut services = index.services_in(namespace).cloned();
        let mut workloads = index.workloads_in(namespace).cloned();
        let mut found: Vec<_> =
            services.by_ref().take(MAX_PREFETCH).map(|service| self.service(service)).collect();
        found.extend(workloads.by_ref().take(MAX_PREFETCH).map(|workload| self.workload(workload)));
        if services.next().is_some() || workloads.next().is_some() {
            self.state.metrics.prefetch_cut.increment();
        }
        found
    }

    /// What a workload enforces.
    pub(crate) fn policy(&self, instance: &InstanceName) -> Option<Arc<Encoded>> {
        let policy = self.tables.index.server_policy(instance)?;
        Some(self.state.encode(instance.to_string(), Source::Policy(policy)))
    }

    /// The same as a value.
    pub(crate) fn server_policy(&self, instance: &InstanceName) -> Option<Arc<ServerPolicy>> {
        self.tables.index.server_policy(instance)
    }

    fn service(&self, service: Arc<Service>) -> Arc<Encoded> {
        self.state.encode(names::of_service(&service.name), Source::Service(service))
    }

    fn workload(&self, workload: Arc<Workload>) -> Arc<Encoded> {
        self.state.encode(names::of_workload(&workload.name), Source::Workload(workload))
    }
}
