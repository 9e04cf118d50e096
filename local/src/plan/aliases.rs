//! Resolves aliases: services of type `ExternalName` whose external name is that of another Service of the mesh.
//!
//! An alias without ports exists only in DNS, where it leads to the address of the target, the Service that it
//! names. An alias with ports has its own address, and the target's instances as its endpoints, with their proxies
//! and identities.

use leno_resources::{Object, ObjectKey};
use leno_types::ServiceName;

use super::Draft;
use super::services::{PlannedEndpoint, PlannedService};
use crate::dns::DOMAIN;

impl Draft<'_> {
    /// Gives endpoints to aliases that have ports, and rejects aliases that lead back to themselves.
    pub(super) fn resolve_aliases(&mut self) {
        let names: Vec<ServiceName> = self.plan.services.keys().cloned().collect();
        let mut chains = Vec::new();
        for name in names {
            match self.chain(&name) {
                Ok(chain) => chains.push(chain),
                Err(cycle) => {
                    let text: Vec<String> = cycle.iter().map(ToString::to_string).collect();
                    let reason =
                        format!("the names refer to each other in a circle: {}", text.join(" -> "));
                    self.service_problem(&name, "spec.externalName", reason);
                }
            }
        }
        // The shortest chains first, because an alias of an alias needs the endpoints of the latter.
        chains.sort_by_key(Vec::len);
        for chain in chains {
            let has_ports = |name: &&ServiceName| !self.plan.services[*name].ports().is_empty();
            if let Some(other) = chain[1..].iter().find(has_ports) {
                self.stand_for(&chain[0], other);
            }
        }
    }

    /// The chain of aliases from the service `name` to the last service in the mesh. The error is a chain that
    /// leads back to itself; its last service occurs twice.
    fn chain(&self, name: &ServiceName) -> Result<Vec<ServiceName>, Vec<ServiceName>> {
        let mut chain = vec![name.clone()];
        while let Some(next) = chain.last().and_then(|last| self.target(last)) {
            let seen = chain.contains(&next);
            chain.push(next);
            if seen {
                return Err(chain);
            }
        }
        Ok(chain)
    }

    /// The service of the mesh that a service is an alias of.
    fn target(&self, name: &ServiceName) -> Option<ServiceName> {
        let host = self.plan.services.get(name)?.external_name()?.to_ascii_lowercase();
        let host = host.strip_suffix('.').unwrap_or(&host);
        let local = host.strip_suffix(&format!(".svc.{DOMAIN}"))?;
        let (service, namespace) = local.split_once('.')?;
        let target = ServiceName::new(namespace, service).ok()?;
        self.plan.services.contains_key(&target).then_some(target)
    }

    /// Gives a service with ports the endpoints of another service.
    fn stand_for(&mut self, name: &ServiceName, other: &ServiceName) {
        let target = self.plan.services[other].clone();
        let alias = &self.plan.services[name];
        if alias.ports().is_empty() || target.endpoints.is_empty() {
            return;
        }
        let mut ports = alias.ports().to_vec();
        // For each port of the alias, the index of the target's port.
        let mut places = Vec::new();
        for (index, port) in ports.iter_mut().enumerate() {
            let wanted = port_there(port);
            let Some(place) = target.ports().iter().position(|one| one.port == wanted) else {
                let has: Vec<String> =
                    target.ports().iter().map(|port| port.port.to_string()).collect();
                let reason = format!("{other} has no port {wanted}: use one of {}", has.join(", "));
                return self.service_problem(name, &format!("spec.ports[{index}]"), reason);
            };
            if port.app_protocol.is_none() {
                port.app_protocol.clone_from(&target.ports()[place].app_protocol);
            }
            places.push(place);
        }
        let endpoint = |endpoint: &PlannedEndpoint| PlannedEndpoint {
            instance: endpoint.instance.clone(),
            ports: places.iter().map(|place| endpoint.ports[*place]).collect(),
        };
        let endpoints = target.endpoints.iter().map(endpoint).collect();
        if let Some(PlannedService { object, endpoints: own, .. }) =
            self.plan.services.get_mut(name)
            && let Some(spec) = &mut object.spec
        {
            (spec.type_, spec.external_name) = (None, None);
            spec.ports = Some(ports);
            *own = endpoints;
        }
    }

    /// Reports a problem with a field of the document that declares a service.
    fn service_problem(&mut self, name: &ServiceName, path: &str, reason: String) {
        let documents = self.documents;
        let is_it = |key: &ObjectKey| key.namespace == *name.namespace && key.name == *name.name;
        let located = documents.objects.iter().find(|located| {
            matches!(located.value, Object::Service(_)) && is_it(&located.value.key())
        });
        if let Some(located) = located {
            self.problem(located, path, reason);
        }
    }
}

/// The target's port to which a port of an alias leads.
fn port_there(port: &k8s_openapi::api::core::v1::ServicePort) -> i32 {
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    match &port.target_port {
        Some(IntOrString::Int(number)) if *number != 0 => *number,
        _ => port.port,
    }
}
