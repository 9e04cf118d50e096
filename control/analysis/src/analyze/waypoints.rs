//! Services whose clients are sent through a waypoint that does not serve them.

use leno_resources::{
    Object, Service, USE_WAYPOINT_LABEL, WaypointUse, Workload, waypoint_instance, waypoint_use,
};
use leno_types::ServiceName;

use super::finding::{Findings, Mistake};
use crate::mesh::MeshModel;

pub(super) fn waypoints(mesh: &MeshModel, findings: &mut Findings<'_>) {
    // Documents without any workload are meant for a cluster, which has waypoints of its own.
    if mesh.workloads().next().is_none() {
        return;
    }
    for (at, object) in findings.objects() {
        let Object::Service(service) = object else { continue };
        let namespace = object.key().namespace;
        let Some(WaypointUse::Through(waypoint)) = uses(mesh, service, &namespace) else {
            continue;
        };
        if let Some(wrong) = wrong(mesh, &waypoint, &namespace) {
            findings.push(at, "metadata.labels", wrong);
        }
    }
}

/// What a service sets, or else its namespace.
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

/// Why a waypoint does not serve services of a namespace.
fn wrong(mesh: &MeshModel, waypoint: &ServiceName, namespace: &str) -> Option<Mistake> {
    let instance =
        |one: &Workload| waypoint_instance(&one.metadata.labels, &one.metadata.namespace);
    let instances = || {
        let with = mesh.workloads().filter_map(|one| Some((one, instance(one)?)));
        with.filter(|(_, instance)| instance.waypoint == *waypoint)
    };
    let warning = |reason: String, remedy: String| {
        Some(Mistake::warning(
            "no-waypoint",
            format!("{reason}: clients of the service are refused"),
            remedy,
        ))
    };
    if instances().next().is_none() {
        let reason = format!("there is no waypoint {waypoint}");
        let remedy = format!("make one, or set the label {USE_WAYPOINT_LABEL}: none");
        return warning(reason, remedy);
    }
    if !instances().any(|(one, _)| *one.spec.service_account == *waypoint.name) {
        let reason = format!(
            "no workload of the waypoint {waypoint} has the service account {}",
            waypoint.name
        );
        return warning(
            reason,
            "give it that service account, by which clients know it".to_owned(),
        );
    }
    if *namespace != *waypoint.namespace && !instances().any(|(_, instance)| instance.from_all) {
        let reason = format!("the waypoint {waypoint} serves its own namespace alone");
        let remedy = "set allowedRoutes.namespaces.from: All of its Gateway, or the label leno.dev/waypoint-from: all of its workload";
        return warning(reason, remedy.to_owned());
    }
    None
}
