//! Mistakes in documents.

mod external;
mod finding;
mod grants;
mod policies;
mod routes;
mod services;

use leno_resources::{Documents, Object};

pub use finding::{Finding, Severity};

use crate::mesh::Mesh;
use finding::Findings;

/// Finds mistakes in documents that parse. `objects` are the same documents with everything filled in
/// that `leno up` or a cluster adds, services that workloads imply among them.
///
/// The findings come in the order of the files.
#[must_use]
pub fn analyze(documents: &Documents, objects: Vec<Object>) -> Vec<Finding> {
    let mesh = Mesh::new(objects);
    let mut findings = Findings::new(documents);
    routes::references(&mesh, &mut findings);
    routes::tables(&mesh, &mut findings);
    services::services(&mesh, &mut findings);
    grants::grants(&mesh, &mut findings);
    policies::policies(&mesh, &mut findings);
    external::external(&mesh, &mut findings);
    findings.sorted()
}
