//! What goes into the index, and what it says became different.

use std::collections::BTreeSet;
use std::net::IpAddr;

use leno_resources::{Object, ObjectKey};
use leno_types::{InstanceName, ServiceName};

/// One change of one object.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The object is there, new or different.
    Upsert(Object),
    /// The object is gone.
    Delete(ObjectKey),
}

/// What is different after a change: appeared, changed or gone. Looking the name up tells which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Services with another value.
    pub services: BTreeSet<ServiceName>,
    /// Workloads with another value.
    pub workloads: BTreeSet<InstanceName>,
    /// Workloads whose server policy is another.
    pub policies: BTreeSet<InstanceName>,
    /// IP addresses with another answer, be it the same service or workload with another value.
    pub addresses: BTreeSet<IpAddr>,
}

impl Changed {
    /// Whether nothing is different.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self { services, workloads, policies, addresses } = self;
        services.is_empty() && workloads.is_empty() && policies.is_empty() && addresses.is_empty()
    }
}
