//! The rows of routes and grants, indexed by the services to which they attach and refer.

use std::collections::{BTreeMap, BTreeSet};

use leno_resources::ObjectKey;
use leno_types::ServiceName;
use leno_types::routes::RouteKind;

use super::AffectedNames;
use crate::rows::routes::{GrantRow, RouteRow};

/// The rows of routes and grants, and indexes that find routes by services.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteFacts {
    routes: BTreeMap<ObjectKey, RouteRow>,
    /// The routes that attach to each service.
    attached: BTreeMap<ServiceName, BTreeSet<ObjectKey>>,
    /// The routes that send requests to each service.
    referring: BTreeMap<ServiceName, BTreeSet<ObjectKey>>,
    /// The grants, by the namespace to whose services they permit references.
    grants: BTreeMap<String, BTreeMap<ObjectKey, GrantRow>>,
}

impl RouteFacts {
    /// The routes that attach to a service, ordered by name.
    pub(crate) fn of(&self, service: &ServiceName) -> impl Iterator<Item = &RouteRow> {
        let keys = self.attached.get(service).into_iter().flatten();
        keys.filter_map(|key| self.routes.get(key))
    }

    /// The services that a route attaches to.
    pub(crate) fn parents(&self, route: &ObjectKey) -> impl Iterator<Item = &ServiceName> {
        let parents = self.routes.get(route).into_iter().flat_map(|row| &row.parents);
        parents.map(|parent| &parent.service)
    }

    /// The names of a route's rules; `None` if no such route attaches to a service.
    pub(crate) fn rule_names(&self, route: &ObjectKey) -> Option<impl Iterator<Item = &str>> {
        let row = self.routes.get(route)?;
        Some(row.route.rules.iter().filter_map(|rule| rule.name.as_deref()))
    }

    /// Whether routes of a kind in a namespace may refer to a service of another namespace.
    pub(crate) fn is_granted(&self, kind: RouteKind, from: &str, to: &ServiceName) -> bool {
        let grants = self.grants.get(&*to.namespace).into_iter().flat_map(BTreeMap::values);
        grants.into_iter().any(|grant| grant.allows(kind, from, &to.name))
    }

    pub(super) fn put(&mut self, key: &ObjectKey, row: RouteRow, touched: &mut AffectedNames) {
        for parent in &row.parents {
            self.attached.entry(parent.service.clone()).or_default().insert(key.clone());
            touched.services.insert(parent.service.clone());
        }
        for target in row.targets() {
            self.referring.entry(target.clone()).or_default().insert(key.clone());
        }
        self.routes.insert(key.clone(), row);
    }

    pub(super) fn remove(&mut self, key: &ObjectKey, touched: &mut AffectedNames) {
        let Some(row) = self.routes.remove(key) else { return };
        for parent in &row.parents {
            forget(&mut self.attached, &parent.service, key);
            touched.services.insert(parent.service.clone());
        }
        for target in row.targets() {
            forget(&mut self.referring, target, key);
        }
    }

    /// Marks what a created, changed or deleted service affects, because references to it may have become valid or
    /// invalid.
    pub(super) fn touch_referring(&self, service: &ServiceName, touched: &mut AffectedNames) {
        let keys = self.referring.get(service).into_iter().flatten();
        for row in keys.filter_map(|key| self.routes.get(key)) {
            touched.services.extend(row.parents.iter().map(|parent| parent.service.clone()));
        }
    }

    pub(super) fn put_grant(
        &mut self,
        key: &ObjectKey,
        (namespace, row): (String, GrantRow),
        touched: &mut AffectedNames,
    ) {
        self.touch_namespace(&namespace, touched);
        self.grants.entry(namespace).or_default().insert(key.clone(), row);
    }

    pub(super) fn remove_grant(&mut self, key: &ObjectKey, touched: &mut AffectedNames) {
        let Some(grants) = self.grants.get_mut(&key.namespace) else { return };
        if grants.remove(key).is_none() {
            return;
        }
        if grants.is_empty() {
            self.grants.remove(&key.namespace);
        }
        self.touch_namespace(&key.namespace, touched);
    }

    /// Marks all services of a namespace, because references to them may have become valid or invalid.
    fn touch_namespace(&self, namespace: &str, touched: &mut AffectedNames) {
        let first = ServiceName { namespace: namespace.into(), name: "".into() };
        let services = self.referring.range(first..).map(|(name, _)| name);
        for service in services.take_while(|name| &*name.namespace == namespace) {
            self.touch_referring(service, touched);
        }
    }
}

fn forget(
    table: &mut BTreeMap<ServiceName, BTreeSet<ObjectKey>>,
    service: &ServiceName,
    key: &ObjectKey,
) {
    if let Some(keys) = table.get_mut(service) {
        keys.remove(key);
        if keys.is_empty() {
            table.remove(service);
        }
    }
}
