//! Finds mistakes about destinations outside of the mesh: missing certificate authorities, TLS origination to a
//! service of the mesh, plaintext requests to a TLS port.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use leno_resources::Object;
use leno_resources::gateway::BackendTlsPolicy;
use leno_types::mesh::{Roots, Service, ServicePort};
use leno_types::{Protocol, ServiceName};

use super::finding::{Findings, Mistake};
use crate::mesh::MeshModel;

/// The port of HTTP (RFC 9110 section 4.2.1).
const HTTP: u16 = 80;
/// The port of HTTP over TLS (RFC 9110 section 4.2.2).
const HTTPS: u16 = 443;

pub(super) fn external(mesh: &MeshModel, findings: &mut Findings<'_>) {
    for (at, object) in findings.objects() {
        match object {
            Object::BackendTlsPolicy(policy) => self::policy(mesh, findings, (at, policy)),
            Object::Service(written) => {
                cut_off(findings, at, written);
                let key = object.key();
                let Ok(name) = ServiceName::new(&key.namespace, &key.name) else { continue };
                if let Some(service) = mesh.index.service(&name) {
                    in_clear(findings, at, &service);
                }
            }
            _ => {}
        }
    }
}

fn policy(mesh: &MeshModel, findings: &mut Findings<'_>, (at, policy): (usize, &BackendTlsPolicy)) {
    let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
    for (index, target) in policy.spec.target_refs.iter().enumerate() {
        let Ok(name) = ServiceName::new(namespace, &target.name) else { continue };
        let Some(service) = mesh.index.service(&name) else { continue };
        if let Some(why) = service.ports.iter().find_map(missing) {
            let remedy = "create it, with certificates in PEM under the key ca.crt".to_owned();
            let reason = format!("{why}, so no request is sent to {name}");
            let wrong = Mistake::error("authorities-missing", reason, remedy);
            findings.push(at, "spec.validation.caCertificateRefs", wrong);
            return;
        }
        let endpoints = || service.ports.iter().flat_map(|port| port.endpoints.iter());
        let named = service.ports.iter().filter_map(|port| port.external.as_ref());
        let has_names = named.into_iter().any(|external| !external.names.is_empty());
        if !has_names && endpoints().next().is_some() && endpoints().all(|e| e.identity.is_some()) {
            let reason = format!(
                "every endpoint of {name} has a proxy, with which mTLS is used in any case, so the \
                 policy has no effect"
            );
            let remedy =
                "attach it to a Service whose endpoints are outside of the mesh".to_owned();
            let wrong = Mistake::warning("tls-of-the-mesh", reason, remedy);
            findings.push(at, &format!("spec.targetRefs[{index}]"), wrong);
        }
    }
}

fn missing(port: &ServicePort) -> Option<&str> {
    match &port.external.as_ref()?.tls.as_ref()?.roots {
        Roots::Missing(why) => Some(why),
        _ => None,
    }
}

/// Finds services whose clients send plaintext requests to an HTTPS port outside, because the proxy does not
/// originate TLS there.
fn in_clear(findings: &mut Findings<'_>, at: usize, service: &Service) {
    for port in service.ports.iter().filter(|port| port.protocol != Protocol::Opaque) {
        let Some(external) = port.external.as_ref().filter(|external| external.tls.is_none())
        else {
            continue;
        };
        let Some(name) = external.names.iter().find(|name| name.port == HTTPS) else { continue };
        // A client that connects to port 443 of the service probably originates TLS itself.
        if port.port == HTTPS && port.protocol == Protocol::Detect {
            continue;
        }
        let (host, number) = (&name.host, port.port);
        let reason = format!("requests to port {number} go to {host}:443 in plaintext");
        let remedy = format!(
            "attach a BackendTLSPolicy with hostname {host}, or declare appProtocol: https if the \
             application speaks TLS itself"
        );
        findings.push(at, "spec.ports", Mistake::warning("external-in-clear", reason, remedy));
    }
}

/// Finds an external name with an HTTP port but no HTTPS port. A Service with ports gives the name a virtual
/// address, and connections to ports that are not listed are refused there.
fn cut_off(findings: &mut Findings<'_>, at: usize, service: &leno_resources::Service) {
    let Some(spec) = &service.spec else { return };
    let (Some("ExternalName"), Some(host)) = (spec.type_.as_deref(), &spec.external_name) else {
        return;
    };
    let ports = spec.ports.as_deref().unwrap_or_default();
    let listed = |number: u16| ports.iter().position(|port| port.port == i32::from(number));
    let (Some(index), None) = (listed(HTTP), listed(HTTPS)) else { return };
    // With target port 443, the application is meant to send plaintext and the proxy to originate TLS.
    if matches!(&ports[index].target_port, Some(IntOrString::Int(443))) {
        return;
    }
    let reason = format!(
        "an application that connects to https://{host} is refused, because the name has a virtual \
         address with only the listed ports"
    );
    let remedy = "list port 443 as well: {name: https, port: 443, appProtocol: https}".to_owned();
    let wrong = Mistake::warning("https-cut-off", reason, remedy);
    findings.push(at, &format!("spec.ports[{index}]"), wrong);
}
