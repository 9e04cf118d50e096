//! The address of the control plane, and the files for authentication.

use std::path::PathBuf;

use leno_types::{InstanceName, TrustDomain};

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
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
}

impl Settings {
    /// `host:port`.
    pub(crate) fn authority(&self) -> &str {
        let text = self.control.as_str();
        text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/')
    }
}
