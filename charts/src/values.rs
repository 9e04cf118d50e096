//! The chart's values, typed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, VALUES};

/// All values of `values.yaml`, which describes each of them with its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Values {
    /// The registry, tag and pull policy of the images.
    pub image: Image,
    /// The trust domain of identities.
    pub trust_domain: String,
    /// The cryptography that TLS uses.
    pub tls_profile: TlsProfile,
    /// How certificates are issued.
    pub identity: Identity,
    /// Whether workloads without the annotation `leno.dev/mtls` accept plaintext.
    pub mtls: Mtls,
    /// Whether workloads without the annotation `leno.dev/egress` may connect to destinations outside of the mesh.
    pub egress: Egress,
    /// Whether to run three replicas of the control plane on different nodes.
    pub ha: bool,
    /// The control plane.
    pub controller: Controller,
    /// The agents of the nodes.
    pub agent: Agent,
    /// The observer, which stores the history of the mesh.
    pub observer: Observer,
    /// The proxies of pods in node mode.
    pub node: Node,
    /// The proxies that are injected into pods.
    pub proxy: Proxy,
    /// The webhooks by which the API server calls the control plane.
    pub webhook: Webhook,
    /// Whether Gateways become waypoints.
    pub waypoints: Waypoints,
}

/// Whether Gateways become waypoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Waypoints {
    /// Whether to create a Deployment of proxies for each Gateway of the class `leno-waypoint`. It gives the control
    /// plane the right to create Deployments, Services and service accounts.
    pub enabled: bool,
}

/// The cryptography that TLS uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TlsProfile {
    /// Algorithms that are fast and considered secure.
    Default,
    /// Algorithms that FIPS 140-3 approves. Requires images with the FIPS module.
    Fips,
}

/// How certificates are issued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// Whether to publish the mesh's roots as a `ClusterTrustBundle`.
    pub cluster_trust_bundle: bool,
    /// Whether to sign the certificates that kubelets request for pods.
    pub pod_certificates: bool,
    /// A SPIFFE Workload API that issues the certificates of pods in place of the control plane.
    pub workload_api: WorkloadApi,
}

/// A SPIFFE Workload API that issues the certificates of pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct WorkloadApi {
    /// How pods reach it.
    pub volume: WorkloadApiVolume,
    /// The name of the CSI driver, for the volume `csi`.
    pub csi_driver: String,
    /// The folder of the node, for the volume `hostPath`.
    #[cfg_attr(test, schemars(regex(pattern = r"^(/[A-Za-z0-9._-]+)+$")))]
    pub host_path: String,
    /// The name of the socket in the volume or folder.
    pub socket: String,
}

/// How pods reach a Workload API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum WorkloadApiVolume {
    /// No pod uses a Workload API: the control plane issues certificates.
    #[serde(rename = "")]
    None,
    /// Pods have a volume of a CSI driver.
    Csi,
    /// Pods have a folder of the node.
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
    /// The prefix of the images' names, without the slash at its end; may be empty.
    pub registry: String,
    /// The tag of the images. An empty tag means Leno's version, followed by `-fips` with the profile `fips`.
    pub tag: String,
    /// The digests of the images, which are used in place of the tag.
    pub digests: Digests,
    /// When nodes pull the images.
    pub pull_policy: PullPolicy,
    /// The Secrets with which nodes log in to the registry.
    pub pull_secrets: Vec<PullSecret>,
}

/// Digests of the images, `sha256:...`. An empty digest means that the tag is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Digests {
    /// The digest of `leno-proxy`.
    pub proxy: String,
    /// The digest of `leno-controller`.
    pub controller: String,
    /// The digest of `leno-agent`.
    pub agent: String,
}

/// A Secret with credentials for a registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PullSecret {
    /// The name of the Secret.
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

/// Whether workloads accept plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mtls {
    /// Plaintext is refused.
    Strict,
    /// Plaintext is accepted. Connections use mTLS if both sides have a proxy.
    Permissive,
    /// All connections are plaintext.
    Disabled,
}

/// The destinations to which workloads may connect.
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
    /// The number of replicas; 0 means one, or three with `ha`.
    pub replicas: u32,
    /// The lifetime of workloads' certificates, such as `24h`.
    pub cert_lifetime: String,
    /// The name of a Secret with an issuer that signs all certificates. If it is empty, the mesh creates a root of
    /// its own.
    pub issuer_secret: String,
    /// Other trust domains whose workloads are accepted as clients, in the form of the controller's `--federate`.
    pub federate: String,
    /// The name of a `ConfigMap` with trust bundles, which is mounted for `federate`.
    pub federation_config_map: String,
    /// The name of a `ConfigMap` with additional authorities of HTTPS servers.
    pub authorities_config_map: String,
    /// The endpoint from which other trust domains fetch the trust bundle of this one.
    pub bundle_endpoint: BundleEndpoint,
    /// How long each phase of a rotation of the root lasts at least, from `1s` to `24h`.
    pub phase_hold: String,
    /// How long a proxy stays connected to one replica, plus or minus a quarter, from `10s` to `24h`.
    pub stream_age: String,
    /// The log filter.
    pub log: String,
    /// The labels of nodes on which it may run.
    pub node_selector: Map<String, Value>,
    /// The taints of nodes that it tolerates (Kubernetes' `Toleration`s).
    pub tolerations: Vec<Map<String, Value>>,
    /// Its affinity to nodes and pods (Kubernetes' `Affinity`).
    pub affinity: Map<String, Value>,
    /// Its requests and limits (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// The observer, which stores the history of the mesh: the counts of all proxies of the last day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Observer {
    /// Whether there is an observer.
    pub enabled: bool,
    /// The users and groups that may connect to it (Kubernetes' `Subject`s).
    pub readers: Vec<Map<String, Value>>,
    /// The size of a volume for its file, such as `1Gi`. If it is empty there is no volume, and the history is lost
    /// with the pod.
    pub storage: String,
    /// The storage class of that volume. If it is empty, the volume has the cluster's default class.
    pub storage_class: String,
    /// The log filter.
    pub log: String,
    /// The labels of nodes on which it may run.
    pub node_selector: Map<String, Value>,
    /// The taints of nodes that it tolerates (Kubernetes' `Toleration`s).
    pub tolerations: Vec<Map<String, Value>>,
    /// Its affinity to nodes and pods (Kubernetes' `Affinity`).
    pub affinity: Map<String, Value>,
    /// Its requests and limits (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// The proxies of pods in node mode, and their supervisors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Node {
    /// How many seconds streams may continue in the previous process after the proxies were updated.
    #[cfg_attr(test, schemars(range(min = 10)))]
    pub drain_seconds: u32,
    /// How many seconds a pod must use more than `promoteAbovePercent` of a CPU until it gets a process of its own. 0
    /// means that no pod gets one.
    pub promote_after_seconds: u32,
    /// The CPU use above which a pod is busy, in percent of one CPU.
    #[cfg_attr(test, schemars(range(min = 1, max = 100)))]
    pub promote_above_percent: u32,
    /// The largest number of new connections per second of a pod, and of each client address of a pod. 0 means no
    /// limit.
    pub connection_rate: u32,
    /// Whether pods that share a process exchange data in memory, once they have an mTLS connection over the network.
    pub one_pass: bool,
    /// Whether agents report in the status of pods that node proxies serve them, and other proxies go by that.
    pub report_served: bool,
    /// What all proxies of a node request, and their limits (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// The endpoint from which other trust domains fetch the trust bundle.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BundleEndpoint {
    /// Whether there is such an endpoint.
    pub enabled: bool,
    /// The name of the Secret with its certificate. If it is empty, the endpoint authenticates with the control
    /// plane's SPIFFE ID.
    pub certificate_secret: String,
    /// How often other trust domains should fetch the bundle, from `1s` to `1h`.
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
    /// The folder of CNI configurations on the nodes.
    pub cni_configuration: String,
    /// The folder of CNI plugins on the nodes.
    pub cni_plugins: String,
    /// The folder of the kubelet on the nodes.
    pub kubelet: String,
    /// The log filter.
    pub log: String,
    /// How the kernel accounts for the connections of pods.
    pub flows: Flows,
    /// The labels of nodes that have an agent.
    pub node_selector: Map<String, Value>,
    /// The taints of nodes that agents tolerate (Kubernetes' `Toleration`s).
    pub tolerations: Vec<Map<String, Value>>,
    /// The affinity of agents to nodes and pods (Kubernetes' `Affinity`).
    pub affinity: Map<String, Value>,
    /// The requests and limits of each agent (Kubernetes' `ResourceRequirements`).
    pub resources: Map<String, Value>,
}

/// How the kernel accounts for the connections of pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Flows {
    /// Where connections are counted for pods that do not set it.
    pub source: FlowSource,
    /// The largest number of connections that the table of connections holds.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_048_576)))]
    pub map_size: u32,
    /// How many changes of connections may wait until they are read.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_048_576)))]
    pub ring_size: u32,
    /// The largest share of a node's CPU time that accounting may use, such as `1%`, or `none`.
    pub cpu_budget: String,
}

/// Where connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum FlowSource {
    /// The kernel's sockets.
    Sockets,
    /// The packets of pods.
    Packets,
    /// The packets of pods, and the requests in them for pods without a proxy.
    Requests,
    /// Nowhere. Quote it in a file of values, because YAML reads `off` as `false`.
    Off,
}

/// The proxies that are injected into pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proxy {
    /// The kind of container in which the proxy runs.
    pub shape: Shape,
    /// The log filter.
    pub log: String,
    /// The service that gets spans of requests, and which requests have spans. Empty means no spans.
    pub traces: String,
    /// The format of the access log, optionally with a list of fields. Empty means no access log.
    pub access_log: String,
    /// Other meshes under whose names metrics are served as well. Empty means none.
    pub metrics_compat: String,
    /// The client addresses that may read metrics, as CIDRs separated by commas. Empty means all.
    pub scrape_from: String,
    /// How many seconds containers without a `preStop` hook wait before SIGTERM; 0 means no wait.
    pub pre_stop_sleep: u32,
    /// Whether `leno trace-request --bodies` may show the first 4 KiB of bodies.
    pub tap_bodies: bool,
}

/// The kind of container in which a proxy runs.
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
    /// What happens to pods that should have a proxy while no controller answers.
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
