//! The address of the control plane, and where certificates come from.

use std::path::PathBuf;

use leno_types::{Identity, InstanceName, TrustDomain, WorkloadApiAddress};
use leno_wire::proto;

use crate::certificate_files::CertificateFiles;

/// Everything that a proxy needs to reach its control plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The control plane, `host:port` or `https://host:port`.
    pub control: String,
    /// PEM file with the roots for the control plane's certificate. Read again for each connection.
    pub roots: PathBuf,
    /// Where certificates come from.
    pub certificates: CertificateSource,
    /// The workload instance that the proxy serves.
    pub instance: InstanceName,
    /// The uid of the instance's pod, where the token is that of a node proxy; `None` where it is the instance's own.
    pub pod_uid: Option<String>,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
}

/// Where a proxy gets its certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// Of the control plane, against the token in this file. Read again for each request.
    Token(PathBuf),
    /// Of a SPIFFE Workload API, such as SPIRE's, which has to issue this identity.
    WorkloadApi(WorkloadApiAddress, Identity),
    /// Of a kubelet, in these files; of the control plane against the token in the last one, where they have none that is usable.
    Files(CertificateFiles, PathBuf),
}

impl CertificateSource {
    /// The file with the token of the workload.
    pub(crate) fn token(&self) -> Option<&PathBuf> {
        match self {
            Self::Token(file) | Self::Files(_, file) => Some(file),
            Self::WorkloadApi(..) => None,
        }
    }
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
