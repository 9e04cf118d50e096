//! The tables that queries read: values by name, and the claims on each IP address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use leno_types::mesh::{ServerPolicy, Service, Workload};
use leno_types::{InstanceName, ServiceName};

use crate::build::BuiltService;
use crate::change::ChangedNames;
use crate::sharing::share_with_neighbours;
use crate::small_map::{SmallMap, one};

/// The service or workload at an IP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressOwner {
    /// The address is a VIP of the service.
    Service(Arc<Service>),
    /// The address is the workload's own.
    Workload(Arc<Workload>),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    pub(crate) services: BTreeMap<ServiceName, Arc<Service>>,
    /// Variants of services. Under the name of a namespace is the variant for clients of that namespace, which has
    /// its own routes for the service. Under `namespace/name` is the variant for the service's waypoint.
    consumers: BTreeMap<ServiceName, BTreeMap<Arc<str>, Arc<Service>>>,
    pub(crate) workloads: BTreeMap<InstanceName, Arc<Workload>>,
    pub(crate) policies: BTreeMap<InstanceName, Arc<ServerPolicy>>,
    /// The claims on each address. The first claim decides.
    claims: BTreeMap<IpAddr, SmallMap<AddressClaim, ()>>,
}

/// Values that were built again; `None` if no object of that name is left.
#[derive(Default)]
pub(crate) struct RebuiltValues {
    pub(crate) services: BTreeMap<ServiceName, Option<BuiltService>>,
    pub(crate) instances: BTreeMap<InstanceName, Option<(Workload, ServerPolicy)>>,
}

/// A claim on an address. The order of the variants is the order of precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressClaim {
    Service(ServiceName),
    Workload(InstanceName),
}

impl AddressOwner {
    /// The IP addresses of the service or workload, including those that another object owns.
    #[must_use]
    pub fn ips(&self) -> &[IpAddr] {
        match self {
            Self::Service(service) => &service.vips,
            Self::Workload(workload) => &workload.addresses,
        }
    }

    fn claim(&self) -> AddressClaim {
        match self {
            Self::Service(service) => AddressClaim::Service(service.name.clone()),
            Self::Workload(workload) => AddressClaim::Workload(workload.name.clone()),
        }
    }
}

impl Tables {
    pub(crate) fn address(&self, ip: IpAddr) -> Option<AddressOwner> {
        self.claimed(self.claims.get(&ip)?.first()?.0)
    }

    pub(crate) fn aliases(&self, address: &AddressOwner) -> Vec<IpAddr> {
        let claim = address.claim();
        let holds = |ip: &&IpAddr| {
            let first = self.claims.get(ip).and_then(SmallMap::first);
            first.is_some_and(|(first, ())| *first == claim)
        };
        address.ips().iter().filter(holds).copied().collect()
    }

    /// Stores the values that differ from the present ones. Returns the names of these.
    pub(crate) fn replace(&mut self, rebuilt: RebuiltValues) -> ChangedNames {
        let mut changed = ChangedNames::default();
        let mut moved: Vec<(AddressClaim, Option<AddressOwner>)> = Vec::new();
        for (name, built) in rebuilt.services {
            let (service, consumers) = match built {
                Some(BuiltService { service, consumers }) => (Some(service), consumers),
                None => (None, BTreeMap::new()),
            };
            if self.replace_consumers(&name, consumers) {
                changed.services.insert(name.clone());
            }
            if self.services.get(&name).map(Arc::as_ref) != service.as_ref() {
                let address = service.map(|service| AddressOwner::Service(Arc::new(service)));
                moved.push((AddressClaim::Service(name.clone()), address));
                changed.services.insert(name);
            }
        }
        for (name, both) in rebuilt.instances {
            let (workload, mut policy) = both.unzip();
            if self.policies.get(&name).map(Arc::as_ref) != policy.as_ref() {
                if let Some(policy) = &mut policy {
                    let own = (&mut name.clone(), policy);
                    share_with_neighbours(&self.policies, own, |policy| Some(&**policy));
                }
                set(&mut self.policies, &name, policy.map(Arc::new));
                changed.policies.insert(name.clone());
            }
            if self.workloads.get(&name).map(Arc::as_ref) != workload.as_ref() {
                let address = workload.map(|workload| AddressOwner::Workload(Arc::new(workload)));
                moved.push((AddressClaim::Workload(name.clone()), address));
                changed.workloads.insert(name);
            }
        }
        let before = self.answers(&moved);
        for (claim, address) in moved {
            self.put(claim, address);
        }
        let differs = |(ip, answer)| (self.address(ip) != answer).then_some(ip);
        changed.addresses = before.into_iter().filter_map(differs).collect();
        changed
    }

    /// Replaces the variants of a service. Returns whether any of them has changed.
    fn replace_consumers(&mut self, name: &ServiceName, new: BTreeMap<Arc<str>, Service>) -> bool {
        let old = self.consumers.remove(name).unwrap_or_default();
        let mut differs = old.keys().any(|namespace| !new.contains_key(namespace));
        let kept = |(namespace, service): (Arc<str>, Service)| {
            let same = old.get(&namespace).filter(|old| ***old == service).cloned();
            differs |= same.is_none();
            let value = same.unwrap_or_else(|| Arc::new(service));
            (namespace, value)
        };
        let values: BTreeMap<_, _> = new.into_iter().map(kept).collect();
        if !values.is_empty() {
            self.consumers.insert(name.clone(), values);
        }
        differs
    }

    /// A service as clients of a namespace, or a waypoint, receive it.
    pub(crate) fn service_for(&self, name: &ServiceName, client: &str) -> Option<Arc<Service>> {
        let consumers = self.consumers.get(name);
        let of = |client: &str| consumers.and_then(|consumers| consumers.get(client));
        let own = of(client).or_else(|| of(client.split_once('/')?.0));
        own.or_else(|| self.services.get(name)).cloned()
    }

    /// The present answers at all addresses that the changes can affect.
    fn answers(
        &self,
        moved: &[(AddressClaim, Option<AddressOwner>)],
    ) -> BTreeMap<IpAddr, Option<AddressOwner>> {
        let both = moved.iter().flat_map(|(claim, new)| [self.claimed(claim), new.clone()]);
        let ips = both.flatten().flat_map(|address| address.ips().to_vec());
        ips.map(|ip| (ip, self.address(ip))).collect()
    }

    fn put(&mut self, claim: AddressClaim, address: Option<AddressOwner>) {
        for ip in self.claimed(&claim).iter().flat_map(AddressOwner::ips) {
            if let Some(claims) = self.claims.get_mut(ip) {
                claims.remove(&claim);
                if claims.is_empty() {
                    self.claims.remove(ip);
                }
            }
        }
        for ip in address.iter().flat_map(AddressOwner::ips) {
            self.claims.entry(*ip).or_insert_with(one).insert(claim.clone(), ());
        }
        match (claim, address) {
            (AddressClaim::Service(name), Some(AddressOwner::Service(new))) => {
                self.services.insert(name, new);
            }
            (AddressClaim::Workload(name), Some(AddressOwner::Workload(new))) => {
                self.workloads.insert(name, new);
            }
            (AddressClaim::Service(name), _) => drop(self.services.remove(&name)),
            (AddressClaim::Workload(name), _) => drop(self.workloads.remove(&name)),
        }
    }

    fn claimed(&self, claim: &AddressClaim) -> Option<AddressOwner> {
        match claim {
            AddressClaim::Service(name) => {
                self.services.get(name).cloned().map(AddressOwner::Service)
            }
            AddressClaim::Workload(name) => {
                self.workloads.get(name).cloned().map(AddressOwner::Workload)
            }
        }
    }
}

fn set<K: Ord + Clone, V>(table: &mut BTreeMap<K, V>, key: &K, value: Option<V>) {
    match value {
        Some(value) => drop(table.insert(key.clone(), value)),
        None => drop(table.remove(key)),
    }
}
