//! The address of the control plane, and the files for authentication.

use std::path::PathBuf;

use leno_types::{InstanceName, TrustDomain};
use leno_wire::proto;

/// Everything that a proxy needs to reach its control plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The control plane, `host:port` or `https://host:port`.
    pub control: String,
    /// PEM file with the roots for the control plane's certificate. Read again for each connection.
    pub roots: PathBuf,
    /// File with the token that authenticates certificate requests. Read again for each request.
    pub token: PathBuf,
    /// The workload instance that the proxy serves.
    pub instance: InstanceName,
    /// The uid of the instance's pod, where the token is that of a node proxy; `None` where it is the instance's own.
    pub pod_uid: Option<String>,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
}

impl Settings {
    /// The pod that a node proxy requests a certificate for.
    pub(crate) fn served_pod(&self) -> Option<proto::ServedPod> {
        let (namespace, name) =
            (self.instance.namespace.to_string(), self.instance.name.to_string());
        self.pod_uid.clone().map(|uid| proto::ServedPod { namespace, name, uid })
    }

    /// `host:port`.
    pub(crate) fn authority(&self) -> &str {
        let text = self.control.as_str();
        text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/')
    }
}
