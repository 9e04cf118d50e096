//! The chart's values, typed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, VALUES};

/// All values of `values.yaml`, which documents them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Values {
    /// The registry, tag and pull policy of the images.
    pub image: Image,
    /// The trust domain of identities.
    pub trust_domain: String,
    /// Which cryptography TLS uses.
    pub tls_profile: TlsProfile,
    /// What issues certificates.
    pub identity: Identity,
    /// How workloads treat plaintext without an annotation.
    pub mtls: Mtls,
    /// Whether workloads without an annotation may connect to destinations outside of the mesh.
    pub egress: Egress,
    /// Run three replicas of the control plane on different nodes.
    pub ha: bool,
    /// The control plane.
    pub controller: Controller,
    /// The agents of the nodes.
    pub agent: Agent,
    /// The history of the mesh.
    pub observer: Observer,
    /// The proxies of pods in node mode.
    pub node: Node,
    /// The proxies that are injected into pods.
    pub proxy: Proxy,
    /// The webhooks by which the API server calls the control plane.
    pub webhook: Webhook,
    /// Gateways that become waypoints.
    pub waypoints: Waypoints,
}

/// Gateways that become waypoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Waypoints {
    /// Whether they do, for which the control plane needs the right to keep Deployments, Services and service accounts.
    pub enabled: bool,
}

/// Which cryptography TLS uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TlsProfile {
    /// What is fast and held to be safe.
    Default,
    /// What FIPS 140-3 approves, of images that have the module.
    Fips,
}

/// What issues certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// Whether the roots are published as a `ClusterTrustBundle`.
    pub cluster_trust_bundle: bool,
    /// Whether certificates are signed that kubelets request for pods.
    pub pod_certificates: bool,
    /// A SPIFFE Workload API in place of the control plane.
    pub workload_api: WorkloadApi,
}

/// A SPIFFE Workload API that issues the certificates of pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadApi {
    /// How pods reach it, if they do.
    pub volume: WorkloadApiVolume,
    /// The CSI driver.
    pub csi_driver: String,
    /// The folder of the node.
    #[cfg_attr(test, schemars(regex(pattern = r"^(/[A-Za-z0-9._-]+)+$")))]
    pub host_path: String,
    /// The name of the socket in the volume.
    pub socket: String,
}

/// How pods reach a Workload API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WorkloadApiVolume {
    /// Not at all: the control plane issues certificates.
    #[serde(rename = "")]
    None,
    /// By a volume of a CSI driver.
    Csi,
    /// By a folder of the node.
    HostPath,
}

impl WorkloadApi {
    /// The volume as the control plane's `--proxy-workload-api` has it.
    #[must_use]
    pub fn setting(&self) -> Option<String> {
        match self.volume {
            WorkloadApiVolume::None => None,
            WorkloadApiVolume::Csi => Some(format!("csi:{}/{}", self.csi_driver, self.socket)),
            WorkloadApiVolume::HostPath => {
                Some(format!("hostPath:{}/{}", self.host_path, self.socket))
            }
        }
    }
}

/// The registry, tag and pull policy of the images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Image {
    /// The prefix of their names, without the slash; may be empty.
    pub registry: String,
    /// Their tag; if it is empty Leno's version, and `-fips` behind it with the profile of that name.
    pub tag: String,
    /// Their digests, which go before the tag.
    pub digests: Digests,
    /// When a node pulls them.
    pub pull_policy: PullPolicy,
    /// By which nodes log in to the registry.
    pub pull_secrets: Vec<PullSecret>,
}

/// Digests of the images, `sha256:...`; empty where the tag names the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Digests {
    /// Of `leno-proxy`.
    pub proxy: String,
    /// Of `leno-controller`.
    pub controller: String,
    /// Of `leno-agent`.
    pub agent: String,
}

/// A Secret with credentials of a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecret {
    /// Its name.
    pub name: String,
}

/// When a node pulls an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[expect(missing_docs, reason = "Kubernetes' own words")]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// How workloads treat plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mtls {
    /// It is refused.
    Strict,
    /// It is served; connections are encrypted if both sides have a proxy.
    Permissive,
    /// All connections are plaintext.
    Disabled,
}

/// The destinations that workloads may connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Egress {
    /// Any destination.
    Allow,
    /// Only destinations in the mesh.
    Deny,
}

/// The control plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Controller {
    /// Number of replicas; 0 means one, or three with `ha`.
    pub replicas: u32,
    /// The lifetime of workloads' certificates.
    pub cert_lifetime: String,
    /// The Secret with an issuer; without one the mesh has a root of its own.
    pub issuer_secret: String,
    /// Other trust domains whose workloads are accepted as clients, as the control plane's `--federate` has them.
    pub federate: String,
    /// The `ConfigMap` with trust bundles, which is mounted for `federate`.
    pub federation_config_map: String,
    /// The `ConfigMap` with further authorities of servers of https.
    pub authorities_config_map: String,
    /// Where other trust domains fetch the trust bundle of this one.
    pub bundle_endpoint: BundleEndpoint,
    /// How long each phase of a rotation of the root lasts at least.
    pub phase_hold: String,
    /// How long a proxy stays connected to one replica, plus or minus a quarter.
    pub stream_age: String,
    /// The log filter.
    pub log: String,
    /// The labels of the nodes that it may run on.
    pub node_selector: Map<String, Value>,
    /// The taints of nodes that it may run on all the same (Kubernetes' `Toleration`s).
    pub tolerations: Vec<Map<String, Value>>,
    /// Near what it is to run (Kubernetes' `Affinity`).
    pub affinity: Map<String, Value>,
    /// Its requests and limits (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// The history of the mesh.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Observer {
    /// Whether there is one.
    pub enabled: bool,
    /// Who may reach it (Kubernetes' `Subject`s).
    pub readers: Vec<Map<String, Value>>,
    /// The size of the volume of its file; without one the file ends with the pod.
    pub storage: String,
    /// The class of that volume; the cluster's default if empty.
    pub storage_class: String,
    /// The log filter.
    pub log: String,
    /// The labels of the nodes that it may run on.
    pub node_selector: Map<String, Value>,
    /// The taints of nodes that it may run on all the same (Kubernetes' `Toleration`s).
    pub tolerations: Vec<Map<String, Value>>,
    /// Near what it is to run (Kubernetes' `Affinity`).
    pub affinity: Map<String, Value>,
    /// Its requests and limits (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// The proxies of pods in node mode, and their supervisors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Node {
    /// How long streams may go on after the next supervisor has taken their pods over, in seconds. The grace of a
    /// supervisor's pod.
    #[cfg_attr(test, schemars(range(min = 10)))]
    pub drain_seconds: u32,
    /// How long a pod may use more than `promoteAbovePercent` of a CPU before it gets a process of its own, in seconds; 0: it
    /// does not get one.
    pub promote_after_seconds: u32,
    /// What a shared process may use of a CPU for one pod, in percent, before that is promoted.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    pub promote_above_percent: u32,
    /// Most new connections a second of a pod, and of each client address of a pod; 0: as many as come.
    pub connection_rate: u32,
    /// Whether what pods of one process send to each other goes from one to the other in memory, once they have a connection
    /// of mTLS over the network.
    pub one_pass: bool,
    /// Whether agents report in the status of pods that node proxies serve them, and other proxies go by that.
    pub report_served: bool,
    /// What all proxies of a node request, and their limits (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// Where other trust domains fetch the trust bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleEndpoint {
    /// Whether there is one.
    pub enabled: bool,
    /// The Secret with its certificate; without one it has the control plane's SPIFFE ID.
    pub certificate_secret: String,
    /// How often other trust domains should fetch the bundle.
    pub refresh: String,
    /// The type of its Service.
    pub service_type: ServiceType,
    /// The annotations of its Service.
    pub annotations: Map<String, Value>,
}

/// The type of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum ServiceType {
    ClusterIP,
    NodePort,
    LoadBalancer,
}

/// The agents of the nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Agent {
    /// The nodes' folder of CNI configurations.
    pub cni_configuration: String,
    /// The nodes' folder of CNI plugins.
    pub cni_plugins: String,
    /// The nodes' folder of the kubelet.
    pub kubelet: String,
    /// The log filter.
    pub log: String,
    /// How the connections of pods are accounted for in the kernel.
    pub flows: Flows,
    /// The labels of the nodes that have one.
    pub node_selector: Map<String, Value>,
    /// The taints of nodes that have one all the same (Kubernetes' `Toleration`s).
    pub tolerations: Vec<Map<String, Value>>,
    /// Which nodes have one (Kubernetes' `Affinity`).
    pub affinity: Map<String, Value>,
    /// Their requests and limits (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// How the connections of pods are accounted for in the kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Flows {
    /// Where they are read, where a pod does not say.
    pub source: FlowSource,
    /// Connections that the table holds.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_048_576)))]
    pub map_size: u32,
    /// Changes of connections that may wait for a reader.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_048_576)))]
    pub ring_size: u32,
    /// The most CPU time of a node that it takes, such as `1%`, or `none`.
    pub cpu_budget: String,
}

/// Where flows are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FlowSource {
    /// The kernel's own counters of sockets.
    Sockets,
    /// The frames of their interfaces.
    Packets,
    /// The frames of their interfaces, and of pods without a proxy the requests in them.
    Requests,
    /// Nowhere, of no pod. In a file of values it is quoted: YAML takes a bare `off` for `false`.
    Off,
}

/// The proxies that are injected into pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proxy {
    /// The kind of container that they run as.
    pub shape: Shape,
    /// The log filter.
    pub log: String,
    /// Where spans of requests go, and of which; nothing for none.
    pub traces: String,
    /// What is logged of each request, and as what; nothing for no log.
    pub access_log: String,
    /// The meshes under whose names metrics are served too; nothing for none.
    pub metrics_compat: String,
    /// From which addresses metrics may be asked for; nothing for all.
    pub scrape_from: String,
    /// Seconds for which containers without a `preStop` hook wait before SIGTERM; 0 for none.
    pub pre_stop_sleep: u32,
    /// Whether `leno trace-request --bodies` may show the first 4 KiB of bodies.
    pub tap_bodies: bool,
}

/// The kind of container that a proxy runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// A native sidecar (KEP-753).
    Sidecar,
    /// An ordinary container, for Kubernetes before 1.29.
    Container,
}

/// The webhooks by which the API server calls the control plane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Webhook {
    /// What happens to pods while no controller answers.
    pub failure_policy: FailurePolicy,
}

/// What happens to pods that should have a proxy while no controller answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum FailurePolicy {
    /// They are not created.
    Fail,
    /// They are created without a proxy.
    Ignore,
}

impl Values {
    /// The chart's default values.
    ///
    /// # Panics
    /// Never: a test reads them.
    #[must_use]
    pub fn defaults() -> Self {
        let text: Value = serde_saphyr::from_str(VALUES).expect("values.yaml is YAML");
        serde_json::from_value(text).expect("values.yaml has what the chart wants")
    }

    /// The chart's values, changed by files (in their order) and then by settings such as
    /// `controller.log=debug`.
    ///
    /// # Errors
    /// If a file is not YAML, a setting has no `=`, the chart does not have a name, or a value has
    /// the wrong type.
    pub fn load(files: &[(String, String)], settings: &[String]) -> Result<Self, Error> {
        let mut values = serde_json::to_value(Self::defaults()).expect("values are plain data");
        for (name, text) in files {
            let changes: Value = serde_saphyr::from_str(text)
                .map_err(|error| Error::Values(name.clone(), error.to_string()))?;
            if !changes.is_null() {
                merge(&mut values, changes);
                check(&values).map_err(|reason| Error::Values(name.clone(), reason))?;
            }
        }
        for setting in settings {
            let (path, text) = setting
                .split_once('=')
                .ok_or_else(|| Error::Values(setting.clone(), "write NAME=VALUE".to_owned()))?;
            let there = values.pointer(&format!("/{}", path.replace('.', "/")));
            // Stays a text even if it looks like a number, as a tag may.
            let is_text = there.is_some_and(Value::is_string) && text != "null";
            let value = if is_text { Value::from(text) } else { plain(text) };
            let change = path
                .rsplit('.')
                .fold(value, |inner, key| Value::Object(Map::from_iter([(key.to_owned(), inner)])));
            merge(&mut values, change);
            check(&values).map_err(|reason| Error::Values(setting.clone(), reason))?;
        }
        serde_json::from_value(values)
            .map_err(|error| Error::Values("values".to_owned(), error.to_string()))
    }
}

impl Values {
    /// The image `name` of an installation of `version`, under the name that the chart gives it.
    #[must_use]
    pub fn image_named(&self, name: &str, version: &str) -> String {
        match self.tls_profile {
            TlsProfile::Default => self.image.named(name, version),
            TlsProfile::Fips => self.image.named(name, &format!("{version}-fips")),
        }
    }
}

impl Image {
    /// `default_tag` is that of an empty one.
    fn named(&self, name: &str, default_tag: &str) -> String {
        let tag = if self.tag.is_empty() { default_tag } else { &self.tag };
        let digest = match name {
            "leno-proxy" => self.digests.proxy.as_str(),
            "leno-controller" => self.digests.controller.as_str(),
            "leno-agent" => self.digests.agent.as_str(),
            _ => "",
        };
        let which = if digest.is_empty() { format!(":{tag}") } else { format!("@{digest}") };
        match self.registry.as_str() {
            "" => format!("{name}{which}"),
            registry => format!("{registry}/{name}{which}"),
        }
    }
}

fn check(values: &Value) -> Result<(), String> {
    serde_json::from_value::<Values>(values.clone()).map(drop).map_err(|error| error.to_string())
}

/// Parses a setting's value as Helm's `--set` does: boolean, null, number or text.
fn plain(value: &str) -> Value {
    match value {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "null" => Value::Null,
        number => number.parse::<i64>().map_or_else(|_| Value::from(number), Value::from),
    }
}

/// Merges `changes` into `values`, map by map, as Helm does.
fn merge(values: &mut Value, changes: Value) {
    match (values, changes) {
        (Value::Object(values), Value::Object(changes)) => {
            for (key, change) in changes {
                if change.is_null() {
                    values.remove(&key);
                } else {
                    merge(values.entry(key).or_insert(Value::Null), change);
                }
            }
        }
        (value, change) => *value = change,
    }
}
