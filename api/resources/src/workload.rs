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

/// The processes that `leno up` runs, what they need, and the ports on which they serve. A relative path starts at
/// the directory of the document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkloadSpec {
    /// The name of the service account in the SPIFFE ID of the workload. The default is `default`.
    #[serde(default = "default_service_account")]
    pub service_account: String,
    /// The number of instances. The default is 1; from 0 to 250. 0 runs none.
    #[serde(default = "default_replicas", deserialize_with = "number::<_, 0, MAX_REPLICAS>")]
    pub replicas: u32,
    /// The program and its arguments. They are not interpreted by a shell.
    pub command: Vec<String>,
    /// Environment variables of the program. They take precedence over `envFile` and `inheritEnv`. By default the
    /// program gets only a few of the variables of `leno up`, such as PATH and HOME.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Files with lines `NAME=VALUE` that set environment variables of the program, each at most 1 MiB. A relative
    /// path starts at the document's directory. `env` takes precedence. They are read at each start of the program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_file: Vec<String>,
    /// The environment variables of `leno up` that the program gets as well: a name, the beginning of names
    /// (`AWS_*`), or `*` for all. `env` and `envFile` take precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inherit_env: Vec<String>,
    /// The directory that the program sees as `/`, relative to the document's directory. It is not copied, and does
    /// not confine the program. By default the program sees the file system of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The working directory of the program, relative to the document's directory, which is the default. With `root`
    /// it must be an absolute path in that directory, and the default is `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The ports on which the program listens, at most 100. A workload with ports gets a Service of its own name if
    /// there is none. Ports 15001, 15006 and 15020 belong to the proxy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<WorkloadPort>,
    /// The user as which the program runs, a name or a number. The default is the user who started `leno up`, also by
    /// `sudo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Account>,
    /// The group as which the program runs, a name or a number. The default is the group of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<Account>,
    /// Files and directories of this machine that the program sees at other paths, at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Limits on the CPU time and memory of an instance. By default there are none.
    #[serde(default, skip_serializing_if = "ProcessResources::is_empty")]
    pub resources: ProcessResources,
    /// Commands that run before the program, in the same environment, one after the other, at most 50. Each must exit
    /// with 0. If one fails, `restart` decides whether it runs again. They run once for each start of the instance.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub init: Vec<ExecCommand>,
    /// Runs the program at set times, to completion. Such a workload gets no traffic: it must not have `ports`,
    /// `readiness` or `liveness`. By default the program runs all the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<Cron>,
    /// When the program is started again after it has exited: `always` (the default), `on-failure` (unless it exited
    /// with 0) or `never`. The wait before a restart is 1s, 2s, 4s, up to 30s.
    #[serde(default, skip_serializing_if = "RestartPolicy::is_default")]
    pub restart: RestartPolicy,
    /// The signal that tells the program to exit, as a name or number, such as SIGQUIT. The default is SIGTERM.
    /// SIGKILL and SIGSTOP are rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<StopSignal>,
    /// How long the program may take to exit after the stop signal, at most 24h. Then it is killed with all its child
    /// processes. The default is `--grace` of `leno up`, which is 10s by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_grace_period: Option<Duration>,
    /// The workloads that must have started first, by name, or by `namespace/name`; at most 50. Each start of an
    /// instance waits for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub depends_on: BTreeMap<String, Dependency>,
    /// A probe that decides whether an instance gets traffic. An instance whose probe fails is not restarted. By
    /// default an instance gets traffic when it listens on all its ports, or after 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness: Option<Probe>,
    /// A probe that decides whether the program works. If it fails, the program is stopped and started again. Its
    /// `successThreshold` must be 1. By default the program is only started again after it has exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness: Option<Probe>,
}

/// A port on which the program listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WorkloadPort {
    /// The name of the port. It may be left out if the workload has only one port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The number of the port, from 1 to 65535. Each number must be unique.
    #[serde(deserialize_with = "port")]
    pub port: u16,
    /// The protocol that the port carries, with the values of a Kubernetes Service. By default the proxies detect it
    /// from the first bytes of a connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
    /// The port of this machine that leads to this port, without a proxy: `8080` listens on 127.0.0.1, `0.0.0.0:8080`
    /// on all IPv4 addresses. By default there is none.
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

/// The running instances of the workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct WorkloadStatus {
    /// The running instances, in ascending order of their numbers.
    #[serde(default)]
    pub instances: Vec<InstanceStatus>,
}

/// A running instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct InstanceStatus {
    /// The name of the instance, `<workload>-<number>`. Numbers start at 0.
    pub name: String,
    /// The IP addresses of the instance. No other instance may have the same.
    pub addresses: Vec<IpAddr>,
    /// Whether the instance has a proxy. The default is false.
    #[serde(default)]
    pub meshed: bool,
    /// Whether the instance accepts traffic. The default is false.
    #[serde(default)]
    pub ready: bool,
    /// Whether the instance is about to exit, so that it gets no new requests. The default is false.
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
