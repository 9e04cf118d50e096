//! `Workload`: a local process, or a machine outside of Kubernetes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use leno_types::Protocol;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::bounded::number;
use crate::cron::Cron;
use crate::duration::Duration;
use crate::metadata::Metadata;
use crate::process::{
    Account, Dependency, ExecCommand, Probe, ProcessResources, RestartPolicy, StopSignal, Volume,
};

/// The largest number of replicas of one workload. Each is a network namespace, a proxy and a process on one machine.
pub const MAX_REPLICAS: u32 = 250;
/// The largest number of ports of one workload or service, as in an `EndpointSlice`.
pub const MAX_PORTS: usize = 100;

/// A set of identical instances, `leno.dev/v1alpha1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name, labels and annotations.
    pub metadata: Metadata,
    /// What the user declares.
    pub spec: WorkloadSpec,
    /// The instances that run. `leno up` writes it into its state file; in a cluster it is a subresource,
    /// which a right to `workloads` does not include.
    pub status: Option<WorkloadStatus>,
}

/// What a workload runs and serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// The service account that its identity names.
    #[serde(default = "default_service_account")]
    pub service_account: String,
    /// The number of instances: 1 by default, at most 250.
    #[serde(default = "default_replicas", deserialize_with = "number::<_, 0, MAX_REPLICAS>")]
    pub replicas: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Environment variables of the program.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Files with lines `NAME=VALUE`, relative to the document's directory; `env` takes precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_file: Vec<String>,
    /// Variables that are copied from the environment of `leno up`: a name, `PREFIX_*`, or `*` for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inherit_env: Vec<String>,
    /// The directory that is its root file system, `/`, relative to the document's directory; default: this
    /// machine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The working directory of the program, relative to the document's directory; with a `root` an absolute
    /// path in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The ports that the program listens on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<WorkloadPort>,
    /// The user that it runs as; default: the user who started `leno up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Account>,
    /// The group that it runs as; default: the user's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Account>,
    /// Files and directories that it sees at other places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// What it may use.
    #[serde(default, skip_serializing_if = "ProcessResources::is_empty")]
    pub resources: ProcessResources,
    /// Commands that run before it, one after the other; each must exit with 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init: Vec<ExecCommand>,
    /// Has it run at set times, and end each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<Cron>,
    /// When it is started again after its end.
    #[serde(default, skip_serializing_if = "RestartPolicy::is_default")]
    pub restart: RestartPolicy,
    /// The signal that asks it to end; default: SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<StopSignal>,
    /// How long it may take to end; default: `--grace` of `leno up`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_period: Option<Duration>,
    /// Workloads that come first, by name or `namespace/name`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub depends_on: BTreeMap<String, Dependency>,
    /// Whether it takes traffic; default: once it listens on its ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Probe>,
    /// Whether it is alive; if not, it is started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Probe>,
}

/// One port of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPort {
    /// Its name; may be empty if the workload has no other port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its number.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// The protocol, as in a Kubernetes `Service`. Without it proxies detect the protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    /// A port of this machine that is forwarded to this port: `8080` on 127.0.0.1, or an address with a
    /// port, such as `0.0.0.0:8080`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<PublishedPort>,
}

/// An address of this machine: `8080` on 127.0.0.1, or `ADDRESS:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedPort(pub SocketAddr);

impl<'de> Deserialize<'de> for PublishedPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrText;

        impl de::Visitor<'_> for NumberOrText {
            type Value = PublishedPort;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port, or ADDRESS:PORT")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<PublishedPort, E> {
                match u16::try_from(number) {
                    Ok(port) if port > 0 => Ok(PublishedPort((Ipv4Addr::LOCALHOST, port).into())),
                    _ => Err(E::custom(format_args!("{number} is not a port: use 1 to 65535"))),
                }
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<PublishedPort, E> {
                Err(E::custom(format_args!("{number} is not a port: use 1 to 65535")))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<PublishedPort, E> {
                if let Ok(number) = text.parse() {
                    return self.visit_u64(number);
                }
                let address: Option<SocketAddr> =
                    text.parse().ok().filter(|a: &SocketAddr| a.port() > 0);
                address.map(PublishedPort).ok_or_else(|| {
                    let example = "8080 (on loopback) or 0.0.0.0:8080";
                    E::custom(format_args!(
                        "{text:?} is not a port of this machine: write {example}"
                    ))
                })
            }
        }

        deserializer.deserialize_any(NumberOrText)
    }
}

impl Serialize for PublishedPort {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for PublishedPort {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PublishedPort".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

/// The running instances.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorkloadStatus {
    /// The running instances, by ascending number.
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
    /// Whether it accepts traffic.
    #[serde(default)]
    pub ready: bool,
    /// Whether it is terminating.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ending: bool,
    /// Set if the instance is a pod. Never read from a document: only the source that read the pod from the
    /// API server can set it, so that no object can pretend to be a pod.
    #[serde(skip)]
    pub pod: Option<PodHost>,
}

/// The node under a pod, and what the agent of that node reports of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodHost {
    /// The addresses of the node.
    pub addresses: Vec<IpAddr>,
    /// Whether the pod uses the node's network, so that its addresses are the node's.
    pub shared: bool,
    /// Whether the agent of the node reports that a node proxy serves the pod
    /// ([`SERVED_CONDITION`](crate::SERVED_CONDITION)).
    pub served: bool,
}

impl Workload {
    /// The name of instance `number`, from 0.
    #[must_use]
    pub fn instance_name(&self, number: u32) -> String {
        format!("{}-{number}", self.metadata.name)
    }
}

impl WorkloadPort {
    /// The protocol of the port.
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
