//! Derives the DNS names of a mesh from its plan.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use leno_resources::SERVICE_NAME_LABEL;
use leno_types::ServiceName;

use super::services::{PlannedEndpoint, PlannedService};
use super::{Plan, ReadyInstances};
use crate::dns::{EndpointNames, PortName, ServiceNames, Zone};

impl Plan {
    /// The names of all services. Only instances in `ready` are listed as endpoints, because the others take no
    /// traffic.
    #[must_use]
    pub fn zone(&self, ready: &ReadyInstances) -> Zone {
        let services = self.services.iter().map(|(name, service)| {
            let key = (name.namespace.to_string(), name.name.to_string());
            (key, self.names(name, service, ready))
        });
        let meshed = self.instances.values().filter(|instance| instance.launch.meshed);
        let addresses = meshed.flat_map(|instance| {
            let namespace = instance.name.namespace.to_string();
            instance.addresses.iter().map(move |ip| (ip, namespace.clone()))
        });
        Zone::new(services, addresses).within(self.ranges)
    }

    fn names(
        &self,
        name: &ServiceName,
        service: &PlannedService,
        ready: &ReadyInstances,
    ) -> ServiceNames {
        let own = service.endpoints.iter().filter_map(|endpoint| {
            let instance = self.instances.get(&endpoint.instance)?;
            let families = ready.get(&instance.name);
            let listed = service.lists_unready || families.is_some();
            // An address on which all ports are closed is left out, because clients would try it in vain.
            let open = |address: &IpAddr| {
                let mut ports = endpoint.ports.iter().flatten().peekable();
                ports.peek().is_none()
                    || ports.any(|port| !families.is_some_and(|of| of.closes(*address, *port)))
            };
            listed.then(|| EndpointNames {
                host: instance.name.name.to_string(),
                addresses: instance.addresses.iter().filter(open).collect(),
                ports: endpoint_ports(service, endpoint),
            })
        });
        let mut endpoints: Vec<EndpointNames> = own.collect();
        let mut outside: Vec<String> = service.external_name().map(host).into_iter().collect();
        for slice in self.slices.iter().filter(|slice| belongs(slice, name)) {
            match slice.address_type.as_str() {
                "FQDN" => outside.extend(hosts(slice)),
                _ => endpoints.extend(given(slice)),
            }
        }
        let port = |port: &k8s_openapi::api::core::v1::ServicePort| {
            port_name(port.name.as_deref(), port.protocol.as_deref(), u16::try_from(port.port).ok())
        };
        ServiceNames {
            vips: service.vips.clone(),
            ports: service.ports().iter().filter_map(port).collect(),
            endpoints,
            outside,
        }
    }
}

fn endpoint_ports(service: &PlannedService, endpoint: &PlannedEndpoint) -> Vec<PortName> {
    let ports = service.ports().iter().zip(&endpoint.ports);
    let name = ports.filter_map(|(port, number)| {
        port_name(port.name.as_deref(), port.protocol.as_deref(), *number)
    });
    name.collect()
}

fn port_name(name: Option<&str>, protocol: Option<&str>, port: Option<u16>) -> Option<PortName> {
    Some(PortName {
        name: name.filter(|name| !name.is_empty())?.to_owned(),
        protocol: protocol.unwrap_or("TCP").to_ascii_lowercase(),
        port: port?,
    })
}

/// A name as DNS clients query it: in lower case, without the final dot.
fn host(text: &str) -> String {
    text.trim_end_matches('.').to_ascii_lowercase()
}

/// The names outside of the mesh that are endpoints of a slice.
fn hosts(slice: &EndpointSlice) -> impl Iterator<Item = String> {
    let endpoints = slice.endpoints.iter().flatten();
    endpoints.filter_map(|endpoint| endpoint.addresses.first().map(|text| host(text)))
}

fn belongs(slice: &EndpointSlice, service: &ServiceName) -> bool {
    let labels = slice.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL)).map(String::as_str)
        == Some(&*service.name)
        && slice.metadata.namespace.as_deref() == Some(&*service.namespace)
}

/// The endpoints of a slice in the documents. An endpoint without a host name gets one from its address, as in a
/// cluster.
fn given(slice: &EndpointSlice) -> Vec<EndpointNames> {
    let ports = slice.ports.iter().flatten().filter_map(|port| {
        let number = port.port.and_then(|number| u16::try_from(number).ok());
        port_name(port.name.as_deref(), port.protocol.as_deref(), number)
    });
    let ports: Vec<PortName> = ports.collect();
    let endpoints = slice.endpoints.iter().flatten().filter(|endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
    });
    let names = endpoints.filter_map(|endpoint| {
        let addresses: Vec<IpAddr> =
            endpoint.addresses.iter().filter_map(|text| text.parse().ok()).collect();
        let first = addresses.first()?.to_string().replace(['.', ':'], "-");
        let host = endpoint.hostname.clone().unwrap_or(first);
        Some(EndpointNames { host, addresses, ports: ports.clone() })
    });
    names.collect()
}
