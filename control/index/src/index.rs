//! The index: the facts about objects, and the tables of values that are built from them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leno_types::authorization::Authorization;
use leno_types::mesh::{Resolution, ServerPolicy, Service, Subject, Workload};
use leno_types::routes::{InvalidTarget, RouteKind};
use leno_types::traffic::RateLimit;
use leno_types::{Egress, Identity, InstanceName, MtlsMode, Removal, ServiceName, TrustDomain};

use crate::build;
use crate::change::{ChangedNames, ObjectChange};
use crate::facts::{AffectedNames, Facts, RefusedEndpoints};
use crate::tables::{AddressOwner, RebuiltValues, Tables};

/// Settings of the whole mesh.
#[derive(Clone, Debug, Default)]
pub struct MeshSettings {
    /// The trust domain of all identities.
    pub trust_domain: TrustDomain,
    /// The mode of workloads if neither they nor their namespace set one.
    pub default_mtls: MtlsMode,
    /// Whether workloads may call destinations outside the mesh for which there is no object. This applies if
    /// neither the workload nor its namespace sets it.
    pub default_egress: Egress,
    /// The control plane's own namespace, whose annotation starts the removal of the mesh; `None`
    /// if removal is not supported.
    pub namespace: Option<String>,
    /// Which clients write the objects.
    pub writers: ObjectWriters,
    /// Whether agents report which pods node proxies serve. Without it, every pod in node mode counts as served.
    pub agents_report: bool,
}

/// Which clients write the objects. This decides which claims are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ObjectWriters {
    /// One operator writes all objects, so no claims are checked.
    #[default]
    Operator,
    /// Tenants of a cluster write objects in their own namespaces. An endpoint, an address or a
    /// looser setting counts only if the claiming namespace has the right to it.
    Tenants,
}

/// How many values are built before they are stored, when all values are built. Built values that are not stored
/// yet take additional memory.
const BUILT_AT_ONCE: usize = 512;

/// The facts about all objects, and the values that are built from them.
#[derive(Clone, Debug)]
pub struct Index {
    pub(crate) facts: Facts,
    tables: Tables,
    /// Whether objects were preloaded from which no values were built yet.
    is_preloaded: bool,
}

impl Index {
    /// Creates an empty index.
    #[must_use]
    pub fn new(settings: MeshSettings) -> Self {
        Self { facts: Facts::new(settings), tables: Tables::default(), is_preloaded: false }
    }

    /// Inserts objects of a first list that is not complete yet. Queries find them only after the next
    /// [`apply_all`](Self::apply_all), which builds all values at once. So the caller can pass on objects as they
    /// arrive, instead of keeping all objects of a cluster in memory until the last one is listed.
    pub fn preload(&mut self, changes: Vec<ObjectChange>) {
        // The affected names are not needed, because all values will be built.
        self.put_all(changes);
        self.is_preloaded = true;
    }

    /// Applies one change. Returns the names whose values differ now.
    pub fn apply(&mut self, change: ObjectChange) -> ChangedNames {
        self.apply_all(vec![change])
    }

    /// Applies several changes as one. States in between are not reported. If two changes concern the same object,
    /// the later one takes effect.
    pub fn apply_all(&mut self, changes: Vec<ObjectChange>) -> ChangedNames {
        let touched = self.put_all(changes);
        if std::mem::take(&mut self.is_preloaded) {
            self.build_all()
        } else {
            self.rebuild(touched)
        }
    }

    /// From now on, a pod in node mode counts as served only if the agent of its node reports it
    /// ([`MeshSettings::agents_report`]).
    pub fn follow_reports(&mut self) -> ChangedNames {
        let touched = self.facts.follow_reports();
        // All values will be built.
        if self.is_preloaded { ChangedNames::default() } else { self.rebuild(touched) }
    }

    fn put_all(&mut self, changes: Vec<ObjectChange>) -> AffectedNames {
        let mut touched = AffectedNames::default();
        for change in changes {
            match change {
                ObjectChange::Upsert(object) => self.facts.put(&object, &mut touched),
                ObjectChange::Delete(key) => self.facts.remove(&key, &mut touched),
            }
        }
        touched
    }

    /// The service or workload at an IP address. If several claim it, services take precedence over workloads,
    /// then the first by name.
    #[must_use]
    pub fn address(&self, ip: IpAddr) -> Option<AddressOwner> {
        self.tables.address(ip.to_canonical())
    }

    /// The `client` argument of [`resolve`](Self::resolve) for an instance: its waypoint (`namespace/name`) if it
    /// belongs to one, else its namespace.
    #[must_use]
    pub fn client_of(&self, instance: &InstanceName) -> Arc<str> {
        match self.facts.waypoint_of(instance) {
            Some(waypoint) => waypoint.to_string().into(),
            None => Arc::clone(&instance.namespace),
        }
    }

    /// The answer for a proxy that subscribes to `subject`. `client` is the proxy's namespace, or its waypoint.
    /// The answer is never pending. A service includes the routes that apply to clients of that namespace.
    #[must_use]
    pub fn resolve(&self, subject: &Subject, client: &str) -> Resolution {
        let name = match subject {
            Subject::Service(name) => name.clone(),
            Subject::Address(ip) => match self.address(*ip) {
                Some(AddressOwner::Service(service)) => service.name.clone(),
                Some(AddressOwner::Workload(workload)) => return Resolution::Workload(workload),
                None => return Resolution::Unknown,
            },
        };
        self.tables.service_for(&name, client).map_or(Resolution::Unknown, Resolution::Service)
    }

    /// A service by its name, as it appears to clients whose namespace has no routes of its own for it.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.tables.services.get(name).cloned()
    }

    /// A workload by its name.
    #[must_use]
    pub fn workload(&self, name: &InstanceName) -> Option<Arc<Workload>> {
        self.tables.workloads.get(name).cloned()
    }

    /// The identity of an instance, whether or not it has a proxy, and whatever its mTLS mode.
    #[must_use]
    pub fn identity_of(&self, name: &InstanceName) -> Option<&Identity> {
        let row = self.facts.instance(name).filter(|row| !row.shares_node);
        row.map(|row| &row.identity)
    }

    /// Whether an instance has a proxy, either a sidecar or a node proxy.
    #[must_use]
    pub fn is_meshed(&self, name: &InstanceName) -> bool {
        self.facts.instance(name).is_some_and(|row| self.facts.is_meshed(name, row))
    }

    /// Whether an instance is in node mode, and other proxies do not know yet that a node proxy serves it.
    #[must_use]
    pub fn awaits_node_proxy(&self, name: &InstanceName) -> bool {
        self.facts.instance(name).is_some_and(|row| self.facts.awaits_node_proxy(name, row))
    }

    /// The policy that a workload's own proxy enforces.
    #[must_use]
    pub fn server_policy(&self, name: &InstanceName) -> Option<Arc<ServerPolicy>> {
        self.tables.policies.get(name).cloned()
    }

    /// The rate limits of an instance. The instance need not be in the index.
    #[must_use]
    pub fn rate_limits(&self, name: &InstanceName) -> Arc<[RateLimit]> {
        build::policies::limits(&self.facts, name)
    }

    /// The authorization of an instance with these labels. The instance need not be in the index.
    #[must_use]
    pub fn authorization(
        &self,
        name: &InstanceName,
        labels: &BTreeMap<String, String>,
    ) -> Arc<Authorization> {
        build::authorization::authorization(&self.facts, name, labels)
    }

    /// Checks that a route of a kind in the namespace `from`, attached to `parent`, may refer to a
    /// port of a service, and that the port exists.
    ///
    /// # Errors
    /// Why requests to the target fail.
    pub fn refers(
        &self,
        (kind, from): (RouteKind, &str),
        parent: &ServiceName,
        to: (&ServiceName, u16),
    ) -> Result<(), InvalidTarget> {
        build::routes::resolved(&self.facts, parent, &(kind, from.into()), to)
    }

    /// The services of a namespace, ordered by name.
    pub fn services_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<Service>> {
        let first = ServiceName { namespace: namespace.into(), name: "".into() };
        let services = self.tables.services.range(first.clone()..);
        services.take_while(move |(name, _)| name.namespace == first.namespace).map(|(_, s)| s)
    }

    /// The workloads of a namespace, ordered by name.
    pub fn workloads_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<Workload>> {
        let first = InstanceName { namespace: namespace.into(), name: "".into() };
        let workloads = self.tables.workloads.range(first.clone()..);
        workloads.take_while(move |(name, _)| name.namespace == first.namespace).map(|(_, w)| w)
    }

    /// How far the removal of the mesh has gone.
    #[must_use]
    pub fn removal(&self) -> Removal {
        self.facts.removal()
    }

    /// The endpoints that are refused because the namespace of their slice has no right to them, by
    /// service.
    #[must_use]
    pub fn refused_endpoints(&self) -> &BTreeMap<ServiceName, RefusedEndpoints> {
        self.facts.refused()
    }

    /// The IP addresses that lead to `address`: those of the service or workload, except those that another object
    /// owns.
    #[must_use]
    pub fn aliases(&self, address: &AddressOwner) -> Vec<IpAddr> {
        self.tables.aliases(address)
    }

    /// Builds the values of all objects, and removes values whose object is gone.
    fn build_all(&mut self) -> ChangedNames {
        let (mut services, mut instances) = self.facts.names();
        services.extend(self.tables.services.keys().cloned());
        instances.extend(self.tables.workloads.keys().cloned());
        let (mut services, mut instances) = (services.into_iter(), instances.into_iter());
        let mut changed = ChangedNames::default();
        while services.len() > 0 {
            changed.extend(self.build(services.by_ref().take(BUILT_AT_ONCE), []));
        }
        while instances.len() > 0 {
            changed.extend(self.build([], instances.by_ref().take(BUILT_AT_ONCE)));
        }
        changed
    }

    fn rebuild(&mut self, touched: AffectedNames) -> ChangedNames {
        let AffectedNames { mut services, instances, mut served } = touched;
        for instance in &instances {
            services.extend(self.facts.services_naming(instance).cloned());
        }
        served.extend(instances);
        // If a changed service belongs to a waypoint, the services that use the waypoint have changed as well.
        let dependents = self.facts.waypoint_dependents(&services);
        // Which clients a workload permits depends on whether its waypoint exists.
        served.extend(dependents.iter().flat_map(|name| self.facts.behind_waypoint(name)).cloned());
        services.extend(dependents);
        // Whether a route may lead to a service depends on whether that service's own routes lead on to a third
        // waypoint.
        services.extend(self.facts.waypoint_dependents(&services));
        self.build(services, served)
    }

    fn build(
        &mut self,
        services: impl IntoIterator<Item = ServiceName>,
        instances: impl IntoIterator<Item = InstanceName>,
    ) -> ChangedNames {
        let mut rebuilt = RebuiltValues::default();
        for name in services {
            self.facts.note_refused(&name);
            let service = build::service(&self.facts, &name);
            rebuilt.services.insert(name, service);
        }
        for name in instances {
            let both = build::instance(&self.facts, &name);
            rebuilt.instances.insert(name, both);
        }
        self.tables.replace(rebuilt)
    }
}
