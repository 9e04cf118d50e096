//! Resolves a host name to a service or workload, as the mesh's DNS does.

use std::net::IpAddr;
use std::sync::Arc;

use leno_types::mesh::{Resolution, Service, Subject, Workload};
use leno_types::{InstanceName, ServiceName, nearest};

use crate::mesh::MeshModel;

/// The domain of all names in the mesh.
const DOMAIN: &str = "svc.cluster.local";

/// Most aliases that are followed in a row; other resolvers have a similar bound.
const MAX_ALIASES: usize = 8;

/// What a host name means.
pub(super) enum HostMeaning {
    Service(Arc<Service>),
    Workload(Arc<Workload>),
    Unknown {
        /// The name of a service that is similar.
        meant: Option<String>,
    },
}

impl MeshModel {
    /// Resolves `host` for a client in the namespace `client`. It may be an address, or a name that the client's
    /// resolver completes with its search domains.
    pub(super) fn host(&self, host: &str, client: &str) -> HostMeaning {
        if let Ok(ip) = host.parse::<IpAddr>() {
            return match self.index.resolve(&Subject::Address(ip.to_canonical()), client) {
                Resolution::Service(service) => HostMeaning::Service(service),
                Resolution::Workload(workload) => HostMeaning::Workload(workload),
                Resolution::Pending | Resolution::Unknown => HostMeaning::Unknown { meant: None },
            };
        }
        let host = host.trim_end_matches('.');
        let searched = searched(host, client);
        let found = searched.iter().find_map(|name| self.full_name(name, client));
        found.unwrap_or_else(|| HostMeaning::Unknown { meant: self.like(host, client) })
    }

    /// As [`host`](Self::host), but also considers services that represent a name outside of the mesh: a service
    /// of the client's namespace with VIPs, and with this name as its endpoint. The mesh's DNS answers with those
    /// VIPs.
    pub(super) fn host_or_outside(
        &self,
        host: &str,
        client: &str,
        notes: &mut Vec<String>,
    ) -> HostMeaning {
        let found = self.host(host, client);
        if !matches!(found, HostMeaning::Unknown { .. }) {
            return found;
        }
        let of_client = self.services().filter(|name| *name.namespace == *client);
        let with_vips = of_client.filter_map(|name| self.index.service(&name));
        let named =
            with_vips.filter(|service| !service.vips.is_empty() && stands_for(service, host));
        // If several services represent the name, the first by name is used.
        let Some(service) = named.min_by(|a, b| a.name.cmp(&b.name)) else { return found };
        notes.push(format!("the name {host} belongs to the Service {}", service.name));
        HostMeaning::Service(service)
    }

    /// The name at the end of a chain of `ExternalName` services without ports, which are only aliases in DNS;
    /// adds a note for each. `None` if the aliases form a cycle.
    pub(super) fn real_name(
        &self,
        host: &str,
        client: &str,
        notes: &mut Vec<String>,
    ) -> Option<String> {
        let mut host = host.to_owned();
        for _ in 0..MAX_ALIASES {
            let Some((alias, next)) = self.alias(&host, client) else { return Some(host) };
            notes.push(format!("the Service {alias} is another name for {next}"));
            host = next;
        }
        None
    }

    /// The service with this name and its target, if it is an alias without ports.
    fn alias(&self, host: &str, client: &str) -> Option<(ServiceName, String)> {
        let names = searched(host.trim_end_matches('.'), client);
        let named = names.iter().find_map(|name| {
            let (service, namespace) =
                name.strip_suffix(DOMAIN)?.strip_suffix('.')?.split_once('.')?;
            self.objects.iter().find_map(|object| match object {
                leno_resources::Object::Service(object) => {
                    let metadata = &object.metadata;
                    let is_it = metadata.name.as_deref() == Some(service)
                        && metadata.namespace.as_deref() == Some(namespace);
                    is_it.then_some(object)
                }
                _ => None,
            })
        })?;
        let spec = named.spec.as_ref()?;
        let has_ports = spec.ports.as_ref().is_some_and(|ports| !ports.is_empty());
        let to = spec
            .external_name
            .as_deref()
            .filter(|_| spec.type_.as_deref() == Some("ExternalName") && !has_ports)?;
        let metadata = &named.metadata;
        let name =
            ServiceName::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?).ok()?;
        Some((name, to.trim_end_matches('.').to_ascii_lowercase()))
    }

    fn full_name(&self, name: &str, client: &str) -> Option<HostMeaning> {
        let labels: Vec<&str> =
            name.strip_suffix(DOMAIN)?.trim_end_matches('.').split('.').collect();
        match labels[..] {
            [service, namespace] => {
                let name = ServiceName::new(namespace, service).ok()?;
                match self.index.resolve(&Subject::Service(name), client) {
                    Resolution::Service(service) => Some(HostMeaning::Service(service)),
                    _ => None,
                }
            }
            [instance, service, namespace] => {
                let service = ServiceName::new(namespace, service).ok()?;
                let instance = InstanceName::new(namespace, instance).ok()?;
                let service = self.index.service(&service)?;
                let mut endpoints = service.ports.iter().flat_map(|port| port.endpoints.iter());
                let behind = endpoints.any(|one| one.workload.as_ref() == Some(&instance));
                let workload = behind.then(|| self.index.workload(&instance)).flatten()?;
                Some(HostMeaning::Workload(workload))
            }
            _ => None,
        }
    }

    /// A service to suggest: one with a name similar to `host`, or else one of the same name in another namespace.
    /// Services of the client's namespace are suggested by their short names, others with their namespace.
    fn like(&self, host: &str, client: &str) -> Option<String> {
        let short = host.strip_suffix(DOMAIN).or_else(|| host.strip_suffix("svc"));
        let host = short.and_then(|short| short.strip_suffix('.')).unwrap_or(host);
        let known: Vec<String> = self
            .services()
            .flat_map(|name| {
                let near = (*name.namespace == *client).then(|| name.name.to_string());
                let full = format!("{}.{}", name.name, name.namespace);
                near.into_iter().chain([full])
            })
            .collect();
        let near = nearest(host, known.iter().map(String::as_str));
        let is_elsewhere =
            |one: &&str| one.split_once('.').is_some_and(|(service, _)| service == host);
        let elsewhere = || known.iter().map(String::as_str).filter(is_elsewhere).min();
        near.or_else(elsewhere).map(str::to_owned)
    }

    fn services(&self) -> impl Iterator<Item = ServiceName> {
        self.objects.iter().filter_map(|object| match object {
            leno_resources::Object::Service(service) => {
                let metadata = &service.metadata;
                ServiceName::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?).ok()
            }
            _ => None,
        })
    }
}

/// Whether a service represents `host`, a name outside of the mesh, because it is the name of its endpoints.
fn stands_for(service: &Service, host: &str) -> bool {
    let host = host.trim_end_matches('.');
    let external = service.ports.iter().filter_map(|port| port.external.as_ref());
    external.flat_map(|one| &one.names).any(|name| name.host.eq_ignore_ascii_case(host))
}

/// The name completed with each of the search domains of a client's resolver.
fn searched(host: &str, client: &str) -> [String; 4] {
    [
        format!("{host}.{client}.{DOMAIN}"),
        format!("{host}.{DOMAIN}"),
        format!("{host}.cluster.local"),
        host.to_owned(),
    ]
}
