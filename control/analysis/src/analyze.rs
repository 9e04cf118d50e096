//! Finds mistakes in documents and stored objects.

mod authorization;
mod effect;
mod external;
mod finding;
mod foreign;
mod grants;
mod headers;
mod keys;
mod parts;
mod policies;
mod ports;
mod routes;
mod services;
mod waypoints;

use std::sync::Arc;

use leno_index::MeshSettings;
use leno_resources::{Documents, Located, Object, ObjectKey, Position};

pub use finding::{Finding, Severity};
pub use keys::KEYS_NOT_PERMITTED;

use crate::mesh::MeshModel;
use finding::Findings;

/// Finds mistakes in documents that were parsed. `objects` are the same documents, completed with all that `leno
/// up` or a cluster adds, such as the services that workloads imply.
///
/// The findings are in the order of the files.
#[must_use]
pub fn analyze(documents: &Documents, objects: Vec<Object>) -> Vec<Finding> {
    found(&MeshModel::new(objects), documents, true)
}

/// Finds mistakes in objects that have no file, such as those of a cluster. Only returns findings about objects
/// for which `wanted` is true, ordered by namespace, kind and name. `settings` are those of the cluster's control
/// plane.
#[must_use]
pub fn analyze_stored(
    settings: MeshSettings,
    objects: Vec<Object>,
    wanted: impl Fn(&ObjectKey) -> bool,
) -> Vec<Finding> {
    let mesh = MeshModel::told(settings, objects);
    let mut of: Vec<(ObjectKey, &Object)> =
        mesh.objects.iter().map(|object| (object.key(), object)).collect();
    of.retain(|(key, _)| wanted(key));
    of.sort_by(|(a, _), (b, _)| {
        (&a.namespace, a.kind, &a.name).cmp(&(&b.namespace, b.kind, &b.name))
    });
    let nowhere = |(_, object): (ObjectKey, &Object)| Located {
        value: object.clone(),
        file: Arc::default(),
        place: Position::default(),
    };
    let objects = of.into_iter().map(nowhere).collect();
    found(&mesh, &Documents { objects, ..Documents::default() }, false)
}

/// Finds mistakes. `local` is whether the documents are files that `leno up` may run.
fn found(mesh: &MeshModel, documents: &Documents, local: bool) -> Vec<Finding> {
    let mut findings = Findings::new(documents);
    routes::references(mesh, &mut findings);
    routes::tables(mesh, &mut findings);
    headers::headers(&mut findings);
    services::services(mesh, &mut findings);
    waypoints::waypoints(mesh, &mut findings);
    grants::grants(mesh, &mut findings);
    policies::policies(mesh, &mut findings);
    authorization::authorization(mesh, &mut findings);
    parts::without_effect(mesh, &mut findings);
    ports::ports(mesh, &mut findings, local);
    external::external(mesh, &mut findings);
    foreign::foreign(&mut findings);
    findings.sorted()
}
