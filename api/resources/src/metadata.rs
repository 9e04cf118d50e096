//! Metadata of Leno's own documents, and the annotations and labels that Leno reads.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leno_types::authorization::{DefaultAuthorization, PathReading};
use leno_types::mesh::{Topology, WireForm};
use leno_types::{Egress, MtlsMode, NoWorkloadApiAddress, Removal, WorkloadApiAddress};
use serde::{Deserialize, Serialize};

/// The namespace of a document that does not set one.
pub const DEFAULT_NAMESPACE: &str = "default";
/// Whether a workload accepts plaintext: `strict`, `permissive`, `disabled`. On a workload or a
/// namespace; the workload's value wins.
pub const MTLS_ANNOTATION: &str = "leno.dev/mtls";
/// Whether a workload gets a proxy: `enabled`, `disabled`.
pub const INJECT_ANNOTATION: &str = "leno.dev/inject";
/// Where a workload's proxy runs: `sidecar`, `node`.
pub const MODE_ANNOTATION: &str = "leno.dev/mode";
/// In node mode, which workloads share a proxy's process: `workload`, `service-account`, `namespace`, `node`.
pub const SHARE_ANNOTATION: &str = "leno.dev/share";
/// Whether the proxy of a pod serves it the SPIFFE Workload API: `enabled`, `disabled`. On a pod or a namespace; the
/// pod's value wins. Under `leno up` all workloads have it.
pub const WORKLOAD_API_ANNOTATION: &str = "leno.dev/workload-api";
/// In node mode, how long a workload is busy before it gets a process of its own, such as `30s`, or `off`. On a
/// workload or a namespace; the workload's value wins.
pub const PROMOTE_AFTER_ANNOTATION: &str = "leno.dev/promote-after";
/// How clients speak to the proxy of a workload that is not of this mesh: `hbone`, `none`. On a workload or a
/// namespace; the workload's value wins.
pub const TUNNEL_ANNOTATION: &str = "leno.dev/tunnel";
/// The waypoint that clients of a service are sent through, or `none`. On a Service or its namespace; the service's
/// value wins. On a workload: only this waypoint may connect to it.
pub const USE_WAYPOINT_LABEL: &str = "leno.dev/use-waypoint";
/// The namespace of that waypoint, if it is another one.
pub const USE_WAYPOINT_NAMESPACE_LABEL: &str = "leno.dev/use-waypoint-namespace";
/// The waypoint of which a workload is an instance.
pub const WAYPOINT_LABEL: &str = "leno.dev/waypoint";
/// Whose services may use a waypoint: `same` for those of its own namespace, `all`. On the workload of the waypoint.
pub const WAYPOINT_FROM_LABEL: &str = "leno.dev/waypoint-from";
/// `enabled` on pods that Istio's CNI plugin has given to a ztunnel (Istio's own).
pub const REDIRECTION_ANNOTATION: &str = "ambient.istio.io/redirection";
/// Which datagrams of a workload its proxy carries: `off`, `enabled` for all but DNS, `all`. On a workload or a
/// namespace; the workload's value wins.
pub const UDP_ANNOTATION: &str = "leno.dev/udp";
/// How a workload's traffic is captured: `auto`, `ebpf`, `nftables`, `iptables`.
pub const CAPTURE_ANNOTATION: &str = "leno.dev/capture";
/// Whether a workload may connect to destinations that the mesh does not know: `allow`, `deny`. On
/// a workload or a namespace; the workload's value wins.
pub const EGRESS_ANNOTATION: &str = "leno.dev/egress";
/// Which clients are permitted if no allow policy selects the port: `deny`, `same-namespace`, `meshed`, `all`. On a
/// namespace.
pub const DEFAULT_AUTHORIZATION_ANNOTATION: &str = "leno.dev/default-authorization";
/// How the application of a workload reads paths, for policies: `strict`, `none`, or a comma-separated list of
/// `merge-slashes`, `resolve-dots` and `decode-slashes`. On a workload or a namespace; the workload's value wins.
pub const PATHS_ANNOTATION: &str = "leno.dev/path-normalisation";
/// Where the kernel counts the flows of a workload: `sockets`, `packets`, `off`. On a workload or a namespace; the
/// workload's value wins.
pub const FLOW_METRICS_ANNOTATION: &str = "leno.dev/flow-metrics";
/// The most CPU time that accounting for the flows of a workload may take, as a share of the machine's, such as `0.2%`.
/// On a workload or a namespace; the workload's value wins.
pub const FLOW_CPU_BUDGET_ANNOTATION: &str = "leno.dev/flow-cpu-budget";
/// How many flows the table of a mesh, or of a node, holds, and how many changes of them wait for a reader. On
/// namespaces and workloads of a mesh, where the largest value takes effect, or on a Kubernetes node.
pub const FLOW_MAP_SIZE_ANNOTATION: &str = "leno.dev/flow-map-size";
/// See [`FLOW_MAP_SIZE_ANNOTATION`].
pub const FLOW_RING_SIZE_ANNOTATION: &str = "leno.dev/flow-ring-size";
/// The origins, separated by commas, from which the control plane fetches keys of issuers of tokens, such as
/// `https://id.example.com`. On the control plane's own namespace.
pub const KEYS_FROM_ANNOTATION: &str = "leno.dev/keys-from";
/// Where a workload's proxy gets its certificates: the address of a SPIFFE Workload API, or `off` for the control
/// plane. On a workload or a namespace; the workload's value wins.
pub const SPIFFE_SOCKET_ANNOTATION: &str = "leno.dev/spiffe-endpoint-socket";
/// How far the removal of the mesh has gone: `permissive`, `plaintext`, `released`. `leno
/// uninstall` sets it on the control plane's own namespace.
pub const REMOVAL_ANNOTATION: &str = "leno.dev/removal";
/// On the same namespace: the run of `leno uninstall` that set the present step. A run that started
/// earlier sees that it was superseded, and writes nothing more. The prefix is not `leno.dev/`,
/// because every version rejects unknown keys with that prefix.
pub const REMOVAL_RUN_ANNOTATION: &str = "removal.leno.dev/run";
/// The condition by which the agent of a node reports that a node proxy serves a pod. Agents write it into the pod's
/// status, which the author of a pod cannot write.
pub const SERVED_CONDITION: &str = "leno.dev/Served";
/// The condition of a control plane's pod: whether it follows all kinds of objects that it should.
pub const KINDS_CONDITION: &str = "leno.dev/KindsFollowed";
/// The label of an `EndpointSlice` that names its service (Kubernetes' own).
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// The label for the zone that an object is in (Kubernetes' own).
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// The label for the node that an object is on (Kubernetes' own).
pub const NODE_LABEL: &str = "kubernetes.io/hostname";

/// The zone and node that labels state.
#[must_use]
pub fn place(labels: &BTreeMap<String, String>) -> Topology {
    let of = |label: &str| labels.get(label).map(String::as_str).unwrap_or_default().into();
    Topology { zone: of(ZONE_LABEL), node: of(NODE_LABEL) }
}

/// Name, namespace, labels and annotations of a document of Leno's own API group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The name, a DNS label.
    pub name: String,
    /// The namespace, a DNS label.
    #[serde(default = "default_namespace")]
    pub namespace: String,
    /// Labels, for selectors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, for settings.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// When the API server stored it; `None` in files. If two objects claim the same, the older
    /// wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// The number of the API server's version of the spec; `None` in files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The API server's version of the object, which a new status replaces; `None` in files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
}

impl Metadata {
    /// When the object was created, in seconds of Unix time; the far future if unknown.
    #[must_use]
    pub fn created(&self) -> i64 {
        self.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second())
    }
}

/// The mTLS mode in annotations; `None` if they do not set one. An invalid value, for example a misspelt one on a
/// namespace, counts as the strictest mode, so that a mistake does not open a workload.
#[must_use]
pub fn mtls_mode(annotations: &BTreeMap<String, String>) -> Option<MtlsMode> {
    Some(annotations.get(MTLS_ANNOTATION)?.parse().unwrap_or(MtlsMode::Strict))
}

/// The egress setting in annotations; `None` if they do not set one. An invalid value means deny.
#[must_use]
pub fn egress(annotations: &BTreeMap<String, String>) -> Option<Egress> {
    Some(annotations.get(EGRESS_ANNOTATION)?.parse().unwrap_or(Egress::Deny))
}

/// The protocol between clients and the proxy of a workload, by labels and annotations; `None` if they do not set it.
/// An invalid value counts as [`WireForm::Leno`].
#[must_use]
pub fn wire_form(
    labels: Option<&BTreeMap<String, String>>,
    annotations: Option<&BTreeMap<String, String>>,
) -> Option<WireForm> {
    let hbone = crate::setting(labels, annotations, TUNNEL_ANNOTATION)? == "hbone";
    Some(if hbone { WireForm::Hbone } else { WireForm::Leno })
}

/// Which clients are permitted if no allow policy selects the port, by the annotations of a namespace; `None` if they
/// do not set it. An invalid value permits no client.
#[must_use]
pub fn default_authorization(
    annotations: &BTreeMap<String, String>,
) -> Option<DefaultAuthorization> {
    let text = annotations.get(DEFAULT_AUTHORIZATION_ANNOTATION)?;
    Some(text.parse().unwrap_or(DefaultAuthorization::Deny))
}

/// How the application reads paths, by annotations; `None` if they do not set it. With an invalid value, only paths
/// that all servers read in the same way are accepted.
#[must_use]
pub fn path_reading(annotations: &BTreeMap<String, String>) -> Option<PathReading> {
    Some(annotations.get(PATHS_ANNOTATION)?.parse().unwrap_or_default())
}

/// The origins that a value of [`KEYS_FROM_ANNOTATION`] names.
pub fn keys_from(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(str::trim).filter(|origin| !origin.is_empty())
}

/// Parses a value of [`SPIFFE_SOCKET_ANNOTATION`]: an address, or `None` for the control plane.
///
/// # Errors
/// The value is neither an address nor `off`.
pub fn spiffe_socket(value: &str) -> Result<Option<WorkloadApiAddress>, NoWorkloadApiAddress> {
    if value == "off" { Ok(None) } else { value.parse().map(Some) }
}

fn default_namespace() -> String {
    DEFAULT_NAMESPACE.to_owned()
}

/// How far the removal of the mesh has gone, from the annotations of the control plane's namespace.
#[must_use]
pub fn removal(annotations: &BTreeMap<String, String>) -> Removal {
    annotations.get(REMOVAL_ANNOTATION).and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// The settings that documents may have as annotations or labels.
pub const SETTINGS: [&str; 22] = [
    MTLS_ANNOTATION,
    INJECT_ANNOTATION,
    MODE_ANNOTATION,
    SHARE_ANNOTATION,
    WORKLOAD_API_ANNOTATION,
    PROMOTE_AFTER_ANNOTATION,
    TUNNEL_ANNOTATION,
    USE_WAYPOINT_LABEL,
    USE_WAYPOINT_NAMESPACE_LABEL,
    WAYPOINT_LABEL,
    WAYPOINT_FROM_LABEL,
    CAPTURE_ANNOTATION,
    EGRESS_ANNOTATION,
    DEFAULT_AUTHORIZATION_ANNOTATION,
    PATHS_ANNOTATION,
    FLOW_METRICS_ANNOTATION,
    FLOW_CPU_BUDGET_ANNOTATION,
    FLOW_MAP_SIZE_ANNOTATION,
    FLOW_RING_SIZE_ANNOTATION,
    KEYS_FROM_ANNOTATION,
    SPIFFE_SOCKET_ANNOTATION,
    UDP_ANNOTATION,
];

/// The values that a `leno.dev/` annotation or label may have; `None` for an unknown key.
pub(crate) fn allowed_values(key: &str) -> Option<&'static [&'static str]> {
    match key {
        MTLS_ANNOTATION => Some(&["strict", "permissive", "disabled"]),
        INJECT_ANNOTATION | WORKLOAD_API_ANNOTATION => Some(&["enabled", "disabled"]),
        UDP_ANNOTATION => Some(&["off", "enabled", "all"]),
        MODE_ANNOTATION => Some(&["sidecar", "node"]),
        SHARE_ANNOTATION => Some(&["workload", "service-account", "namespace", "node"]),
        TUNNEL_ANNOTATION => Some(&["hbone", "none"]),
        WAYPOINT_FROM_LABEL => Some(&["same", "all"]),
        CAPTURE_ANNOTATION => Some(&["auto", "ebpf", "nftables", "iptables"]),
        EGRESS_ANNOTATION => Some(&["allow", "deny"]),
        DEFAULT_AUTHORIZATION_ANNOTATION => Some(&["deny", "same-namespace", "meshed", "all"]),
        FLOW_METRICS_ANNOTATION => Some(&["sockets", "packets", "requests", "off"]),
        REMOVAL_ANNOTATION => Some(&["none", "permissive", "plaintext", "released"]),
        _ => None,
    }
}
