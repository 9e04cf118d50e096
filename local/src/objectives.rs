//! The service level objectives of a mesh, with the workloads that serve their targets.

use std::collections::BTreeSet;

use leno_resources::{
    EndpointSlice, Kind, Object, SERVICE_NAME_LABEL, ServiceLevelObjective, Workload,
};

use crate::analysis::refused;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::status::MeshStatus;

/// A service level objective of a mesh.
#[derive(Clone, Debug)]
pub struct MeshObjective {
    /// Its document.
    pub object: ServiceLevelObjective,
    /// The namespaces and names of the workloads behind its target.
    pub servers: Vec<(String, String)>,
}

/// The selected objectives of the running mesh, by namespace and name, from the last state that was written for its
/// control plane.
///
/// # Errors
/// [`Error::NotRunning`], if its state cannot be read, or if the target of a selected objective does not exist.
pub fn running(
    layout: &Layout,
    is_wanted: impl Fn(&ServiceLevelObjective) -> bool,
) -> Result<Vec<MeshObjective>> {
    MeshStatus::read(layout)?;
    let state = layout.state().join("state.yaml");
    // The file is only written once a workload has a proxy.
    if !state.exists() {
        return Ok(Vec::new());
    }
    let documents = leno_resources::load(&[state]).map_err(|problems| refused(&problems))?;
    let objects: Vec<Object> = documents.objects.into_iter().map(|one| one.value).collect();
    let mut found = Vec::new();
    for object in &objects {
        if let Object::ServiceLevelObjective(object) = object
            && is_wanted(object)
        {
            let servers = servers(object, &objects)?;
            found.push(MeshObjective { object: (**object).clone(), servers });
        }
    }
    found.sort_by_cached_key(|one: &MeshObjective| {
        (one.object.metadata.namespace.clone(), one.object.metadata.name.clone())
    });
    Ok(found)
}

/// The workloads behind the target of an objective.
fn servers(of: &ServiceLevelObjective, objects: &[Object]) -> Result<Vec<(String, String)>> {
    let (namespace, target) = (&of.metadata.namespace, &of.spec.target_ref);
    let workloads: Vec<&Workload> = objects
        .iter()
        .filter_map(|object| match object {
            Object::Workload(workload) if workload.metadata.namespace == *namespace => {
                Some(&**workload)
            }
            _ => None,
        })
        .collect();
    let instances: BTreeSet<&str> = match target.kind == Kind::Workload.as_str() {
        true => BTreeSet::new(),
        false => slices(objects, namespace, &target.name).flat_map(instances).collect(),
    };
    let serves = |workload: &&&Workload| {
        let status = workload.status.as_ref();
        let mut own = status.into_iter().flat_map(|status| &status.instances);
        match target.kind == Kind::Workload.as_str() {
            true => workload.metadata.name == target.name,
            false => own.any(|instance| instances.contains(&*instance.name)),
        }
    };
    let name = |workload: &&Workload| (namespace.clone(), workload.metadata.name.clone());
    let found: Vec<_> = workloads.iter().filter(serves).map(name).collect();
    if found.is_empty() {
        let (kind, target, name) = (&target.kind, &target.name, &of.metadata.name);
        return Err(Error::Refused(format!(
            "the {kind} {target} of the ServiceLevelObjective {namespace}/{name} has no workload: \
             correct its target"
        )));
    }
    Ok(found)
}

fn slices<'o>(
    objects: &'o [Object],
    namespace: &'o str,
    service: &'o str,
) -> impl Iterator<Item = &'o EndpointSlice> {
    objects.iter().filter_map(move |object| {
        let Object::EndpointSlice(slice) = object else { return None };
        let of = slice.metadata.labels.as_ref()?.get(SERVICE_NAME_LABEL)?;
        let own = slice.metadata.namespace.as_deref() == Some(namespace) && of == service;
        own.then_some(&**slice)
    })
}

fn instances(slice: &EndpointSlice) -> impl Iterator<Item = &str> {
    let endpoints = slice.endpoints.iter().flatten();
    endpoints.filter_map(|one| one.target_ref.as_ref()?.name.as_deref())
}
