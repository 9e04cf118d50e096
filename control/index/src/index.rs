//! The index: facts, and the tables made of them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leno_types::mesh::{Resolution, ServerPolicy, Service, Subject, Workload};
use leno_types::routes::{InvalidTarget, RouteKind};
use leno_types::traffic::RateLimit;
use leno_types::{Egress, Identity, InstanceName, MtlsMode, Removal, ServiceName, TrustDomain};

use crate::build;
use crate::change::{Change, Changed};
use crate::facts::{Facts, RefusedEndpoints, Touched};
use crate::tables::{Address, Rebuilt, Tables};

/// What holds for the whole mesh.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Under which identities are issued.
    pub trust_domain: TrustDomain,
    /// The mode of workloads that neither they nor their namespace set.
    pub default_mtls: MtlsMode,
    /// Whether workloads may call what the mesh does not know, where neither they nor their namespace
    /// say.
    pub default_egress: Egress,
    /// The control plane's own namespace, which says whether the mesh is being removed; none where that is
    /// never said.
    pub namespace: Option<String>,
    /// Who writes the objects.
    pub writers: Writers,
}

/// Who writes the objects, and so which of their claims are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writers {
    /// One operator, who writes all of them: what an object says holds.
    #[default]
    Operator,
    /// Tenants of a cluster, each in namespaces of their own. An endpoint, an address or a looser setting
    /// counts only if the namespace that claims it may.
    Tenants,
}

/// The control plane's tables.
#[derive(Clone, Debug)]
pub struct Index {
    facts: Facts,
    tables: Tables,
}

impl Index {
    /// An index of nothing.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { facts: Facts::new(settings), tables: Tables::default() }
    }

    /// Takes one change.
    pub fn apply(&mut self, change: Change) -> Changed {
        self.apply_all(vec![change])
    }

    /// Takes several changes as one: nothing is told of what lay between. Of two changes of one
    /// object, the later one holds.
    pub fn apply_all(&mut self, changes: Vec<Change>) -> Changed {
        let mut touched = Touched::default();
        for change in changes {
            match change {
                Change::Upsert(object) => self.facts.put(&object, &mut touched),
                Change::Delete(key) => self.facts.remove(&key, &mut touched),
            }
        }
        self.rebuild(touched)
    }

    /// What stands behind an IP address. Where several claim it, a service goes before a workload,
    /// and then the first by name.
    #[must_use]
    pub fn address(&self, ip: IpAddr) -> Option<Address> {
        self.tables.address(ip.to_canonical())
    }

    /// What a proxy in the namespace `client` is told of a subject; never pending. A service comes
    /// with the routes that hold for that namespace.
    #[must_use]
    pub fn resolve(&self, subject: &Subject, client: &str) -> Resolution {
        let name = match subject {
            Subject::Service(name) => name.clone(),
            Subject::Address(ip) => match self.address(*ip) {
                Some(Address::Service(service)) => service.name.clone(),
                Some(Address::Workload(workload)) => return Resolution::Workload(workload),
                None => return Resolution::Unknown,
            },
        };
        self.tables.service_for(&name, client).map_or(Resolution::Unknown, Resolution::Service)
    }

    /// A service by its name, as clients without routes of their own see it.
    #[must_use]
    pub fn service(&self, name: &ServiceName) -> Option<Arc<Service>> {
        self.tables.services.get(name).cloned()
    }

    /// A workload by its name.
    #[must_use]
    pub fn workload(&self, name: &InstanceName) -> Option<Arc<Workload>> {
        self.tables.workloads.get(name).cloned()
    }

    /// Who an instance is, meshed or not, and whatever its mode of mTLS.
    #[must_use]
    pub fn identity_of(&self, name: &InstanceName) -> Option<&Identity> {
        let row = self.facts.instance(name).filter(|row| !row.shares_node);
        row.map(|row| &row.identity)
    }

    /// What a workload's own proxy enforces.
    #[must_use]
    pub fn server_policy(&self, name: &InstanceName) -> Option<Arc<ServerPolicy>> {
        self.tables.policies.get(name).cloned()
    }

    /// How many requests an instance takes, whether it is known or not.
    #[must_use]
    pub fn rate_limits(&self, name: &InstanceName) -> Arc<[RateLimit]> {
        build::policies::limits(&self.facts, name)
    }

    /// Whether a route of a kind in the namespace `from`, attached to `parent`, may refer to a port of a
    /// service that there is.
    ///
    /// # Errors
    /// Why its requests go nowhere.
    pub fn refers(
        &self,
        (kind, from): (RouteKind, &str),
        parent: &ServiceName,
        to: (&ServiceName, u16),
    ) -> Result<(), InvalidTarget> {
        build::routes::resolved(&self.facts, parent, &(kind, from.into()), to)
    }

    /// The services of a namespace, by name.
    pub fn services_in(&self, namespace: &str) -> impl Iterator<Item = &Arc<Service>> {
        let first = ServiceName { namespace: namespace.into(), name: "".into() };
        let services = self.tables.services.range(first.clone()..);
        services.take_while(move |(name, _)| name.namespace == first.namespace).map(|(_, s)| s)
    }

    /// The workloads of a namespace, by name.
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

    /// The endpoints that are ignored since the namespace of their slice has no right to them, by service.
    #[must_use]
    pub fn refused_endpoints(&self) -> &BTreeMap<ServiceName, RefusedEndpoints> {
        self.facts.refused()
    }

    /// The IP addresses that lead to `address`: its own, less those that another one claims first.
    #[must_use]
    pub fn aliases(&self, address: &Address) -> Vec<IpAddr> {
        self.tables.aliases(address)
    }

    fn rebuild(&mut self, touched: Touched) -> Changed {
        let Touched { mut services, instances, mut served } = touched;
        for instance in &instances {
            services.extend(self.facts.services_naming(instance).cloned());
        }
        served.extend(instances);
        let mut rebuilt = Rebuilt::default();
        for name in services {
            self.facts.note_refused(&name);
            let service = build::service(&self.facts, &name);
            rebuilt.services.insert(name, service);
        }
        for name in served {
            let both = build::instance(&self.facts, &name);
            rebuilt.instances.insert(name, both);
        }
        self.tables.replace(rebuilt)
    }
}
