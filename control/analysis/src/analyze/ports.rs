//! Finds mistakes about ports: unknown protocols, target ports that no workload has, and ports that only a
//! cluster's nodes can open.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leno_resources::{Object, Service, Workload};
use leno_types::nearest;

use super::finding::{Findings, Mistake};
use crate::mesh::MeshModel;

/// Known values of `appProtocol`: those that decide how a port is served, and names of protocols that are relayed
/// as bytes (RFC 6335; IANA's service names and names that charts use). The most common come first, because
/// `nearest` prefers earlier names.
const PROTOCOLS: [&str; 54] = [
    "http",
    "http2",
    "grpc",
    "https",
    "tls",
    "tcp",
    "kubernetes.io/h2c",
    "kubernetes.io/ws",
    "kubernetes.io/wss",
    "leno.dev/udp",
    "amqp",
    "amqps",
    "beats",
    "cassandra",
    "clickhouse",
    "cql",
    "dns",
    "domain",
    "elasticsearch",
    "etcd",
    "ftp",
    "grpc-web",
    "grpcs",
    "imap",
    "imaps",
    "kafka",
    "kerberos",
    "ldap",
    "ldaps",
    "memcache",
    "memcached",
    "minecraft",
    "mongo",
    "mongodb",
    "mqtt",
    "ms-sql-s",
    "mssql",
    "mysql",
    "nats",
    "nfs",
    "postgres",
    "postgresql",
    "redis",
    "rtmp",
    "rtsp",
    "sftp",
    "smtp",
    "ssh",
    "stomp",
    "syslog",
    "telnet",
    "thrift",
    "udp",
    "zookeeper",
];

/// Finds mistakes about ports. `local` is whether `leno up` runs the documents.
pub(super) fn ports(mesh: &MeshModel, findings: &mut Findings<'_>, local: bool) {
    for (at, object) in findings.objects() {
        match object {
            Object::Service(service) => {
                targets(mesh, findings, (at, service));
                if local && mesh.workloads().next().is_some() {
                    of_nodes(findings, at, service);
                }
                let declared = spec_ports(service).iter().map(|port| port.app_protocol.as_deref());
                protocols(findings, at, declared);
            }
            Object::Workload(workload) => {
                let ports = workload.spec.ports.iter();
                protocols(findings, at, ports.map(|port| port.app_protocol.as_deref()));
            }
            _ => {}
        }
    }
}

fn protocols<'a>(
    findings: &mut Findings<'_>,
    at: usize,
    declared: impl Iterator<Item = Option<&'a str>>,
) {
    for (index, declared) in declared.enumerate() {
        let Some(declared) = declared.filter(|text| !text.is_empty()) else { continue };
        let known = PROTOCOLS.iter().any(|known| known.eq_ignore_ascii_case(declared));
        // A name with a domain prefix is a private protocol, which Kubernetes allows.
        let ours = declared.starts_with("kubernetes.io/") || declared.starts_with("leno.dev/");
        let private = declared.contains('/') && !ours;
        if known || private {
            continue;
        }
        let reason =
            format!("{declared:?} is not a protocol that Leno supports, so the port is opaque");
        let remedy = match nearest(declared.trim(), PROTOCOLS) {
            Some(meant) => format!("did you mean {meant}?"),
            None => "declare http, http2, grpc, https, tls or tcp, or remove it".to_owned(),
        };
        let wrong = Mistake::warning("protocol-unknown", reason, remedy);
        findings.push(at, &format!("spec.ports[{index}].appProtocol"), wrong);
    }
}

/// Finds target ports that no selected workload declares. Workloads that declare no ports are not considered.
fn targets(mesh: &MeshModel, findings: &mut Findings<'_>, (at, service): (usize, &Service)) {
    let Some(spec) = &service.spec else { return };
    let selector = spec.selector.as_ref().filter(|selector| !selector.is_empty());
    let Some(selector) = selector else { return };
    let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
    let selected: Vec<&Workload> = mesh.labelled(namespace, selector).collect();
    if selected.is_empty() || selected.iter().any(|one| one.spec.ports.is_empty()) {
        return;
    }
    for (index, port) in spec_ports(service).iter().enumerate() {
        let number = match &port.target_port {
            Some(IntOrString::Int(number)) if *number != 0 => *number,
            // `leno up` already rejects a port name that no workload has.
            Some(IntOrString::String(_)) => continue,
            _ => port.port,
        };
        let mut declared = selected.iter().flat_map(|one| &one.spec.ports);
        if declared.any(|one| i32::from(one.port) == number) {
            continue;
        }
        let mut has: Vec<u16> =
            selected.iter().flat_map(|one| &one.spec.ports).map(|one| one.port).collect();
        has.sort_unstable();
        has.dedup();
        let has: Vec<String> = has.iter().map(u16::to_string).collect();
        let written = if port.target_port.is_some() { "targetPort" } else { "port" };
        let reason = format!("no selected workload has a port {number}");
        let remedy = format!("they have {}: set targetPort, or declare it there", has.join(", "));
        let wrong = Mistake::warning("target-port-of-no-workload", reason, remedy);
        findings.push(at, &format!("spec.ports[{index}].{written}"), wrong);
    }
}

/// Finds ports of nodes and load balancers, which `leno up` does not open.
fn of_nodes(findings: &mut Findings<'_>, at: usize, service: &Service) {
    let kind = service.spec.as_ref().and_then(|spec| spec.type_.as_deref());
    let Some(kind @ ("NodePort" | "LoadBalancer")) = kind else { return };
    let reason = format!("`leno up` opens no port of this machine for a Service of type {kind}");
    let remedy =
        "give a port of the Workload `published: PORT`, or use leno port-forward".to_owned();
    findings.push(at, "spec.type", Mistake::warning("port-of-nodes", reason, remedy));
}

fn spec_ports(service: &Service) -> &[k8s_openapi::api::core::v1::ServicePort] {
    service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default()
}
