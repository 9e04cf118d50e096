//! Finds mistakes in services: selectors that select no workload, and endpoints without a service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use leno_resources::{EndpointSlice, Object, SERVICE_NAME_LABEL};
use leno_types::ServiceName;

use super::finding::{Findings, Mistake};
use super::routes::instead;
use crate::mesh::MeshModel;

pub(super) fn services(mesh: &MeshModel, findings: &mut Findings<'_>) {
    // Documents without any workload are meant for a cluster, where workloads exist already.
    let runs_here = mesh.workloads().next().is_some();
    for (at, object) in findings.objects() {
        match object {
            Object::Service(service) if runs_here => {
                let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
                let Some(selector) = selector.filter(|selector| !selector.is_empty()) else {
                    continue;
                };
                let namespace = object.key().namespace;
                let selected = mesh.labelled(&namespace, selector).next().is_some();
                if !selected && !has_endpoints(mesh, object) {
                    let reason = "the selector matches no workload of the namespace".to_owned();
                    let remedy = "give the workload these labels, or select others".to_owned();
                    let wrong = Mistake::warning("selects-nothing", reason, remedy);
                    findings.push(at, "spec.selector", wrong);
                }
            }
            Object::EndpointSlice(slice) => {
                without_owner(mesh, findings, (at, slice));
                refused(mesh, findings, (at, slice));
            }
            _ => {}
        }
    }
}

/// Finds endpoints in a slice that the mesh rejects because the slice's namespace has no right to them.
fn refused(mesh: &MeshModel, findings: &mut Findings<'_>, (at, slice): (usize, &EndpointSlice)) {
    let key = |labels: &BTreeMap<String, String>| labels.get(SERVICE_NAME_LABEL).cloned();
    let name = slice.metadata.labels.as_ref().and_then(key);
    let name = name.zip(slice.metadata.namespace.as_deref());
    let name = name.and_then(|(name, namespace)| ServiceName::new(namespace, &name).ok());
    let Some(refused) = name.and_then(|name| mesh.index.refused_endpoints().get(&name)) else {
        return;
    };
    let addresses = slice.endpoints.iter().flatten().filter_map(|one| one.addresses.first());
    let addresses: Vec<IpAddr> = addresses.filter_map(|text| text.parse().ok()).collect();
    for one in refused.first.iter().filter(|one| addresses.contains(&one.address)) {
        let reason = format!("the endpoint {} is ignored: {}", one.address, one.reason);
        let remedy = "select pods of the namespace, or use an address outside of the cluster";
        let wrong = Mistake::warning("endpoint-refused", reason, remedy.to_owned());
        findings.push(at, "endpoints", wrong);
    }
}

/// Whether a service has endpoints although no workload matches its selector. This is the case for pods that use
/// their node's network: Kubernetes lists them as endpoints, but the mesh ignores them.
fn has_endpoints(mesh: &MeshModel, service: &Object) -> bool {
    let key = service.key();
    mesh.objects.iter().any(|object| {
        let Object::EndpointSlice(slice) = object else { return false };
        let metadata = &slice.metadata;
        let of = metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME_LABEL));
        of == Some(&key.name)
            && metadata.namespace.as_deref() == Some(&*key.namespace)
            && slice.endpoints.as_ref().is_some_and(|all| !all.is_empty())
    })
}

fn without_owner(
    mesh: &MeshModel,
    findings: &mut Findings<'_>,
    (at, slice): (usize, &EndpointSlice),
) {
    let labels = slice.metadata.labels.as_ref();
    let Some(name) = labels.and_then(|labels| labels.get(SERVICE_NAME_LABEL)) else {
        let reason = "belongs to no Service".to_owned();
        let remedy = format!("label it {SERVICE_NAME_LABEL}: NAME");
        let wrong = Mistake::warning("endpoints-of-nobody", reason, remedy);
        return findings.push(at, "metadata", wrong);
    };
    let namespace = slice.metadata.namespace.as_deref().unwrap_or_default();
    let Ok(name) = ServiceName::new(namespace, name) else { return };
    if mesh.index.service(&name).is_none() {
        let reason = format!("there is no Service {name}");
        let wrong = Mistake::warning("endpoints-of-nobody", reason, instead(mesh, &name));
        findings.push(at, "metadata.labels", wrong);
    }
}
