//! The index's input, and its report of what became different.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_resources::{Object, ObjectKey};
use leno_types::{InstanceName, ServiceName};

/// One change of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectChange {
    /// The object was created or modified.
    Upsert(Object),
    /// The object was deleted.
    Delete(ObjectKey),
}

/// Names whose value appeared, changed or disappeared. To find out which, look the name up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedNames {
    /// Services with a new value.
    pub services: BTreeSet<ServiceName>,
    /// Workloads with a new value.
    pub workloads: BTreeSet<InstanceName>,
    /// Workloads with a new server policy.
    pub policies: BTreeSet<InstanceName>,
    /// IP addresses with a new answer; the service or workload may be the same one with a new
    /// value.
    pub addresses: BTreeSet<IpAddr>,
}

impl ChangedNames {
    /// Adds the names of a later change.
    pub(crate) fn extend(&mut self, later: Self) {
        let Self { services, workloads, policies, addresses } = later;
        self.services.extend(services);
        self.workloads.extend(workloads);
        self.policies.extend(policies);
        self.addresses.extend(addresses);
    }

    /// Whether nothing is different.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { services, workloads, policies, addresses } = self;
        services.is_empty() && workloads.is_empty() && policies.is_empty() && addresses.is_empty()
    }
}
