//! The input of the index, and its report of what has changed.

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

/// The names whose value appeared, changed or disappeared. A caller looks each name up to get its present value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedNames {
    /// Services with a new value.
    pub services: BTreeSet<ServiceName>,
    /// Workloads with a new value.
    pub workloads: BTreeSet<InstanceName>,
    /// Workloads with a new server policy.
    pub policies: BTreeSet<InstanceName>,
    /// IP addresses for which lookups now have another answer. The service or workload may be the same one with a
    /// new value.
    pub addresses: BTreeSet<IpAddr>,
}

impl ChangedNames {
    /// Adds the names that a later change has affected.
    pub(crate) fn extend(&mut self, later: Self) {
        let Self { services, workloads, policies, addresses } = later;
        self.services.extend(services);
        self.workloads.extend(workloads);
        self.policies.extend(policies);
        self.addresses.extend(addresses);
    }

    /// Whether nothing has changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { services, workloads, policies, addresses } = self;
        services.is_empty() && workloads.is_empty() && policies.is_empty() && addresses.is_empty()
    }
}
