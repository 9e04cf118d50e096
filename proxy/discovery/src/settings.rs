//! The address of the control plane, and where certificates come from.

use std::path::PathBuf;

use leno_types::{Identity, InstanceName, TrustDomain, WorkloadApiAddress};
use leno_wire::proto;

use crate::certificate_files::CertificateFiles;

/// The settings with which a proxy reaches its control plane.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The control plane, `host:port` or `https://host:port`.
    pub control: String,
    /// The PEM file with the roots that verify the control plane's certificate. It is read again for each connection.
    pub roots: PathBuf,
    /// Where certificates come from.
    pub certificates: CertificateSource,
    /// The workload instance that the proxy serves.
    pub instance: InstanceName,
    /// The uid of the instance's pod, if the token is that of a node proxy; `None` if the token is the instance's own.
    pub pod_uid: Option<String>,
    /// The trust domain of the mesh.
    pub trust_domain: TrustDomain,
}

/// Where a proxy gets its certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// From the control plane, with the token in this file. Read again for each request.
    Token(PathBuf),
    /// From a SPIFFE Workload API, such as SPIRE's, which must issue this identity.
    WorkloadApi(WorkloadApiAddress, Identity),
    /// From a kubelet, in these files. If they contain no usable certificate, from the control plane with the token in
    /// the file of the second field.
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
    /// The pod for which a node proxy requests a certificate.
    pub(crate) fn served_pod(&self) -> Option<proto::ServedPod> {
        let (namespace, name) =
            (self.instance.namespace.to_string(), self.instance.name.to_string());
        self.pod_uid.clone().map(|uid| proto::ServedPod { namespace, name, uid })
    }

    /// The address of the control plane as `host:port`.
    pub(crate) fn authority(&self) -> &str {
        let text = self.control.as_str();
        text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/')
    }
}
