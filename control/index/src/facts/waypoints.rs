//! Determines which services clients reach through a waypoint, and which instances are waypoints.
//!
//! A waypoint `ns/name` is the Service of that name, with the instances behind it that have the label
//! [`leno_resources::WAYPOINT_LABEL`] and run as the service account of the same name.

use std::collections::{BTreeMap, BTreeSet};

use leno_resources::{WaypointUse, waypoint_instance, waypoint_use};
use leno_types::{InstanceName, Removal, ServiceName};

use super::{AffectedNames, Facts};
use crate::rows::{EndpointRow, InstanceRow};

/// The waypoints that services and namespaces use, each with the number of objects that name it.
#[derive(Clone, Debug, Default)]
pub(super) struct NamedWaypoints(BTreeMap<ServiceName, usize>);

impl NamedWaypoints {
    pub(super) fn note(&mut self, of: Option<&WaypointUse>, added: bool) {
        let Some(WaypointUse::Through(waypoint)) = of else { return };
        if added {
            *self.0.entry(waypoint.clone()).or_default() += 1;
        } else if let Some(count) = self.0.get_mut(waypoint) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(waypoint);
            }
        }
    }
}

impl Facts {
    /// The waypoint that a service sets, or else its namespace. A service without an address of its own has none,
    /// because clients connect to the addresses of its workloads. A waypoint's own service has none either.
    pub(crate) fn waypoint_use(&self, name: &ServiceName) -> Option<&WaypointUse> {
        let row = self.services.get(name)?;
        let of_namespace = || self.namespaces.get(&*name.namespace)?.waypoint.as_deref();
        let said = row.waypoint.as_deref().or_else(of_namespace)?;
        let is_direct = *said == WaypointUse::Direct
            || row.vips.is_empty()
            || self.removal >= Removal::Plaintext
            || self.leads_to_waypoint(name);
        (!is_direct).then_some(said)
    }

    /// Whether a service is a waypoint's own service, to which clients of the waypoint connect. All of its
    /// endpoints must be instances of that waypoint; one pod with a waypoint's labels is not enough.
    fn leads_to_waypoint(&self, name: &ServiceName) -> bool {
        let endpoints = self.slices(name).flat_map(|slice| &slice.endpoints);
        let mut accepted =
            endpoints.filter(|endpoint| self.accept(name, endpoint).is_ok()).peekable();
        let is_own = |endpoint: &EndpointRow| {
            let instance = endpoint.instance.as_ref();
            instance.and_then(|instance| self.waypoint_of(instance)).as_ref() == Some(name)
        };
        accepted.peek().is_some() && accepted.all(is_own)
    }

    /// Whether services of `namespace` may use a waypoint. A waypoint of another namespace permits that by a label
    /// on its instances.
    pub(crate) fn is_open(&self, waypoint: &ServiceName, namespace: &str) -> bool {
        *waypoint.namespace == *namespace
            || self.waypoint_endpoints(waypoint, namespace).next().is_some()
    }

    /// Whether a waypoint enforces the policies of an instance: the waypoint exists, and the instance is behind a
    /// service that uses it.
    pub(crate) fn enforces_for(&self, waypoint: &ServiceName, name: &InstanceName) -> bool {
        let uses = |service: &ServiceName| matches!(self.waypoint_use(service), Some(WaypointUse::Through(of)) if of == waypoint);
        self.services_of(name).any(uses)
            && self.waypoint_endpoints(waypoint, &name.namespace).next().is_some()
    }

    /// The waypoint to which an instance belongs.
    pub(crate) fn waypoint_of(&self, name: &InstanceName) -> Option<ServiceName> {
        let row = self.instance(name)?;
        self.waypoint_of_row(name, row).map(|(waypoint, _)| waypoint)
    }

    /// The waypoint to which an instance belongs, and whether services of other namespaces may use it.
    fn waypoint_of_row(
        &self,
        name: &InstanceName,
        row: &InstanceRow,
    ) -> Option<(ServiceName, bool)> {
        let instance = waypoint_instance(&row.labels, &name.namespace)?;
        let is_own = row.identity.service_account() == &*instance.waypoint.name
            && row.identity.namespace() == &*instance.waypoint.namespace;
        (is_own && !row.shares_node).then_some((instance.waypoint, instance.from_all))
    }

    /// The endpoints of a waypoint that serve a service of `namespace`, with their rows, ready or not.
    pub(crate) fn waypoint_endpoints<'a>(
        &'a self,
        waypoint: &'a ServiceName,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a InstanceName, &'a InstanceRow, &'a EndpointRow)> {
        let endpoints = self.slices(waypoint).flat_map(|slice| &slice.endpoints);
        let accepted = endpoints.filter(|endpoint| self.accept(waypoint, endpoint).is_ok());
        accepted.filter_map(move |endpoint| {
            let (name, row) = self.instances_entry(endpoint.instance.as_ref()?)?;
            let (of, from_all) = self.waypoint_of_row(name, row)?;
            let is_open = from_all || *namespace == *waypoint.namespace;
            (of == *waypoint && is_open).then_some((name, row, endpoint))
        })
    }

    fn instances_entry(&self, name: &InstanceName) -> Option<(&InstanceName, &InstanceRow)> {
        let (name, _) = self.instances.get_key_value(name)?;
        Some((name, self.instance(name)?))
    }

    /// The services that depend on any of the services `of`, because one of these is their waypoint, or because
    /// they have a route to one of these that is behind a waypoint. Its policies decide whether the route may lead
    /// there.
    pub(crate) fn waypoint_dependents(&self, of: &BTreeSet<ServiceName>) -> BTreeSet<ServiceName> {
        let mut touched = AffectedNames::default();
        if self.named_waypoints.0.is_empty() {
            return touched.services;
        }
        if of.iter().any(|one| self.is_named_waypoint(one)) {
            let uses = |name: &&ServiceName| {
                let said = self.waypoint_use(name);
                matches!(said, Some(WaypointUse::Through(waypoint)) if of.contains(waypoint))
            };
            touched.services.extend(self.services.keys().filter(uses).cloned());
        }
        for name in of.iter().filter(|name| self.waypoint_use(name).is_some()) {
            self.routes.touch_referring(name, &mut touched);
        }
        touched.services
    }

    fn is_named_waypoint(&self, name: &ServiceName) -> bool {
        self.named_waypoints.0.contains_key(name)
    }

    /// Marks the services of a namespace, or of all if `None`, whose waypoint enforces their policies.
    pub(super) fn touch_waypointed(&self, namespace: Option<&str>, touched: &mut AffectedNames) {
        if self.named_waypoints.0.is_empty() {
            return;
        }
        let is_in = |name: &&ServiceName| namespace.is_none_or(|of| *name.namespace == *of);
        let through = self.services.keys().filter(is_in);
        touched.services.extend(through.filter(|name| self.waypoint_use(name).is_some()).cloned());
    }

    /// The instances behind a service that permit only their waypoint to connect.
    pub(crate) fn behind_waypoint(
        &self,
        service: &ServiceName,
    ) -> impl Iterator<Item = &InstanceName> {
        let endpoints = self.slices(service).flat_map(|slice| &slice.endpoints);
        let instances = endpoints.filter_map(|endpoint| endpoint.instance.as_ref());
        instances.filter(|name| self.waypoint_before(name).is_some())
    }

    /// The waypoint that is the only client permitted to connect to an instance.
    pub(crate) fn waypoint_before(&self, name: &InstanceName) -> Option<WaypointUse> {
        let row = self.instance(name)?;
        let said = waypoint_use(Some(&row.labels), None, &name.namespace)?;
        let is_exempt = said == WaypointUse::Direct || self.waypoint_of(name).is_some();
        (!is_exempt).then_some(said)
    }
}
