//! `Proxy`: configures one proxy that runs without a control plane, for tests and benches.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use leno_types::{MtlsMode, NameError, ServiceName};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::metadata::Metadata;

/// A static proxy, of the API version `leno.dev/v1alpha1`. `metadata.name` is the workload instance that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The name and the namespace of the instance that the proxy serves.
    pub metadata: Metadata,
    /// How the proxy runs.
    pub spec: ProxySpec,
}

/// How a static proxy runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxySpec {
    /// The number of worker threads.
    #[serde(default = "default_workers")]
    pub workers: u32,
    /// Where the admin server listens; `None` means no admin server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin: Option<SocketAddr>,
    /// The outbound side; `None` means no outbound listener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outbound: Option<OutboundSpec>,
    /// The inbound side; `None` means no inbound listener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inbound: Option<InboundSpec>,
    /// Certificate, key and roots; `None` means plaintext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<ProxyIdentity>,
    /// Whether plaintext is accepted. Default: permissive with an identity, disabled without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtls: Option<MtlsMode>,
}

/// The outbound listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutboundSpec {
    /// The address on which the proxy listens.
    pub listen: SocketAddr,
    /// The service to which every accepted connection goes. Default: the original destination decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceReference>,
}

/// The inbound listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboundSpec {
    /// The address on which the proxy listens.
    pub listen: SocketAddr,
    /// The address on which the application listens. Default: the original destination decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application: Option<SocketAddr>,
}

/// The proxy's certificate, key and roots, as PEM files. Paths are relative to the document's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyIdentity {
    /// The certificate chain. The proxy's own certificate is the first.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// The trust bundle: the certificates of the authorities that the proxy trusts.
    pub roots: PathBuf,
}

/// A service and one of its ports, written `<namespace>/<name>:<port>`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceReference {
    /// The service.
    pub name: ServiceName,
    /// The port to which clients connect.
    pub port: u16,
}

/// Why a text is not a [`ServiceReference`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceReferenceError {
    /// The text is not of the form `<namespace>/<name>:<port>`.
    #[error("{0:?} is not of the form <namespace>/<name>:<port>")]
    Form(String),
    /// The name of the service is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl fmt::Display for ServiceReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

impl FromStr for ServiceReference {
    type Err = ServiceReferenceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || ServiceReferenceError::Form(text.to_owned());
        let (name, port) = text.rsplit_once(':').ok_or_else(form)?;
        let port: u16 = port.parse().map_err(|_| form())?;
        if port == 0 {
            return Err(form());
        }
        Ok(Self { name: name.parse()?, port })
    }
}

impl Serialize for ServiceReference {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ServiceReference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

fn default_workers() -> u32 {
    1
}
