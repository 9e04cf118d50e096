//! The resources that the control plane has sent. This is only state, without a connection.
//!
//! ```text
//!   ip/10.96.0.1 --alias--> service/shop/web --> resource (version, value)
//!   ip/10.96.0.9 --absent: the control plane has nothing at this address
//!   a service that is watched by name needs no alias
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_types::mesh::{Resolution, Service, Subject, Workload};
use leno_wire::names;

/// A service or a workload, as the control plane sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Service(Arc<Service>),
    Workload(Arc<Workload>),
}

/// A resource in the table.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) version: String,
    pub(crate) address: Address,
    /// The addresses that resolve to the resource.
    pub(crate) aliases: Vec<IpAddr>,
}

/// Resources by name, and the resource that each address resolves to.
#[derive(Debug, Default)]
pub(crate) struct Table {
    resources: HashMap<Arc<str>, Resource>,
    /// For each address, the resources that have it. There may be several, at least while one takes the address over
    /// from another. The first in the order of names is used, so a service takes precedence over a workload, as in the
    /// control plane's index.
    aliases: HashMap<IpAddr, BTreeSet<Arc<str>>>,
    /// Subjects that the control plane has reported as unknown.
    absent: HashSet<Subject>,
}

/// A service in the table, to which an update is applied.
#[derive(Clone, Debug)]
pub(crate) struct HeldService {
    pub(crate) version: String,
    pub(crate) service: Arc<Service>,
    pub(crate) aliases: Vec<IpAddr>,
}

impl Address {
    /// The subject with which the resource is found by name. Workloads have none.
    fn subject(&self) -> Option<Subject> {
        match self {
            Self::Service(service) => Some(Subject::Service(service.name.clone())),
            Self::Workload(_) => None,
        }
    }

    fn resolution(&self) -> Resolution {
        match self {
            Self::Service(service) => Resolution::Service(Arc::clone(service)),
            Self::Workload(workload) => Resolution::Workload(Arc::clone(workload)),
        }
    }
}

impl Table {
    /// The current resolution of a subject.
    pub(crate) fn resolve(&self, subject: &Subject) -> Resolution {
        let resource = match subject {
            Subject::Address(ip) => {
                let name = self.aliases.get(ip).and_then(BTreeSet::first);
                name.and_then(|name| self.resources.get(name))
            }
            Subject::Service(name) => self.resources.get(names::of_service(name).as_str()),
        };
        match resource {
            Some(resource) => resource.address.resolution(),
            None if self.absent.contains(subject) => Resolution::Unknown,
            None => Resolution::Pending,
        }
    }

    /// The service whose resource has this name.
    pub(crate) fn service(&self, name: &str) -> Option<HeldService> {
        let Resource { version, address, aliases } = self.resources.get(name)?;
        let Address::Service(service) = address else { return None };
        let (version, service) = (version.clone(), Arc::clone(service));
        Some(HeldService { version, service, aliases: aliases.clone() })
    }

    /// The subjects that resolve to a resource.
    pub(crate) fn subjects(&self, name: &str) -> Vec<Subject> {
        let Some(resource) = self.resources.get(name) else { return Vec::new() };
        let subjects = resource.aliases.iter().copied().map(Subject::Address);
        subjects.chain(resource.address.subject()).collect()
    }

    /// All services, sorted by name.
    pub(crate) fn services(&self) -> Vec<Arc<Service>> {
        let service = |resource: &Resource| match &resource.address {
            Address::Service(service) => Some(Arc::clone(service)),
            Address::Workload(_) => None,
        };
        let mut services: Vec<_> = self.resources.values().filter_map(service).collect();
        services.sort_by(|a, b| a.name.cmp(&b.name));
        services
    }

    /// The number of resources in the table.
    pub(crate) fn len(&self) -> usize {
        self.resources.len()
    }

    /// The names and versions of all resources in the table, for the first request to a control plane.
    pub(crate) fn versions(&self) -> HashMap<String, String> {
        let version =
            |(name, resource): (&Arc<str>, &Resource)| (name.to_string(), resource.version.clone());
        self.resources.iter().map(version).collect()
    }

    /// Inserts a resource, or replaces the resource with the same name. Returns the subjects whose resolution may have
    /// changed.
    pub(crate) fn insert(&mut self, name: &str, resource: Resource) -> Vec<Subject> {
        let mut changed = self.remove(name);
        let name: Arc<str> = name.into();
        for ip in &resource.aliases {
            self.aliases.entry(*ip).or_default().insert(Arc::clone(&name));
            self.absent.remove(&Subject::Address(*ip));
            changed.push(Subject::Address(*ip));
        }
        if let Some(subject) = resource.address.subject() {
            self.absent.remove(&subject);
            changed.push(subject);
        }
        self.resources.insert(name, resource);
        changed
    }

    /// Drops a resource. Returns the subjects that resolved to it.
    pub(crate) fn remove(&mut self, name: &str) -> Vec<Subject> {
        let Some(old) = self.resources.remove(name) else {
            return Vec::new();
        };
        for ip in &old.aliases {
            self.give_up(*ip, name);
        }
        let subjects = old.aliases.into_iter().map(Subject::Address);
        subjects.chain(old.address.subject()).collect()
    }

    /// Records that the mesh has nothing for a subject.
    pub(crate) fn set_absent(&mut self, subject: Subject) {
        if let Subject::Address(ip) = &subject {
            self.aliases.remove(ip);
        }
        self.absent.insert(subject);
    }

    /// Drops resources to which no watched subject resolves.
    pub(crate) fn retain(&mut self, watched: impl Fn(&Subject) -> bool) {
        self.absent.retain(|subject| watched(subject));
        let needed = |resource: &Resource| {
            resource.aliases.iter().any(|ip| watched(&Subject::Address(*ip)))
                || resource.address.subject().is_some_and(|subject| watched(&subject))
        };
        let dropped: Vec<Arc<str>> = self
            .resources
            .iter()
            .filter(|(_, resource)| !needed(resource))
            .map(|(name, _)| Arc::clone(name))
            .collect();
        for name in dropped {
            self.remove(&name);
        }
    }

    fn give_up(&mut self, ip: IpAddr, name: &str) {
        if let Some(names) = self.aliases.get_mut(&ip) {
            names.remove(name);
            if names.is_empty() {
                self.aliases.remove(&ip);
            }
        }
    }
}
