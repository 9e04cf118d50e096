//! The rows of policies, indexed by the objects to which they are attached.

use std::collections::{BTreeMap, BTreeSet};

use leno_resources::ObjectKey;
use leno_types::ServiceName;

use crate::rows::external::BackendTlsRow;
use crate::rows::policies::{RateLimitRow, TargetRow, TrafficRow};

/// The rows of one kind of policy, and an index that finds them by their targets.
#[derive(Clone, Debug)]
pub(crate) struct AttachedPolicies<R> {
    rows: BTreeMap<ObjectKey, R>,
    services: BTreeMap<ServiceName, BTreeSet<ObjectKey>>,
    /// The policies that are attached to each route or workload.
    objects: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
}

/// A row of a policy that is attached to objects.
pub(crate) trait PolicyRow {
    /// The targets to which the policy is attached.
    fn targets(&self) -> &[TargetRow];
}

impl PolicyRow for TrafficRow {
    fn targets(&self) -> &[TargetRow] {
        &self.targets
    }
}

impl PolicyRow for RateLimitRow {
    fn targets(&self) -> &[TargetRow] {
        &self.targets
    }
}

impl PolicyRow for BackendTlsRow {
    fn targets(&self) -> &[TargetRow] {
        &self.targets
    }
}

impl<R> Default for AttachedPolicies<R> {
    fn default() -> Self {
        Self { rows: BTreeMap::new(), services: BTreeMap::new(), objects: BTreeMap::new() }
    }
}

impl<R: PolicyRow> AttachedPolicies<R> {
    /// The policies that are attached to a service or to ports of it, ordered by name.
    pub(crate) fn of_service(&self, name: &ServiceName) -> impl Iterator<Item = &R> {
        let keys = self.services.get(name).into_iter().flatten();
        keys.filter_map(|key| self.rows.get(key))
    }

    /// The policies that are attached to a route or workload, ordered by name.
    pub(crate) fn of_object(&self, object: &ObjectKey) -> impl Iterator<Item = &R> {
        let keys = self.objects.get(object).into_iter().flatten();
        keys.filter_map(|key| self.rows.get(key))
    }

    /// The policy with this key.
    pub(crate) fn get(&self, key: &ObjectKey) -> Option<&R> {
        self.rows.get(key)
    }

    /// All policies, ordered by name.
    pub(super) fn rows(&self) -> impl Iterator<Item = &R> {
        self.rows.values()
    }

    pub(super) fn put(&mut self, key: &ObjectKey, row: R) {
        for target in row.targets() {
            match target {
                TargetRow::Service(name, _) => {
                    self.services.entry(name.clone()).or_default().insert(key.clone());
                }
                TargetRow::Object(object, _) => {
                    self.objects.entry(object.clone()).or_default().insert(key.clone());
                }
            }
        }
        self.rows.insert(key.clone(), row);
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<R> {
        let row = self.rows.remove(key)?;
        for target in row.targets() {
            match target {
                TargetRow::Service(name, _) => forget(&mut self.services, name, key),
                TargetRow::Object(object, _) => forget(&mut self.objects, object, key),
            }
        }
        Some(row)
    }
}

fn forget<K: Ord>(table: &mut BTreeMap<K, BTreeSet<ObjectKey>>, of: &K, key: &ObjectKey) {
    if let Some(keys) = table.get_mut(of) {
        keys.remove(key);
        if keys.is_empty() {
            table.remove(of);
        }
    }
}
