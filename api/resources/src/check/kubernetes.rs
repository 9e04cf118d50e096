//! Checks of Kubernetes' kinds, equivalent to those of its API server.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use leno_types::UDP_APP_PROTOCOL;

use super::{Check, Cursor, Name};
use crate::metadata::SERVICE_NAME_LABEL;
use crate::workload::MAX_PORTS;

/// The largest number of endpoints of one slice, as in Kubernetes.
const MAX_ENDPOINTS: usize = 1000;
/// The largest number of addresses of one endpoint, as in Kubernetes.
const MAX_ADDRESSES: usize = 100;
/// Transport protocols in Kubernetes. Leno carries TCP and ignores the others.
const TRANSPORTS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// Values of `trafficDistribution` in Kubernetes.
const DISTRIBUTIONS: [&str; 3] = ["PreferClose", "PreferSameZone", "PreferSameNode"];

pub(super) fn metadata(check: &mut Check<'_>, at: &Cursor<'_>, metadata: &ObjectMeta, form: Name) {
    let at = at.key("metadata");
    check.name(&at.key("name"), metadata.name.as_deref().unwrap_or_default(), form);
    if let Some(namespace) = &metadata.namespace {
        check.label(&at.key("namespace"), "namespace", namespace);
    }
    if let Some(annotations) = &metadata.annotations {
        check.own_settings(&at.key("annotations"), annotations);
    }
    if let Some(labels) = &metadata.labels {
        check.own_settings(&at.key("labels"), labels);
    }
}

pub(super) fn namespace(check: &mut Check<'_>, at: &Cursor<'_>, namespace: &Namespace) {
    metadata(check, at, &namespace.metadata, Name::Label);
    if namespace.metadata.namespace.is_some() {
        check.fail(&at.key("metadata").key("namespace"), "a Namespace is in no namespace");
    }
}

pub(super) fn config_map(check: &mut Check<'_>, at: &Cursor<'_>, object: &ConfigMap) {
    metadata(check, at, &object.metadata, Name::Subdomain);
}

pub(super) fn service(check: &mut Check<'_>, at: &Cursor<'_>, service: &Service) {
    metadata(check, at, &service.metadata, Name::Label);
    let spec = at.key("spec");
    let Some(wanted) = &service.spec else {
        check.fail(&spec, "is missing");
        return;
    };
    let cluster_ip = wanted.cluster_ip.as_deref().unwrap_or_default();
    let headless = cluster_ip == "None";
    if !cluster_ip.is_empty() && !headless {
        check.address(&spec.key("clusterIP"), cluster_ip);
    }
    let all = wanted.cluster_ips.as_deref().unwrap_or_default();
    for (index, text) in all.iter().enumerate() {
        if text != "None" {
            check.address(&spec.key("clusterIPs").index(index), text);
        }
    }
    if let (Some(first), false) = (all.first(), cluster_ip.is_empty())
        && first != cluster_ip
    {
        check.fail(&spec.key("clusterIPs"), format!("should begin with clusterIP, {cluster_ip}"));
    }
    let external = wanted.type_.as_deref() == Some("ExternalName");
    if external {
        external_name(check, &spec.key("externalName"), wanted.external_name.as_deref());
    }
    let ports = wanted.ports.as_deref().unwrap_or_default();
    let at = spec.key("ports");
    if ports.is_empty() && !headless && !external {
        check.fail(&at, "is empty: a service needs at least one port");
    }
    if ports.len() > MAX_PORTS {
        check.fail(&at, format!("{} are more than {MAX_PORTS}", ports.len()));
    }
    service_ports(check, &at, ports);
    if let Some(wanted) = &wanted.traffic_distribution
        && !DISTRIBUTIONS.contains(&wanted.as_str())
    {
        let reason = format!("{wanted:?} is none of {}", DISTRIBUTIONS.join(", "));
        check.fail(&spec.key("trafficDistribution"), reason);
    }
}

/// Checks the target of an `ExternalName`: a fully qualified DNS name.
fn external_name(check: &mut Check<'_>, at: &Cursor<'_>, name: Option<&str>) {
    let name = name.unwrap_or_default();
    if name.is_empty() {
        check.fail(at, "is missing: a Service of type ExternalName is another name for it");
    } else if name.parse::<IpAddr>().is_ok() {
        let reason = "is an address: use a Service without selector, and an EndpointSlice with it";
        check.fail(at, reason);
    } else {
        host(check, at, name);
    }
}

fn host(check: &mut Check<'_>, at: &Cursor<'_>, name: &str) {
    let whole = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    if let Err(error) = leno_types::check_subdomain("host name", &whole) {
        check.fail(at, error.to_string());
    }
}

fn service_ports(check: &mut Check<'_>, at: &Cursor<'_>, ports: &[ServicePort]) {
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for (index, port) in ports.iter().enumerate() {
        let at = at.index(index);
        let name = port.name.as_deref().unwrap_or_default();
        check.port_name(&at.key("name"), name, &mut names, ports.len());
        check.port(&at.key("port"), port.port);
        let transport = transport(check, &at, port.protocol.as_deref());
        if !numbers.insert((transport.clone(), port.port)) {
            let reason = format!("{} is used by an earlier port", port.port);
            check.fail(&at.key("port"), reason);
        }
        if port.app_protocol.as_deref() == Some(UDP_APP_PROTOCOL) && transport != "UDP" {
            let reason = format!("{UDP_APP_PROTOCOL} is for ports with protocol: UDP");
            check.fail(&at.key("appProtocol"), reason);
        }
        match &port.target_port {
            Some(IntOrString::Int(number)) => check.port(&at.key("targetPort"), *number),
            Some(IntOrString::String(name)) => {
                check.label(&at.key("targetPort"), "port name", name);
            }
            None => {}
        }
    }
}

fn transport(check: &mut Check<'_>, at: &Cursor<'_>, protocol: Option<&str>) -> String {
    let transport = protocol.unwrap_or("TCP");
    if !TRANSPORTS.contains(&transport) {
        let reason = format!("{transport:?} is not one of {}", TRANSPORTS.join(", "));
        check.fail(&at.key("protocol"), reason);
    }
    transport.to_owned()
}

pub(super) fn endpoint_slice(check: &mut Check<'_>, at: &Cursor<'_>, slice: &EndpointSlice) {
    metadata(check, at, &slice.metadata, Name::Subdomain);
    let labels = at.key("metadata").key("labels");
    match slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME_LABEL)) {
        Some(service) => check.label(&labels.key(SERVICE_NAME_LABEL), "service name", service),
        None => check.fail(&labels, format!("{SERVICE_NAME_LABEL} is missing")),
    }
    let family = slice.address_type.as_str();
    if !matches!(family, "IPv4" | "IPv6" | "FQDN") {
        let reason = format!("{family:?} is not one of IPv4, IPv6, FQDN");
        check.fail(&at.key("addressType"), reason);
    }
    let (mut names, ports) = (BTreeSet::new(), slice.ports.as_deref().unwrap_or_default());
    if ports.len() > MAX_PORTS {
        check.fail(&at.key("ports"), format!("{} are more than {MAX_PORTS}", ports.len()));
    }
    for (index, port) in ports.iter().enumerate() {
        let at = at.key("ports").index(index);
        let name = port.name.as_deref().unwrap_or_default();
        check.port_name(&at.key("name"), name, &mut names, ports.len());
        if let Some(number) = port.port {
            check.port(&at.key("port"), number);
        }
        transport(check, &at, port.protocol.as_deref());
    }
    let endpoints = slice.endpoints.as_deref().unwrap_or_default();
    if endpoints.len() > MAX_ENDPOINTS {
        let reason = format!("{} are more than {MAX_ENDPOINTS}", endpoints.len());
        check.fail(&at.key("endpoints"), reason);
    }
    for (index, one) in endpoints.iter().enumerate() {
        endpoint(check, &at.key("endpoints").index(index), family, one);
    }
}

fn endpoint(check: &mut Check<'_>, at: &Cursor<'_>, family: &str, endpoint: &Endpoint) {
    let addresses = at.key("addresses");
    if endpoint.addresses.is_empty() || endpoint.addresses.len() > MAX_ADDRESSES {
        check.fail(&addresses, format!("should be 1 to {MAX_ADDRESSES} addresses"));
    }
    for (index, text) in endpoint.addresses.iter().enumerate() {
        let at = addresses.index(index);
        if family == "FQDN" {
            host(check, &at, text);
            continue;
        }
        match check.address(&at, text) {
            Some(IpAddr::V4(_)) if family == "IPv6" => {
                check.fail(&at, format!("{text} is not an IPv6 address, as addressType says"));
            }
            Some(IpAddr::V6(_)) if family == "IPv4" => {
                check.fail(&at, format!("{text} is not an IPv4 address, as addressType says"));
            }
            _ => {}
        }
    }
    if let Some(target) = &endpoint.target_ref {
        let at = at.key("targetRef");
        check.name(&at.key("name"), target.name.as_deref().unwrap_or_default(), Name::Subdomain);
    }
}
