//! Reads the settings in labels and annotations. A workload's settings take precedence over those of its
//! namespace.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use leno_capture::CaptureChoice;
use leno_flows::{CpuBudget, FlowMetricsSource};
use leno_resources::{
    CAPTURE_ANNOTATION, Documents, EGRESS_ANNOTATION, FLOW_CPU_BUDGET_ANNOTATION,
    FLOW_MAP_SIZE_ANNOTATION, FLOW_METRICS_ANNOTATION, FLOW_RING_SIZE_ANNOTATION,
    INJECT_ANNOTATION, MODE_ANNOTATION, MTLS_ANNOTATION, Object, PATHS_ANNOTATION,
    PROMOTE_AFTER_ANNOTATION, SHARE_ANNOTATION, SPIFFE_SOCKET_ANNOTATION, UDP_ANNOTATION, Workload,
    promote_after, spiffe_socket,
};
use leno_supervise::ProcessSharing;
use leno_types::{Datagrams, Egress, MtlsMode};

use super::{CertificateOrigin, PlanDefaults};

/// The settings of one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkloadSettings {
    pub(super) meshed: bool,
    pub(super) mtls: MtlsMode,
    pub(super) egress: Egress,
    pub(super) capture: CaptureChoice,
    pub(super) flows: FlowMetricsSource,
    pub(super) flow_budget: Option<CpuBudget>,
    pub(super) certificates: CertificateOrigin,
    /// The rule for normalising paths of requests, as written in the document.
    pub(super) paths: Option<String>,
    /// In node mode, which instances share its proxy's process.
    pub(super) share: Option<ProcessSharing>,
    /// In node mode, how long an instance must be busy before it gets its own proxy process, if the documents set
    /// it. `Some(None)` turns that off.
    pub(super) promote_after: Option<Option<Duration>>,
    /// Which datagrams its proxy carries, if annotations or labels set it.
    pub(super) datagrams: Option<Datagrams>,
}

/// Whether proxies are sidecars or node proxies: the value of `leno.dev/mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyMode {
    /// Each instance has a separate proxy beside it.
    #[default]
    Sidecar,
    /// Proxies that several instances share.
    Node,
}

impl FromStr for ProxyMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "sidecar" => Ok(Self::Sidecar),
            "node" => Ok(Self::Node),
            _ => Err(format!("{text:?} is not a mode: use sidecar or node")),
        }
    }
}

/// The sizes of the table of flows and of the ring buffer for changes of flows. All workloads share the table, so the
/// largest of several values is used.
pub(super) fn flow_sizes(documents: &Documents) -> (Option<u32>, Option<u32>) {
    let empty = BTreeMap::new();
    let annotations = documents.objects.iter().filter_map(|located| match &located.value {
        Object::Namespace(namespace) => namespace.metadata.annotations.as_ref(),
        Object::Workload(workload) => Some(&workload.metadata.annotations),
        _ => None,
    });
    let all: Vec<_> = annotations.chain([&empty]).collect();
    let largest = |key: &str| all.iter().filter_map(|one| one.get(key)?.parse().ok()).max();
    (largest(FLOW_MAP_SIZE_ANNOTATION), largest(FLOW_RING_SIZE_ANNOTATION))
}

/// The settings of a workload. Their values were validated when the documents were parsed, so an invalid value
/// counts as not set.
pub(super) fn of(
    documents: &Documents,
    workload: &Workload,
    defaults: PlanDefaults,
) -> WorkloadSettings {
    let empty = BTreeMap::new();
    let own = &workload.metadata;
    let mut sources = vec![&own.annotations, &own.labels];
    for located in &documents.objects {
        if let Object::Namespace(namespace) = &located.value
            && namespace.metadata.name.as_deref() == Some(&own.namespace)
        {
            sources.push(namespace.metadata.annotations.as_ref().unwrap_or(&empty));
            sources.push(namespace.metadata.labels.as_ref().unwrap_or(&empty));
        }
    }
    let setting = |key: &str| sources.iter().find_map(|source| source.get(key));
    let mode = setting(MODE_ANNOTATION).and_then(|value| value.parse().ok());
    let mode = mode.unwrap_or(defaults.mode);
    WorkloadSettings {
        meshed: setting(INJECT_ANNOTATION).is_none_or(|value| value != "disabled"),
        mtls: setting(MTLS_ANNOTATION).and_then(|v| v.parse().ok()).unwrap_or(defaults.mtls),
        egress: setting(EGRESS_ANNOTATION)
            .and_then(|value| value.parse().ok())
            .unwrap_or(defaults.egress),
        capture: setting(CAPTURE_ANNOTATION)
            .and_then(|value| value.parse().ok())
            .unwrap_or(defaults.capture),
        flows: setting(FLOW_METRICS_ANNOTATION)
            .and_then(|value| value.parse().ok())
            .unwrap_or(defaults.flows),
        flow_budget: setting(FLOW_CPU_BUDGET_ANNOTATION).and_then(|value| value.parse().ok()),
        certificates: match setting(SPIFFE_SOCKET_ANNOTATION).map(|value| spiffe_socket(value)) {
            Some(Ok(Some(address))) => CertificateOrigin::WorkloadApi(address),
            Some(Ok(None)) => CertificateOrigin::ControlPlane,
            Some(Err(_)) | None => CertificateOrigin::Unset,
        },
        paths: setting(PATHS_ANNOTATION).cloned(),
        promote_after: setting(PROMOTE_AFTER_ANNOTATION)
            .and_then(|value| promote_after(value).ok()),
        share: (mode == ProxyMode::Node).then(|| {
            let share = setting(SHARE_ANNOTATION).and_then(|value| value.parse().ok());
            share.unwrap_or(defaults.share)
        }),
        datagrams: setting(UDP_ANNOTATION).and_then(|value| value.parse().ok()),
    }
}
