//! The rows of all objects, and the references between them. A row has those fields of an object that the mesh uses
//! (see [`rows`]).

mod addresses;
mod authorization;
mod exemptions;
mod external;
mod policies;
mod routes;
mod waypoints;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_resources::{
    ExemptSetting, Namespace, NamespaceMode, Object, ObjectKey, WaypointUse, default_authorization,
    egress, mtls_mode, path_reading, removal, waypoint_use, wire_form,
};
use leno_types::authorization::{DefaultAuthorization, PathReading};
use leno_types::mesh::WireForm;
use leno_types::{Egress, Identity, InstanceName, MtlsMode, Removal, ServiceName, TrustDomain};

use crate::index::{MeshSettings, ObjectWriters};
use crate::rows::external::BackendTlsRow;
use crate::rows::policies::{RateLimitRow, TargetRow, TrafficRow};
use crate::rows::{self, InstanceRow, ServiceRow, SliceRow};
use crate::sharing::share_with_neighbours;
use crate::small_map::{SmallMap, one};

pub use addresses::{EndpointRefusal, RefusedEndpoint, RefusedEndpoints, is_reserved};

use addresses::Addresses;
use authorization::Authorizations;
use exemptions::Exemptions;
use external::Authorities;
use policies::AttachedPolicies;
use routes::RouteFacts;
use waypoints::NamedWaypoints;

#[derive(Clone, Debug)]
pub(crate) struct Facts {
    settings: MeshSettings,
    removal: Removal,
    namespaces: BTreeMap<String, NamespaceRow>,
    services: BTreeMap<ServiceName, ServiceRow>,
    slices: BTreeMap<ServiceName, BTreeMap<ObjectKey, SliceRow>>,
    /// The service to which each slice belongs.
    slice_services: BTreeMap<ObjectKey, ServiceName>,
    /// The slices that name each instance, grouped by service, with the addresses that they give it.
    referrers: BTreeMap<InstanceName, SmallMap<ServiceName, SmallMap<ObjectKey, Vec<IpAddr>>>>,
    /// The rows of each instance, one for each object that claims it. Of several objects, a pod takes precedence,
    /// then the oldest object, then the first by name.
    instances: BTreeMap<InstanceName, SmallMap<ObjectKey, InstanceRow>>,
    /// The instances of each object.
    owned: BTreeMap<ObjectKey, Vec<InstanceName>>,
    routes: RouteFacts,
    traffic: AttachedPolicies<TrafficRow>,
    rate_limits: AttachedPolicies<RateLimitRow>,
    authorizations: Authorizations,
    backend_tls: AttachedPolicies<BackendTlsRow>,
    authorities: Authorities,
    addresses: Addresses,
    exemptions: Exemptions,
    named_waypoints: NamedWaypoints,
}

/// The settings of a namespace for its workloads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NamespaceRow {
    mtls: Option<MtlsMode>,
    egress: Option<Egress>,
    authorization: Option<DefaultAuthorization>,
    paths: Option<PathReading>,
    mode: NamespaceMode,
    /// The protocol in which proxies connect to those of its pods that a ztunnel serves.
    wire: Option<WireForm>,
    /// The waypoint of its services that set none themselves.
    waypoint: Option<Box<WaypointUse>>,
}

impl NamespaceRow {
    fn new(metadata: &ObjectMeta) -> Self {
        let annotations = metadata.annotations.as_ref();
        Self {
            mtls: annotations.and_then(mtls_mode),
            egress: annotations.and_then(egress),
            authorization: annotations.and_then(default_authorization),
            paths: annotations.and_then(path_reading),
            mode: NamespaceMode::new(metadata.labels.as_ref(), annotations),
            wire: wire_form(metadata.labels.as_ref(), annotations),
            waypoint: metadata.name.as_deref().and_then(|name| {
                waypoint_use(metadata.labels.as_ref(), annotations, name).map(Box::new)
            }),
        }
    }
}

/// The names that one change can affect.
#[derive(Debug, Default)]
pub(crate) struct AffectedNames {
    /// Services whose own rows changed.
    pub(crate) services: BTreeSet<ServiceName>,
    /// Instances of which a row, or a setting of their namespace, changed. All services that name one are built again,
    /// too.
    pub(crate) instances: BTreeSet<InstanceName>,
    /// Further instances whose policy or ports may change, because a service, slice or policy that concerns them
    /// changed. Only they themselves are built again.
    pub(crate) served: BTreeSet<InstanceName>,
}

impl Facts {
    pub(crate) fn new(settings: MeshSettings) -> Self {
        Self {
            settings,
            removal: Removal::None,
            namespaces: BTreeMap::new(),
            services: BTreeMap::new(),
            slices: BTreeMap::new(),
            slice_services: BTreeMap::new(),
            referrers: BTreeMap::new(),
            instances: BTreeMap::new(),
            owned: BTreeMap::new(),
            routes: RouteFacts::default(),
            traffic: AttachedPolicies::default(),
            rate_limits: AttachedPolicies::default(),
            authorizations: Authorizations::default(),
            backend_tls: AttachedPolicies::default(),
            authorities: Authorities::default(),
            addresses: Addresses::default(),
            exemptions: Exemptions::default(),
            named_waypoints: NamedWaypoints::default(),
        }
    }

    /// Inserts an object, and replaces an earlier version of it.
    pub(crate) fn put(&mut self, object: &Object, touched: &mut AffectedNames) {
        let key = object.key();
        self.remove(&key, touched);
        let taken = match object {
            Object::Namespace(namespace) => {
                self.put_namespace(&key, namespace, touched);
                true
            }
            Object::Service(service) => match rows::service(service) {
                Some((name, row)) => {
                    self.named_waypoints.note(row.waypoint.as_deref(), true);
                    self.services.insert(name.clone(), row);
                    self.claim_service(&name, true, touched);
                    self.touch_service(&name, touched);
                    true
                }
                None => false,
            },
            Object::EndpointSlice(slice) => rows::slice(slice)
                .map(|(name, row)| self.put_slice(&key, name, row, touched))
                .is_some(),
            Object::Workload(workload) => {
                let rows = rows::instances(workload, &self.settings.trust_domain);
                rows.map(|rows| self.put_instances(&key, rows, touched)).is_some()
            }
            Object::HttpRoute(_)
            | Object::GrpcRoute(_)
            | Object::TlsRoute(_)
            | Object::TcpRoute(_)
            | Object::ReferenceGrant(_) => self.put_route(&key, object, touched),
            Object::TrafficPolicy(policy) => {
                let row = rows::policies::traffic(policy);
                self.touch_targets(&row.targets, touched);
                self.traffic.put(&key, row);
                true
            }
            Object::BackendTlsPolicy(policy) => {
                let row = rows::external::backend_tls(policy);
                row.map(|row| {
                    self.touch_targets(&row.targets, touched);
                    self.backend_tls.put(&key, row);
                })
                .is_some()
            }
            Object::ConfigMap(object) => {
                self.put_authorities(&key, object, touched);
                true
            }
            Object::RateLimitPolicy(policy) => {
                let row = rows::policies::rate_limits(policy);
                self.touch_limited(&row.targets, touched);
                self.rate_limits.put(&key, row);
                true
            }
            Object::AuthorizationPolicy(policy) => self.put_authorization(&key, policy, touched),
            Object::PodExemption(exemption) => {
                self.exemptions.put(&key, exemption);
                self.touch_namespace(&key.namespace, touched);
                true
            }
            // Discovery does not use these kinds of objects.
            Object::ServiceAccount(_)
            | Object::Secret(_)
            | Object::Proxy(_)
            | Object::ServiceLevelObjective(_) => true,
        };
        if !taken {
            tracing::debug!(object = %key, "left out: nothing in it for the mesh");
        }
    }

    fn put_namespace(
        &mut self,
        key: &ObjectKey,
        namespace: &Namespace,
        touched: &mut AffectedNames,
    ) {
        let annotations = namespace.metadata.annotations.as_ref();
        let row = NamespaceRow::new(&namespace.metadata);
        if row != NamespaceRow::default() {
            self.note_namespace_waypoint(&key.name, &row, true, touched);
            self.namespaces.insert(key.name.clone(), row);
            self.touch_namespace(&key.name, touched);
        }
        if self.is_own(&key.name) {
            self.set_removal(annotations.map(removal).unwrap_or_default(), touched);
        }
    }

    /// Inserts a route or a grant. Returns whether the mesh uses it.
    fn put_route(&mut self, key: &ObjectKey, object: &Object, touched: &mut AffectedNames) -> bool {
        let routes = &mut self.routes;
        let taken = match object {
            Object::HttpRoute(route) => {
                rows::routes::http(route).map(|row| routes.put(key, row, touched))
            }
            Object::GrpcRoute(route) => {
                rows::routes::grpc(route).map(|row| routes.put(key, row, touched))
            }
            Object::TlsRoute(route) => {
                rows::routes::tls(route).map(|row| routes.put(key, row, touched))
            }
            Object::TcpRoute(route) => {
                rows::routes::tcp(route).map(|row| routes.put(key, row, touched))
            }
            Object::ReferenceGrant(grant) => {
                rows::routes::grant(grant).map(|row| routes.put_grant(key, row, touched))
            }
            _ => None,
        };
        taken.is_some()
    }

    pub(crate) fn remove(&mut self, key: &ObjectKey, touched: &mut AffectedNames) {
        use leno_resources::Kind;
        match key.kind {
            Kind::Namespace => {
                if let Some(row) = self.namespaces.remove(&key.name) {
                    self.note_namespace_waypoint(&key.name, &row, false, touched);
                    self.touch_namespace(&key.name, touched);
                }
            }
            Kind::Service => {
                if let Ok(name) = ServiceName::new(&key.namespace, &key.name) {
                    self.claim_service(&name, false, touched);
                    if let Some(row) = self.services.remove(&name) {
                        self.named_waypoints.note(row.waypoint.as_deref(), false);
                        self.touch_service(&name, touched);
                    }
                }
            }
            Kind::EndpointSlice => self.remove_slice(key, touched),
            Kind::Workload => self.remove_instances(key, touched),
            Kind::HttpRoute | Kind::GrpcRoute | Kind::TlsRoute | Kind::TcpRoute => {
                self.routes.remove(key, touched);
            }
            Kind::ReferenceGrant => self.routes.remove_grant(key, touched),
            Kind::TrafficPolicy => {
                if let Some(row) = self.traffic.remove(key) {
                    self.touch_targets(&row.targets, touched);
                }
            }
            Kind::BackendTlsPolicy => {
                if let Some(row) = self.backend_tls.remove(key) {
                    self.touch_targets(&row.targets, touched);
                }
            }
            Kind::ConfigMap => self.remove_authorities(key, touched),
            Kind::RateLimitPolicy => {
                if let Some(row) = self.rate_limits.remove(key) {
                    self.touch_limited(&row.targets, touched);
                }
            }
            Kind::AuthorizationPolicy => self.remove_authorization(key, touched),
            Kind::PodExemption => {
                if self.exemptions.remove(key) {
                    self.touch_namespace(&key.namespace, touched);
                }
            }
            Kind::ServiceAccount | Kind::Secret | Kind::Proxy | Kind::ServiceLevelObjective => {}
        }
    }

    pub(crate) fn service(&self, name: &ServiceName) -> Option<&ServiceRow> {
        self.services.get(name)
    }

    pub(crate) fn routes(&self) -> &RouteFacts {
        &self.routes
    }

    pub(crate) fn traffic(&self) -> &AttachedPolicies<TrafficRow> {
        &self.traffic
    }

    pub(crate) fn rate_limits(&self) -> &AttachedPolicies<RateLimitRow> {
        &self.rate_limits
    }

    /// The object to which an instance belongs. An instance that no object claims belongs to the Workload whose
    /// instances have names of that form (`<workload>-<number>`).
    pub(crate) fn owner(&self, name: &InstanceName) -> Option<ObjectKey> {
        if let Some((key, _)) = self.winning_claim(name) {
            return Some(key.clone());
        }
        let (workload, number) = name.name.rsplit_once('-')?;
        number.parse::<u32>().ok()?;
        let kind = leno_resources::Kind::Workload;
        Some(ObjectKey { kind, namespace: name.namespace.to_string(), name: workload.to_owned() })
    }

    /// Whether a `Workload` exists, with instances or without.
    pub(crate) fn is_owner(&self, key: &ObjectKey) -> bool {
        self.owned.contains_key(key)
    }

    /// The instances of an object.
    pub(crate) fn instances_of(&self, key: &ObjectKey) -> &[InstanceName] {
        self.owned.get(key).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn backend_tls(&self) -> &AttachedPolicies<BackendTlsRow> {
        &self.backend_tls
    }

    /// The slices of a service, ordered by name.
    pub(crate) fn slices(&self, service: &ServiceName) -> impl Iterator<Item = &SliceRow> {
        self.slices.get(service).into_iter().flat_map(BTreeMap::values)
    }

    pub(crate) fn instance(&self, name: &InstanceName) -> Option<&InstanceRow> {
        self.winning_claim(name).map(|(_, row)| row)
    }

    /// The rows of all instances.
    pub(crate) fn all_instances(&self) -> impl Iterator<Item = (&InstanceName, &InstanceRow)> {
        self.instances.keys().filter_map(|name| Some((name, self.instance(name)?)))
    }

    /// Of the objects that claim an instance, the one that takes precedence, and its row.
    fn winning_claim(&self, name: &InstanceName) -> Option<(&ObjectKey, &InstanceRow)> {
        self.instances.get(name)?.iter().min_by_key(|(_, row)| &row.origin)
    }

    /// The services whose slices name an instance, ordered by name, whether these endpoints are accepted or not.
    pub(crate) fn services_naming(
        &self,
        name: &InstanceName,
    ) -> impl Iterator<Item = &ServiceName> {
        self.referrers.get(name).into_iter().flat_map(SmallMap::keys)
    }

    /// The services with an accepted endpoint on an instance, ready or not, ordered by name.
    pub(crate) fn services_of(&self, name: &InstanceName) -> impl Iterator<Item = &ServiceName> {
        self.services_naming(name).filter(|service| self.slices_of(name, service).next().is_some())
    }

    /// The slices of a service with an accepted endpoint on an instance, ordered by name.
    pub(crate) fn slices_of(
        &self,
        name: &InstanceName,
        service: &ServiceName,
    ) -> impl Iterator<Item = &SliceRow> {
        let referring = self.referrers.get(name).and_then(|services| services.get(service));
        let (row, slices) = (self.instance(name), self.slices.get(service));
        let foreign = self.checks_claims() && name.namespace != service.namespace;
        let referring = referring.filter(|_| !foreign);
        let name = name.clone();
        let rightly = move |(_, ips): &(&ObjectKey, &Vec<IpAddr>)| {
            // If the instance is not in the index, its addresses cannot be compared.
            row.is_none_or(|row| ips.iter().any(|ip| self.holds(&name, row, *ip)))
        };
        let referring = referring.into_iter().flatten().filter(rightly);
        referring.filter_map(move |(key, _)| slices?.get(key))
    }

    /// The mTLS mode of an instance, which decides what its proxy does with plaintext. A tenant's pod may be
    /// stricter than its namespace or, if the namespace sets nothing, than the mesh. It may only be looser if a
    /// `PodExemption` of its namespace permits that.
    pub(crate) fn mode(&self, name: &InstanceName, row: &InstanceRow) -> MtlsMode {
        let of_namespace = self.namespaces.get(&*name.namespace).and_then(|row| row.mtls);
        let floor = of_namespace.unwrap_or(self.settings.default_mtls);
        let mode = match row.mtls {
            None => floor,
            Some(own) if self.has_floor(name, row, ExemptSetting::Mtls) => own.stricter(floor),
            Some(own) => own,
        };
        if mode == MtlsMode::Strict && self.removal >= Removal::Permissive {
            return MtlsMode::Permissive;
        }
        mode
    }

    /// How far the removal of the mesh has gone.
    pub(crate) fn removal(&self) -> Removal {
        self.removal
    }

    /// Whether an instance may connect to destinations outside of the mesh that it has no object for. As with
    /// [`mode`](Self::mode), a tenant's pod cannot loosen the setting.
    pub(crate) fn egress(&self, name: &InstanceName, row: &InstanceRow) -> Egress {
        let of_namespace = self.namespaces.get(&*name.namespace).and_then(|row| row.egress);
        let floor = of_namespace.unwrap_or(self.settings.default_egress);
        match row.egress {
            None => floor,
            Some(_)
                if floor == Egress::Deny && self.has_floor(name, row, ExemptSetting::Egress) =>
            {
                floor
            }
            Some(own) => own,
        }
    }

    /// Which clients may connect to those workloads of a namespace that no Allow policy selects.
    pub(crate) fn default_authorization(&self, namespace: &str) -> DefaultAuthorization {
        let row = self.namespaces.get(namespace);
        row.and_then(|row| row.authorization).unwrap_or_default()
    }

    /// How the application of an instance interprets paths.
    pub(crate) fn path_reading(&self, name: &InstanceName) -> PathReading {
        let own = self.instance(name).and_then(|row| row.paths);
        own.unwrap_or_else(|| self.namespace_path_reading(&name.namespace))
    }

    /// How the applications of a namespace interpret paths, if the workloads do not set it themselves.
    pub(crate) fn namespace_path_reading(&self, namespace: &str) -> PathReading {
        self.namespaces.get(namespace).and_then(|row| row.paths).unwrap_or_default()
    }

    /// The trust domain of all identities.
    pub(crate) fn trust_domain(&self) -> &TrustDomain {
        &self.settings.trust_domain
    }

    /// Whether an instance's own setting can only be stricter than that of its namespace or the mesh.
    fn has_floor(&self, name: &InstanceName, row: &InstanceRow, setting: ExemptSetting) -> bool {
        let exempt = || self.exemptions.exempt(&name.namespace, setting, &row.labels);
        self.settings.writers == ObjectWriters::Tenants && !exempt()
    }

    /// Whether an instance has a proxy, either a sidecar or a node proxy that serves it.
    pub(crate) fn is_meshed(&self, name: &InstanceName, row: &InstanceRow) -> bool {
        let is_served = || row.served || !self.settings.agents_report;
        row.meshed || self.is_in_node_mode(name, row) && is_served()
    }

    /// From now on, a pod in node mode counts as served only if an agent reports it. Returns the pods for which that differs.
    pub(crate) fn follow_reports(&mut self) -> AffectedNames {
        self.settings.agents_report = true;
        let awaits =
            |(name, row): &(&InstanceName, &InstanceRow)| self.awaits_node_proxy(name, row);
        let instances = self.all_instances().filter(awaits).map(|(name, _)| name.clone()).collect();
        AffectedNames { instances, ..AffectedNames::default() }
    }

    /// Whether a pod without a sidecar is in node mode, by its own settings or those of its namespace.
    fn is_in_node_mode(&self, name: &InstanceName, row: &InstanceRow) -> bool {
        let of_namespace = || self.namespaces.get(&*name.namespace).map(|row| row.mode);
        row.mode.is_some_and(|mode| mode.is_node(of_namespace().unwrap_or_default()))
    }

    /// Whether an instance is in node mode and no agent reports yet that a node proxy serves it.
    pub(crate) fn awaits_node_proxy(&self, name: &InstanceName, row: &InstanceRow) -> bool {
        !self.is_meshed(name, row) && self.is_in_node_mode(name, row)
    }

    /// The identity that a client expects of an instance over mTLS; `None` if clients use plaintext.
    pub(crate) fn identity(&self, name: &InstanceName) -> Option<&Identity> {
        let row = self.instance(name)?;
        let stays = self.removal < Removal::Plaintext;
        let mode = self.mode(name, row);
        // No client sends plaintext to a pod that is to refuse it, whatever an agent reports.
        let is_due = || mode == MtlsMode::Strict && self.is_in_node_mode(name, row);
        let has_proxy = self.is_meshed(name, row) || self.speaks_hbone(name, row) || is_due();
        let speaks = has_proxy && stays && mode != MtlsMode::Disabled;
        speaks.then_some(&row.identity)
    }

    /// The protocol in which other proxies connect to the proxy of an instance.
    pub(crate) fn wire(&self, name: &InstanceName) -> WireForm {
        match self.instance(name).is_some_and(|row| self.speaks_hbone(name, row)) {
            true => WireForm::Hbone,
            false => WireForm::Leno,
        }
    }

    /// Whether a proxy of another mesh accepts HBONE for an instance. The setting of a namespace applies only to
    /// those of its pods that a ztunnel serves.
    fn speaks_hbone(&self, name: &InstanceName, row: &InstanceRow) -> bool {
        let of_namespace = || self.namespaces.get(&*name.namespace).and_then(|row| row.wire);
        let wire = row.wire.or_else(|| of_namespace().filter(|_| row.is_redirected));
        wire == Some(WireForm::Hbone) && !row.shares_node && !self.is_meshed(name, row)
    }

    /// Whether the proxy of an instance is configured to refuse HBONE.
    pub(crate) fn refuses_hbone(&self, name: &InstanceName) -> bool {
        let of_namespace = || self.namespaces.get(&*name.namespace).and_then(|row| row.wire);
        let own = self.instance(name).and_then(|row| row.wire);
        own.or_else(of_namespace) == Some(WireForm::Leno)
    }

    fn put_slice(
        &mut self,
        key: &ObjectKey,
        service: ServiceName,
        mut row: SliceRow,
        touched: &mut AffectedNames,
    ) {
        for instance in row.endpoints.iter_mut().filter_map(|one| one.instance.as_mut()) {
            if let Some((known, _)) = self.instances.get_key_value(instance) {
                instance.clone_from(known);
            }
        }
        for endpoint in &row.endpoints {
            let Some(instance) = endpoint.instance.as_ref() else { continue };
            let services = self.referrers.entry(instance.clone()).or_insert_with(one);
            let slices = services.entry(service.clone()).or_insert_with(one);
            let addresses = slices.entry(key.clone()).or_insert_with(|| Vec::with_capacity(1));
            addresses.push(endpoint.ip);
            touched.served.insert(instance.clone());
        }
        self.note_bare(&service, &row, true);
        self.slices.entry(service.clone()).or_default().insert(key.clone(), row);
        self.slice_services.insert(key.clone(), service.clone());
        touched.services.insert(service);
    }

    fn remove_slice(&mut self, key: &ObjectKey, touched: &mut AffectedNames) {
        let Some(service) = self.slice_services.remove(key) else {
            return;
        };
        let slices = self.slices.get_mut(&service);
        let row = slices.and_then(|slices| slices.remove(key));
        if self.slices.get(&service).is_some_and(BTreeMap::is_empty) {
            self.slices.remove(&service);
        }
        if let Some(row) = &row {
            self.note_bare(&service, row, false);
        }
        let endpoints = row.into_iter().flat_map(|row| row.endpoints);
        for instance in endpoints.filter_map(|endpoint| endpoint.instance) {
            self.forget_referrer(&instance, &service, key);
            touched.served.insert(instance);
        }
        touched.services.insert(service);
    }

    fn forget_referrer(&mut self, instance: &InstanceName, service: &ServiceName, key: &ObjectKey) {
        let Some(services) = self.referrers.get_mut(instance) else {
            return;
        };
        if let Some(keys) = services.get_mut(service) {
            keys.remove(key);
            if keys.is_empty() {
                services.remove(service);
            }
        }
        if services.is_empty() {
            self.referrers.remove(instance);
        }
    }

    fn put_instances(
        &mut self,
        key: &ObjectKey,
        rows: Vec<(InstanceName, InstanceRow)>,
        touched: &mut AffectedNames,
    ) {
        let mut names = Vec::with_capacity(rows.len());
        for (mut name, mut row) in rows {
            let own = (&mut name, &mut row);
            share_with_neighbours(&self.instances, own, |rows| rows.first().map(|(_, row)| row));
            if let Some((known, _)) = self.referrers.get_key_value(&name) {
                name.clone_from(known);
            }
            names.push(name.clone());
            touched.instances.insert(name.clone());
            self.claim_instance((&name, &row), true, touched);
            self.instances.entry(name).or_insert_with(one).insert(key.clone(), row);
        }
        self.owned.insert(key.clone(), names);
    }

    fn remove_instances(&mut self, key: &ObjectKey, touched: &mut AffectedNames) {
        for name in self.owned.remove(key).unwrap_or_default() {
            let claims = self.instances.get_mut(&name);
            let row = claims.and_then(|claims| claims.remove(key));
            if self.instances.get(&name).is_some_and(SmallMap::is_empty) {
                self.instances.remove(&name);
            }
            if let Some(row) = row {
                self.claim_instance((&name, &row), false, touched);
            }
            touched.instances.insert(name);
        }
    }

    /// All services that have a row, a slice or refused endpoints, and all instances.
    pub(crate) fn names(&self) -> (BTreeSet<ServiceName>, BTreeSet<InstanceName>) {
        let services = self.services.keys().chain(self.slices.keys()).chain(self.refused().keys());
        (services.cloned().collect(), self.instances.keys().cloned().collect())
    }

    fn touch_service(&self, name: &ServiceName, touched: &mut AffectedNames) {
        let endpoints = self.slices(name).flat_map(|slice| &slice.endpoints);
        touched.served.extend(endpoints.filter_map(|endpoint| endpoint.instance.clone()));
        touched.services.insert(name.clone());
        self.routes.touch_referring(name, touched);
    }

    /// Marks what a change of a client policy affects: the services that it targets, and the services of the
    /// routes that it targets.
    fn touch_targets(&self, targets: &[TargetRow], touched: &mut AffectedNames) {
        for target in targets {
            match target {
                TargetRow::Service(name, _) => drop(touched.services.insert(name.clone())),
                TargetRow::Object(route, _) => {
                    touched.services.extend(self.routes.parents(route).cloned());
                }
            }
        }
    }

    /// Marks what a change of a rate limit affects: the workloads that it targets, and those behind the services
    /// that it targets.
    fn touch_limited(&self, targets: &[TargetRow], touched: &mut AffectedNames) {
        for target in targets {
            match target {
                TargetRow::Service(name, _) => {
                    let endpoints = self.slices(name).flat_map(|slice| &slice.endpoints);
                    touched.served.extend(endpoints.filter_map(|one| one.instance.clone()));
                    if self.waypoint_use(name).is_some() {
                        touched.services.insert(name.clone());
                    }
                }
                TargetRow::Object(workload, _) => {
                    touched.served.extend(self.owned.get(workload).into_iter().flatten().cloned());
                }
            }
        }
    }

    fn is_own(&self, namespace: &str) -> bool {
        self.settings.namespace.as_deref() == Some(namespace)
    }

    fn set_removal(&mut self, removal: Removal, touched: &mut AffectedNames) {
        if self.removal != removal {
            self.removal = removal;
            touched.services.extend(self.services.keys().cloned());
            touched.instances.extend(self.instances.keys().cloned());
        }
    }

    /// Records that a namespace sets a waypoint for its services, or no longer sets one.
    fn note_namespace_waypoint(
        &mut self,
        namespace: &str,
        row: &NamespaceRow,
        added: bool,
        touched: &mut AffectedNames,
    ) {
        let Some(said) = row.waypoint.as_deref() else { return };
        self.named_waypoints.note(Some(said), added);
        let services = self.services.keys().filter(|name| *name.namespace == *namespace);
        for name in services {
            self.routes.touch_referring(name, touched);
            touched.services.insert(name.clone());
        }
    }

    fn touch_namespace(&self, namespace: &str, touched: &mut AffectedNames) {
        self.touch_waypointed(Some(namespace), touched);
        touched.instances.extend(self.instances_in(namespace).cloned());
    }

    /// The instances of a namespace, ordered by name.
    pub(crate) fn instances_in(&self, namespace: &str) -> impl Iterator<Item = &InstanceName> {
        let first = InstanceName { namespace: namespace.into(), name: "".into() };
        let names = self.instances.range(first.clone()..).map(|(name, _)| name);
        names.take_while(move |name| name.namespace == first.namespace)
    }
}
