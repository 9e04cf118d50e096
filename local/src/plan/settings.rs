//! What labels and annotations say: on the workload first, then on its namespace.

use std::collections::BTreeMap;

use leno_capture::Choice;
use leno_flows::Source;
use leno_resources::{
    CAPTURE_ANNOTATION, Documents, EGRESS_ANNOTATION, FLOW_METRICS_ANNOTATION, INJECT_ANNOTATION,
    MODE_ANNOTATION, MTLS_ANNOTATION, Object, Workload,
};
use leno_types::{Egress, MtlsMode};

use super::Defaults;

/// What holds for one workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) meshed: bool,
    pub(super) mtls: MtlsMode,
    pub(super) egress: Egress,
    pub(super) capture: Choice,
    pub(super) flows: Source,
    /// A proxy shared by the node is asked for.
    pub(super) node_mode: bool,
}

/// Values of parsed documents were checked, so one that cannot be read counts as nothing said.
pub(super) fn of(documents: &Documents, workload: &Workload, defaults: Defaults) -> Settings {
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
    Settings {
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
        node_mode: setting(MODE_ANNOTATION).is_some_and(|value| value == "node"),
    }
}
