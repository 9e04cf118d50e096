//! Finds services whose waypoint does not serve them, workloads that no client can reach for that reason, and
//! workloads that are declared as a waypoint but cannot be one.

use leno_resources::{
    Object, Service, USE_WAYPOINT_LABEL, WAYPOINT_LABEL, WaypointUse, Workload, waypoint_instance,
    waypoint_use,
};
use leno_types::ServiceName;

use super::finding::{Findings, Mistake};
use crate::mesh::MeshModel;

pub(super) fn waypoints(mesh: &MeshModel, findings: &mut Findings<'_>) {
    // Documents without any workload are meant for a cluster, where waypoints exist already.
    if mesh.workloads().next().is_none() {
        return;
    }
    for (at, object) in findings.objects() {
        let mistakes = match object {
            Object::Service(service) => of_service(mesh, service, &object.key().namespace),
            Object::Workload(workload) => {
                only_through(mesh, workload).or_else(|| of_instance(mesh, workload))
            }
            _ => None,
        };
        if let Some((reason, remedy)) = mistakes {
            findings.push(at, "metadata.labels", Mistake::warning("no-waypoint", reason, remedy));
        }
    }
}

/// A mistake, and its remedy.
type Wrong = (String, String);

fn of_service(mesh: &MeshModel, service: &Service, namespace: &str) -> Option<Wrong> {
    let Some(WaypointUse::Through(waypoint)) = uses(mesh, service, namespace) else { return None };
    let (reason, remedy) = wrong(mesh, &waypoint, namespace)?;
    Some((format!("{reason}: clients of the service are refused"), remedy))
}

/// The mistake of a workload that permits only requests through its waypoint, if no waypoint serves it.
fn only_through(mesh: &MeshModel, workload: &Workload) -> Option<Wrong> {
    let of = &workload.metadata;
    let before = waypoint_use(Some(&of.labels), Some(&of.annotations), &of.namespace)?;
    let WaypointUse::Through(waypoint) = before else { return None };
    let uses_it = |service: &Service| matches!(uses(mesh, service, &of.namespace), Some(WaypointUse::Through(one)) if one == waypoint);
    let (reason, remedy) = wrong(mesh, &waypoint, &of.namespace).or_else(|| {
        let reason = format!("no Service of the workload uses the waypoint {waypoint}");
        let remedy = format!("set the label {USE_WAYPOINT_LABEL} on its Service too");
        (!services_of(mesh, workload).any(uses_it)).then_some((reason, remedy))
    })?;
    Some((format!("{reason}: the workload permits no client"), remedy))
}

/// The mistake of a workload that is declared as an instance of a waypoint but cannot be one.
fn of_instance(mesh: &MeshModel, workload: &Workload) -> Option<Wrong> {
    let of = &workload.metadata;
    let Some(instance) = waypoint_instance(&of.labels, &of.namespace) else {
        let reason = format!(
            "{WAYPOINT_LABEL} has no effect as an annotation, because it is a \
             label"
        );
        let remedy = "write it below metadata.labels".to_owned();
        return of.annotations.contains_key(WAYPOINT_LABEL).then_some((reason, remedy));
    };
    let (waypoint, name) = (&instance.waypoint, &instance.waypoint.name);
    let not = format!("the workload is not an instance of the waypoint {waypoint}");
    if *workload.spec.service_account != **name {
        let reason = format!("{not}: its service account is {}", workload.spec.service_account);
        return Some((reason, format!("write serviceAccount: {name}")));
    }
    let is_its_service = |service: &Service| service.metadata.name.as_deref() == Some(&**name);
    let remedy = format!("create a Service {name} with port 15008 that selects it");
    (!services_of(mesh, workload).any(is_its_service))
        .then(|| (format!("{not}: no Service {name} selects it"), remedy))
}

/// The services that select a workload.
fn services_of<'m>(
    mesh: &'m MeshModel,
    workload: &'m Workload,
) -> impl Iterator<Item = &'m Service> {
    let of = &workload.metadata;
    let selects = |service: &Service| {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| {
            !selector.is_empty()
                && selector.iter().all(|(key, value)| of.labels.get(key) == Some(value))
        })
    };
    mesh.objects.iter().filter_map(move |object| match object {
        Object::Service(service) if object.key().namespace == of.namespace && selects(service) => {
            Some(&**service)
        }
        _ => None,
    })
}

/// The waypoint that a service sets, or else that its namespace sets.
fn uses(mesh: &MeshModel, service: &Service, namespace: &str) -> Option<WaypointUse> {
    let of = &service.metadata;
    waypoint_use(of.labels.as_ref(), of.annotations.as_ref(), namespace).or_else(|| {
        mesh.objects.iter().find_map(|object| match object {
            Object::Namespace(one) if one.metadata.name.as_deref() == Some(namespace) => {
                let of = &one.metadata;
                waypoint_use(of.labels.as_ref(), of.annotations.as_ref(), namespace)
            }
            _ => None,
        })
    })
}

/// Why a waypoint does not serve the services of a namespace.
fn wrong(mesh: &MeshModel, waypoint: &ServiceName, namespace: &str) -> Option<Wrong> {
    let instance =
        |one: &Workload| waypoint_instance(&one.metadata.labels, &one.metadata.namespace);
    let instances = || {
        let with = mesh.workloads().filter_map(|one| Some((one, instance(one)?)));
        with.filter(|(_, instance)| instance.waypoint == *waypoint)
    };
    if instances().next().is_none() {
        let reason = format!("there is no waypoint {waypoint}");
        return Some((reason, format!("create one, or set the label {USE_WAYPOINT_LABEL}: none")));
    }
    if !instances().any(|(one, _)| *one.spec.service_account == *waypoint.name) {
        let name = &waypoint.name;
        let reason =
            format!("no workload of the waypoint {waypoint} has the service account {name}");
        return Some((
            reason,
            "give it that service account, by which clients identify it".to_owned(),
        ));
    }
    if *namespace != *waypoint.namespace && !instances().any(|(_, instance)| instance.from_all) {
        let reason = format!("the waypoint {waypoint} serves only its own namespace");
        let remedy = "set allowedRoutes.namespaces.from: All of its Gateway, or the label leno.dev/waypoint-from: all of its workload";
        return Some((reason, remedy.to_owned()));
    }
    None
}
