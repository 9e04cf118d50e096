//! `Workload`: a local process, or a machine outside of Kubernetes.

use std::collections::BTreeMap;
use std::net::IpAddr;

use leno_types::Protocol;
use serde::{Deserialize, Deserializer, Serialize};

use crate::metadata::Metadata;

/// Most replicas of one workload: each is a network namespace, a proxy and a process of one machine.
pub const MAX_REPLICAS: u32 = 250;
/// Most ports of one workload or service, as in an `EndpointSlice`.
pub const MAX_PORTS: usize = 100;

/// A set of equal instances, `leno.dev/v1alpha1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// What is wanted.
    pub spec: WorkloadSpec,
    /// What runs; written by `leno up`, not by people.
    pub status: Option<WorkloadStatus>,
}

/// What a workload runs and serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// The service account that its identity names.
    #[serde(default = "default_service_account")]
    pub service_account: String,
    /// How many instances, at most [`MAX_REPLICAS`].
    #[serde(default = "default_replicas")]
    pub replicas: u32,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment variables added to those of `leno up`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Where the command runs, relative to the document's own directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The ports it serves.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<WorkloadPort>,
}

/// One port of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPort {
    /// Its name; may be empty when it is the only one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its number.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// What it carries, as in a Kubernetes `Service`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

/// The instances that run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorkloadStatus {
    /// By ascending number.
    #[serde(default)]
    pub instances: Vec<InstanceStatus>,
}

/// One running instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InstanceStatus {
    /// `<workload>-<number>`.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it has a proxy.
    #[serde(default)]
    pub meshed: bool,
    /// Whether it takes traffic.
    #[serde(default)]
    pub ready: bool,
    /// Whether it has been told to end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
}

impl Workload {
    /// The name of instance `number`, from 0.
    #[must_use]
    pub fn instance_name(&self, number: u32) -> String {
        format!("{}-{number}", self.metadata.name)
    }
}

impl WorkloadPort {
    /// What the port carries.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        Protocol::from_app_protocol(self.app_protocol.as_deref())
    }
}

fn default_service_account() -> String {
    "default".to_owned()
}

fn default_replicas() -> u32 {
    1
}

fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let number = i64::deserialize(deserializer)?;
    match u16::try_from(number) {
        Ok(port) if port > 0 => Ok(port),
        _ => Err(serde::de::Error::custom(format_args!("{number} is not a port: use 1 to 65535"))),
    }
}
