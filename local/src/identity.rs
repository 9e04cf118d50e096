//! `leno identity`: queries the certificate authority of a mesh and sends requests to it.

use std::io;

use leno_identity::report::IdentityReport;
use leno_identity::{AuthorityDirectory, OperatorRequest, OperatorVerb};

use crate::admin::Admin;
use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::netns::Netns;
use crate::status::MeshStatus;

/// Fetches the state of signing and trust from the control plane of a mesh.
///
/// # Errors
/// When the mesh does not run, or its control plane does not answer.
pub async fn report(layout: &Layout) -> Result<IdentityReport> {
    let status = MeshStatus::read(layout)?;
    let switch = Netns::open(&status.switch_netns)?;
    let reply = Admin::within(&switch).get("/identity").await?;
    let refused = |source| Error::Os {
        what: format!("the control plane of mesh {} does not report its identity", layout.mesh()),
        source,
    };
    if reply.status != 200 {
        return Err(refused(io::Error::other(format!("status {}", reply.status))));
    }
    serde_json::from_str(&reply.body).map_err(|error| refused(io::Error::other(error)))
}

/// Requests that the control plane of a mesh begins or aborts a rotation of the root certificate. The control
/// plane reacts within a second, or when it runs again.
///
/// # Errors
/// When the mesh does not run, or the request cannot be written.
pub fn ask(layout: &Layout, verb: OperatorVerb) -> Result<OperatorRequest> {
    MeshStatus::read(layout)?;
    let asked = AuthorityDirectory::new(&layout.control()).ask(verb).map_err(io::Error::other);
    asked.attempt(|| format!("cannot query the control plane of mesh {}", layout.mesh()))
}
