//! Where the control plane is and how a proxy proves itself to it.

use std::path::PathBuf;

use leno_types::{InstanceName, TrustDomain};

/// Everything a proxy needs to know to reach its control plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The control plane, `host:port` or `https://host:port`.
    pub control: String,
    /// PEM file with the roots that the control plane's certificate is checked against. Read anew
    /// for each connection.
    pub roots: PathBuf,
    /// File with the token that authenticates certificate requests. Read anew for each request.
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
