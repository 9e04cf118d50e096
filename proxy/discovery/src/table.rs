//! What the control plane has said so far: pure state, no connection.
//!
//! ```text
//!   ip/10.96.0.1 --alias--> service/shop/web --> resource (version, value)
//!   ip/10.96.0.9 --absent: the control plane said that nothing is there
//! ```

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use leno_types::mesh::{Resolution, Service, Workload};

/// A service or a workload, as the control plane sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Service(Arc<Service>),
    Workload(Arc<Workload>),
}

/// One resource that the proxy holds.
#[derive(Clone, Debug)]
pub(crate) struct Resource {
    pub(crate) version: String,
    pub(crate) address: Address,
}

/// Resources by name, and which of them stands behind an address.
#[derive(Debug, Default)]
pub(crate) struct Table {
    resources: HashMap<String, Resource>,
    aliases: HashMap<IpAddr, String>,
    absent: HashSet<IpAddr>,
}

impl Address {
    /// The addresses that lead to it.
    pub(crate) fn ips(&self) -> &[IpAddr] {
        match self {
            Self::Service(service) => &service.vips,
            Self::Workload(workload) => &workload.addresses,
        }
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Service(service) => &service.name.namespace,
            Self::Workload(workload) => &workload.name.namespace,
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
    /// What is known of an address.
    pub(crate) fn resolve(&self, ip: IpAddr) -> Resolution {
        let known = self.aliases.get(&ip).and_then(|name| self.resources.get(name));
        match known {
            Some(resource) => resource.address.resolution(),
            None if self.absent.contains(&ip) => Resolution::Unknown,
            None => Resolution::Pending,
        }
    }

    /// How many resources are held.
    pub(crate) fn len(&self) -> usize {
        self.resources.len()
    }

    /// Name and version of everything held, for a control plane that has just been reached.
    pub(crate) fn versions(&self) -> HashMap<String, String> {
        let version =
            |(name, resource): (&String, &Resource)| (name.clone(), resource.version.clone());
        self.resources.iter().map(version).collect()
    }

    /// Takes a resource in place of an older one of that name. Returns the addresses whose
    /// resolution may have changed.
    pub(crate) fn insert(&mut self, name: String, resource: Resource) -> Vec<IpAddr> {
        let mut changed = self.forget(&name);
        for ip in resource.address.ips() {
            // The control plane decides whose an address is, and says so with the newer resource.
            self.aliases.insert(*ip, name.clone());
            self.absent.remove(ip);
            changed.push(*ip);
        }
        self.resources.insert(name, resource);
        changed
    }

    /// Drops a resource. Returns the addresses that led to it.
    pub(crate) fn remove(&mut self, name: &str) -> Vec<IpAddr> {
        self.forget(name)
    }

    /// Records that nothing of the mesh is at an address.
    pub(crate) fn set_absent(&mut self, ip: IpAddr) {
        self.aliases.remove(&ip);
        self.absent.insert(ip);
    }

    /// Drops what neither `watched` nor the namespace `own` (which is prefetched) needs.
    pub(crate) fn retain(&mut self, own: &str, watched: impl Fn(IpAddr) -> bool) {
        self.absent.retain(|ip| watched(*ip));
        self.resources.retain(|_, resource| {
            let address = &resource.address;
            address.namespace() == own || address.ips().iter().any(|ip| watched(*ip))
        });
        let resources = &self.resources;
        self.aliases.retain(|_, name| resources.contains_key(name));
    }

    fn forget(&mut self, name: &str) -> Vec<IpAddr> {
        let Some(old) = self.resources.remove(name) else {
            return Vec::new();
        };
        let mut led = Vec::new();
        for ip in old.address.ips() {
            if self.aliases.get(ip).is_some_and(|owner| owner == name) {
                self.aliases.remove(ip);
                led.push(*ip);
            }
        }
        led
    }
}
