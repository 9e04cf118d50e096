//! The settings of a pod's proxy: those of all proxies, and those that a pod's annotations change.

use std::str::FromStr;
use std::time::Duration;

use leno_resources::{SPIFFE_SOCKET_ANNOTATION, UDP_ANNOTATION};
use leno_telemetry::MetricsCompat;
use leno_telemetry::access::{AccessSettings, AccessSettingsError, Form};
use leno_telemetry::trace::{TraceSettings, TraceSettingsError};
use leno_types::authorization::{Cidr, CidrError};
use leno_types::{Owner, TEMPLATE_HASH_LABEL};

use crate::inject::{InjectError, one_of, said, setting};
use crate::mode::{DATAGRAMS, NO_DATAGRAMS, NO_SOCKET, ProxiesOfNamespace};
use crate::value::JsonValue;
use crate::workload_api;

/// The default address of the control plane in a cluster.
pub const DEFAULT_CONTROL: &str = "https://leno-controller.leno-system.svc:15010";

/// The prefix of annotations in which a pod sets options of its proxy.
const OWN: &str = "leno.dev/proxy-";
const CPU_REQUEST: &str = "leno.dev/proxy-cpu-request";
const CPU_LIMIT: &str = "leno.dev/proxy-cpu-limit";
const MEMORY_REQUEST: &str = "leno.dev/proxy-memory-request";
const MEMORY_LIMIT: &str = "leno.dev/proxy-memory-limit";
const LOG: &str = "leno.dev/proxy-log";
const TRACES: &str = "leno.dev/proxy-traces";
const ACCESS_LOG: &str = "leno.dev/proxy-access-log";
const METRICS_COMPAT: &str = "leno.dev/proxy-metrics-compat";
const KNOWN: [&str; 8] =
    [CPU_REQUEST, CPU_LIMIT, MEMORY_REQUEST, MEMORY_LIMIT, LOG, TRACES, ACCESS_LOG, METRICS_COMPAT];

/// The annotation that sets how long the containers of a pod wait before SIGTERM.
pub(crate) const PRE_STOP_SLEEP: &str = "leno.dev/pre-stop-sleep";

/// The value of an annotation that turns a setting off for a pod.
const OFF: &str = "off";

/// How long containers wait by default, in seconds, so that all proxies are informed that the pod is being
/// deleted. Informing them takes a few milliseconds.
pub const DEFAULT_PRE_STOP_SLEEP: u32 = 1;

/// Longest name of a CSI driver, a folder or a socket. The path of a socket may have 107 bytes (unix(7)).
const MAX_NAME: usize = 63;

/// Longest value of an annotation. The fields of an access log may need a few lines.
const MAX_VALUE: usize = 1024;

/// The settings of all proxies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InjectionSettings {
    /// The proxy's image.
    pub image: String,
    /// When the image is pulled, in the notation of Kubernetes; `None` for the default of Kubernetes.
    pub pull_policy: Option<String>,
    /// The Secrets, in the namespace of each pod, for the registry of the image.
    pub pull_secrets: Vec<String>,
    /// The trust domain of the mesh.
    pub trust_domain: String,
    /// The address of the control plane, an `https` URL.
    pub control: String,
    /// The resources of the container.
    pub resources: ContainerResources,
    /// The log filter; `None` for the default of the proxy.
    pub log: Option<String>,
    /// The value of the proxy's `--traces`; `None` for no traces.
    pub traces: Option<String>,
    /// The value of the proxy's `--access-log`; `None` for no access log.
    pub access_log: Option<String>,
    /// The value of the proxy's `--metrics-compat`; `None` for no other names.
    pub metrics_compat: Option<String>,
    /// Whether taps may show bodies. Pods cannot permit it themselves.
    pub tap_bodies: bool,
    /// The value of the proxy's `--scrape-from`, which pods cannot change; `None` if all addresses may request
    /// metrics.
    pub scrape_from: Option<String>,
    /// The value of the proxy's `--tls-profile`, which pods cannot change; `None` for the default of the proxy.
    pub tls_profile: Option<String>,
    /// The SPIFFE Workload API that issues the proxy's certificates; `None` if the control plane issues them.
    pub workload_api: Option<WorkloadApiVolume>,
    /// Whether the proxy serves the SPIFFE Workload API to the containers of its pod. This is a setting of the pod
    /// or its namespace.
    pub serves_workload_api: bool,
    /// Whether the proxy carries datagrams. This is a setting of the pod or its namespace.
    pub carries_datagrams: bool,
    /// The longest lifetime of certificates that kubelets request for pods, in seconds; `None` if they request
    /// none.
    pub pod_certificates: Option<u32>,
    /// The name of the workload that has created the pod; `None` if it is not known.
    pub workload: Option<String>,
    /// The kind of container that the proxy runs in.
    pub shape: ContainerShape,
    /// How many seconds a container of the application waits before SIGTERM when its pod is deleted. This does not
    /// apply to a container with its own `preStop` hook. 0 for no wait, which is required before Kubernetes 1.30.
    pub pre_stop_sleep: u32,
}

/// The volume through which pods reach a SPIFFE Workload API, such as that of SPIRE's agent: `csi:DRIVER/SOCKET` or
/// `hostPath:/DIRECTORY/SOCKET`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadApiVolume {
    source: WorkloadApiSource,
    /// The name of the socket in the volume.
    socket: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum WorkloadApiSource {
    /// A CSI driver, such as SPIFFE's, that mounts the folder of the socket in each pod.
    Csi(String),
    /// A folder of the node.
    HostPath(String),
}

/// The error for a text that does not describe such a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the volume of a Workload API: use csi:DRIVER/SOCKET, for example csi:csi.spiffe.io/spire-agent.sock, or \
     hostPath:/DIRECTORY/SOCKET"
)]
pub struct NoWorkloadApiVolume(String);

impl FromStr for WorkloadApiVolume {
    type Err = NoWorkloadApiVolume;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let no = || NoWorkloadApiVolume(text.to_owned());
        let is_plain = |part: &str| {
            let letter = |letter: char| letter.is_ascii_alphanumeric() || ".-_".contains(letter);
            (1..=MAX_NAME).contains(&part.len())
                && part.chars().all(letter)
                && !["..", "."].contains(&part)
        };
        let (kind, rest) = text.split_once(':').ok_or_else(no)?;
        let (place, socket) = rest.rsplit_once('/').ok_or_else(no)?;
        let is_folder =
            || place.strip_prefix('/').is_some_and(|rest| rest.split('/').all(is_plain));
        let source = match kind {
            "csi" if is_plain(place) => WorkloadApiSource::Csi(place.to_owned()),
            "hostPath" if is_folder() => WorkloadApiSource::HostPath(place.to_owned()),
            _ => return Err(no()),
        };
        is_plain(socket).then(|| Self { source, socket: socket.to_owned() }).ok_or_else(no)
    }
}

impl WorkloadApiVolume {
    /// The name of the socket in the volume.
    pub(crate) fn socket(&self) -> &str {
        &self.socket
    }

    /// The volume's source in a pod's spec: its field, and the value.
    pub(crate) fn value(&self) -> (&'static str, JsonValue) {
        match &self.source {
            WorkloadApiSource::Csi(driver) => {
                ("csi", [("driver", driver.as_str().into()), ("readOnly", true.into())].into())
            }
            WorkloadApiSource::HostPath(path) => {
                ("hostPath", [("path", path.as_str().into()), ("type", "Directory".into())].into())
            }
        }
    }
}

/// The kind of container that the proxy runs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContainerShape {
    /// An init container that keeps running: it starts before and ends after all others (Kubernetes 1.29).
    #[default]
    Sidecar,
    /// The first of the ordinary containers, with hooks that delay the others and its own end.
    Container,
}

/// Resources as Kubernetes quantities; a missing one is not set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerResources {
    /// The CPU that the scheduler reserves.
    pub cpu_request: Option<String>,
    /// The CPU limit. `None` by default, because a throttled proxy throttles its application.
    pub cpu_limit: Option<String>,
    /// The memory that the scheduler reserves.
    pub memory_request: Option<String>,
    /// The memory limit; half of it is the proxy's own budget.
    pub memory_limit: Option<String>,
}

impl Default for ContainerResources {
    fn default() -> Self {
        let some = |text: &str| Some(text.to_owned());
        Self {
            cpu_request: some("10m"),
            cpu_limit: None,
            memory_request: some("16Mi"),
            memory_limit: some("128Mi"),
        }
    }
}

impl Default for InjectionSettings {
    /// The image of this version, without a registry, and the control plane's address after `leno install`.
    fn default() -> Self {
        Self {
            image: concat!("leno-proxy:", env!("CARGO_PKG_VERSION")).to_owned(),
            pull_policy: None,
            pull_secrets: Vec::new(),
            trust_domain: "cluster.local".to_owned(),
            control: DEFAULT_CONTROL.to_owned(),
            resources: ContainerResources::default(),
            log: None,
            traces: None,
            access_log: None,
            metrics_compat: None,
            tap_bodies: false,
            scrape_from: None,
            tls_profile: None,
            workload_api: None,
            serves_workload_api: false,
            carries_datagrams: false,
            pod_certificates: None,
            workload: None,
            shape: ContainerShape::default(),
            pre_stop_sleep: DEFAULT_PRE_STOP_SLEEP,
        }
    }
}

impl InjectionSettings {
    /// Whether the kubelet requests the proxy's certificate. If a Workload API issues the certificates, it does
    /// not.
    pub(crate) fn requests_by_kubelet(&self) -> bool {
        self.pod_certificates.is_some() && self.workload_api.is_none()
    }

    /// Whether these annotations make the pod's proxy serve the Workload API to the pod.
    fn is_to_serve_workload_api(
        &self,
        annotations: &[(String, JsonValue)],
    ) -> Result<bool, InjectError> {
        let asked = annotations.iter().find(|(name, _)| name == workload_api::ANNOTATION);
        let Some((name, value)) = asked else { return Ok(false) };
        let wrong = |reason| InjectError::Annotation { name: name.clone(), reason };
        let is_enabled = workload_api::is_enabled(value).map_err(wrong)?;
        self.check_workload_api(is_enabled, "")
    }

    /// The settings for a pod that gets a proxy. Values of its namespace apply where the pod sets nothing.
    pub(crate) fn of_namespace(
        mut self,
        pod: &JsonValue,
        namespace: &ProxiesOfNamespace,
    ) -> Result<Self, InjectError> {
        if setting(pod, UDP_ANNOTATION).is_none() {
            let datagrams = namespace.udp.as_deref();
            self.carries_datagrams = datagrams.is_some_and(|datagrams| datagrams != NO_DATAGRAMS);
        }
        if pod.at(&["metadata", "annotations", SPIFFE_SOCKET_ANNOTATION]).is_none() {
            namespace.declines_certificates()?;
        }
        if !workload_api::is_said_by(pod) {
            let whose = ", as its namespace has it";
            let is_enabled = namespace.serves_workload_api()?;
            self.serves_workload_api = self.check_workload_api(is_enabled, whose)?;
        }
        Ok(self)
    }

    /// Rejects a proxy that serves a Workload API if its own certificates come from another Workload API.
    fn check_workload_api(&self, is_enabled: bool, whose: &str) -> Result<bool, InjectError> {
        if !is_enabled || self.workload_api.is_none() {
            return Ok(is_enabled);
        }
        let reason = format!(
            "cannot be enabled{whose}, because identity.workloadApi names the Workload API that \
             issues the proxy's certificates: let that Workload API serve the application too"
        );
        Err(InjectError::Annotation { name: workload_api::ANNOTATION.to_owned(), reason })
    }

    /// The settings with the values that the pod's annotations set, and with the certificate origin of its
    /// namespace if the pod sets none.
    pub(crate) fn of_pod(
        &self,
        pod: &JsonValue,
        namespace: &ProxiesOfNamespace,
    ) -> Result<Self, InjectError> {
        let mut settings = Self { workload: workload(pod), ..self.clone() };
        let annotations = pod.at(&["metadata", "annotations"]).map_or(&[][..], JsonValue::fields);
        if let Some((name, value)) =
            annotations.iter().find(|(name, _)| name == SPIFFE_SOCKET_ANNOTATION)
        {
            if value.text() != Some(NO_SOCKET) {
                let reason = "must be off or absent in a cluster: the value identity.workloadApi \
                              of the chart names the Workload API of all pods";
                let (name, reason) = (name.clone(), reason.to_owned());
                return Err(InjectError::Annotation { name, reason });
            }
            settings.workload_api = None;
        } else if namespace.declines_certificates() == Ok(true) {
            settings.workload_api = None;
        }
        settings.serves_workload_api = settings.is_to_serve_workload_api(annotations)?;
        let datagrams = one_of(pod, UDP_ANNOTATION, &DATAGRAMS)?;
        settings.carries_datagrams = datagrams.is_some_and(|datagrams| datagrams != NO_DATAGRAMS);
        if let Some((_, value)) = annotations.iter().find(|(name, _)| name == PRE_STOP_SLEEP) {
            settings.pre_stop_sleep = pre_stop_sleep(value)?;
        }
        for (name, value) in annotations.iter().filter(|(name, _)| name.starts_with(OWN)) {
            let wrong = |reason: String| InjectError::Annotation { name: name.clone(), reason };
            let text = value.text().filter(|text| !text.is_empty() && text.len() <= MAX_VALUE);
            let Some(text) = text else {
                return Err(wrong(format!("is not a string of 1 to {MAX_VALUE} bytes")));
            };
            let field = match name.as_str() {
                CPU_REQUEST => &mut settings.resources.cpu_request,
                CPU_LIMIT => &mut settings.resources.cpu_limit,
                MEMORY_REQUEST => &mut settings.resources.memory_request,
                MEMORY_LIMIT => &mut settings.resources.memory_limit,
                LOG => {
                    settings.log = Some(text.to_owned());
                    continue;
                }
                TRACES if text == OFF => {
                    settings.traces = None;
                    continue;
                }
                TRACES => {
                    let parsed: Result<TraceSettings, _> = text.parse();
                    parsed.map_err(|error| wrong(error.to_string()))?;
                    settings.traces = Some(text.to_owned());
                    continue;
                }
                ACCESS_LOG => {
                    settings.access_log =
                        access_log(text).map_err(|error| wrong(error.to_string()))?;
                    continue;
                }
                METRICS_COMPAT => {
                    settings.metrics_compat = metrics_compat(text).map_err(wrong)?;
                    continue;
                }
                _ => return Err(wrong(format!("is unknown: use {}", KNOWN.join(", ")))),
            };
            if !is_quantity(text) {
                return Err(wrong(format!("{text:?} is not a quantity such as 100m or 64Mi")));
            }
            *field = Some(text.to_owned());
        }
        if settings.traces.is_none() && settings.access_log.as_deref().is_some_and(exports) {
            // If the pod has turned traces off, it also exports no access log, because the records would go to the
            // collector of traces.
            if !annotations.iter().any(|(name, _)| name == ACCESS_LOG) {
                return Ok(Self { access_log: None, ..settings });
            }
            let reason = format!("otlp needs the collector of traces: set {TRACES} too");
            return Err(InjectError::Annotation { name: ACCESS_LOG.to_owned(), reason });
        }
        Ok(settings)
    }
}

/// The longest lifetime, in seconds, to request from the kubelet for a pod's certificate. `lifetime` is that of the
/// mesh's other certificates. The result also covers the time by which a certificate's validity begins before its
/// issue, and is within the bounds of Kubernetes.
#[must_use]
pub fn pod_certificate_seconds(lifetime: Duration) -> u32 {
    /// The bounds of Kubernetes: one hour and 91 days, in seconds.
    const BOUNDS: (u64, u64) = (3600, 91 * 24 * 3600);
    /// How long before its issue a certificate's validity begins.
    const BEGIN_S: u64 = 120;
    let seconds = lifetime.as_secs().saturating_add(BEGIN_S).clamp(BOUNDS.0, BOUNDS.1);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// The number of seconds in a pod's annotation.
fn pre_stop_sleep(value: &JsonValue) -> Result<u32, InjectError> {
    let seconds = match value.text() {
        Some(OFF) => Some(0),
        Some(text) => text.strip_suffix('s').and_then(|seconds| seconds.parse().ok()),
        None => None,
    };
    seconds.ok_or_else(|| InjectError::Annotation {
        name: PRE_STOP_SLEEP.to_owned(),
        reason: format!("{} is neither a number of seconds such as 5s nor off", said(value)),
    })
}

impl ContainerResources {
    /// The field `resources` of a container.
    pub(crate) fn value(&self) -> JsonValue {
        let of = |cpu: &Option<String>, memory: &Option<String>| {
            let mut map = JsonValue::map();
            for (name, quantity) in [("cpu", cpu), ("memory", memory)] {
                if let Some(quantity) = quantity {
                    map.set(name, quantity.as_str());
                }
            }
            map
        };
        let mut resources = JsonValue::map();
        let requests = of(&self.cpu_request, &self.memory_request);
        let limits = of(&self.cpu_limit, &self.memory_limit);
        for (name, quantities) in [("requests", requests), ("limits", limits)] {
            if !quantities.fields().is_empty() {
                resources.set(name, quantities);
            }
        }
        resources
    }
}

/// The name of the workload that has created a pod. A pod in a manifest has no owner yet.
fn workload(pod: &JsonValue) -> Option<String> {
    let metadata = pod.get("metadata")?;
    let owner = metadata.list("ownerReferences").first()?;
    let (kind, name) = (owner.get("kind")?.text()?, owner.name()?);
    let hash = metadata.at(&["labels", TEMPLATE_HASH_LABEL]).and_then(JsonValue::text);
    Some(Owner::of_pod(kind, name, hash).name)
}

/// The names in a list of Secrets that has the form of a pod's field: `[{"name": NAME}]`.
///
/// # Errors
/// If the text is not such a list.
pub fn pull_secrets(json: &str) -> Result<Vec<String>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct PullSecret {
        name: String,
    }
    let secrets: Vec<PullSecret> = serde_json::from_str(json)?;
    Ok(secrets.into_iter().map(|one| one.name).collect())
}

/// The settings of traces for all proxies; `None` for an empty text.
///
/// # Errors
/// If the text is invalid.
pub fn traces(text: &str) -> Result<Option<String>, TraceSettingsError> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse::<TraceSettings>()?;
    Ok(Some(text.to_owned()))
}

/// The checked settings of the access log for all proxies; `None` for `off` and an empty text.
///
/// # Errors
/// If the text is invalid.
pub fn access_log(text: &str) -> Result<Option<String>, AccessSettingsError> {
    if text.is_empty() {
        return Ok(None);
    }
    let settings: AccessSettings = text.parse()?;
    Ok((settings.form != Form::Off).then(|| text.to_owned()))
}

/// The addresses that may request metrics; `None` if there are none.
///
/// # Errors
/// If one of them is not a CIDR.
pub fn scrape_from(text: &str) -> Result<Option<String>, CidrError> {
    let blocks: Vec<String> = Cidr::list(text)?.iter().map(ToString::to_string).collect();
    Ok((!blocks.is_empty()).then(|| blocks.join(",")))
}

/// The checked list of meshes whose metric names all proxies serve in addition to their own; `None` for `off` and
/// an empty text.
///
/// # Errors
/// If the text is invalid.
pub fn metrics_compat(text: &str) -> Result<Option<String>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let compat: MetricsCompat = text.parse()?;
    Ok(compat.is_any().then(|| text.to_owned()))
}

/// Whether this access log exports its records to the collector of traces.
#[must_use]
pub fn exports(access_log: &str) -> bool {
    access_log.parse().is_ok_and(|settings: AccessSettings| settings.form == Form::Otlp)
}

/// Whether a text is a Kubernetes quantity: digits, an optional fraction, an optional unit.
fn is_quantity(text: &str) -> bool {
    const UNITS: [&str; 15] =
        ["", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "u"];
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits(whole) && digits(fraction) && UNITS.contains(&unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_the_name_of_what_has_made_it_and_its_own_traces() {
        let pod = |kind: &str, name: &str, traces: &str| -> JsonValue {
            serde_json::from_str(&format!(
                r#"{{"metadata":{{"labels":{{"pod-template-hash":"7d9c"}},"annotations":{{{traces}}},
                    "ownerReferences":[{{"kind":"{kind}","name":"{name}"}}]}}}}"#
            ))
            .unwrap()
        };
        let all = InjectionSettings {
            traces: Some("obs/collector:4317".to_owned()),
            ..InjectionSettings::default()
        };
        let of = |kind, name, traces| {
            all.of_pod(&pod(kind, name, traces), &ProxiesOfNamespace::default())
        };
        let workload = |kind, name| of(kind, name, "").unwrap().workload.unwrap();
        assert_eq!(workload("ReplicaSet", "web-7d9c"), "web");
        assert_eq!(workload("StatefulSet", "db"), "db");
        assert_eq!(workload("Job", "bill-29384756"), "bill");
        assert_eq!(workload("Job", "bill-2938"), "bill-2938");
        let traces = |traces| of("StatefulSet", "db", traces).map(|settings| settings.traces);
        assert_eq!(traces(""), Ok(all.traces.clone()));
        assert_eq!(traces(r#""leno.dev/proxy-traces":"off""#), Ok(None));
        let socket = r#""leno.dev/spiffe-endpoint-socket":"unix:///a""#;
        assert!(traces(socket).unwrap_err().to_string().contains("identity.workloadApi"));
        assert!(traces(r#""leno.dev/spiffe-endpoint-socket":"off""#).is_ok());
        let own = "shop/spans:4318,protocol=http";
        assert_eq!(
            traces(r#""leno.dev/proxy-traces":"shop/spans:4318,protocol=http""#),
            Ok(Some(own.to_owned()))
        );
        let wrong = traces(r#""leno.dev/proxy-traces":"collector""#).unwrap_err().to_string();
        assert!(
            wrong.contains("leno.dev/proxy-traces") && wrong.contains("NAMESPACE/SERVICE:PORT"),
            "{wrong}"
        );
    }

    #[test]
    fn a_pod_has_its_own_access_log() {
        let of = |all: &str, annotations: &str| {
            let all = InjectionSettings {
                access_log: access_log(all).unwrap(),
                ..InjectionSettings::default()
            };
            let pod = format!(r#"{{"metadata":{{"annotations":{{{annotations}}}}}}}"#);
            all.of_pod(&serde_json::from_str(&pod).unwrap(), &ProxiesOfNamespace::default())
        };
        let log = |all, annotations| of(all, annotations).unwrap().access_log;
        assert_eq!(log("", ""), None);
        assert_eq!(log("json", "").as_deref(), Some("json"));
        assert_eq!(log("json", r#""leno.dev/proxy-access-log":"off""#), None);
        let own = r#""leno.dev/proxy-access-log":"text:%time% %status%""#;
        assert_eq!(log("json", own).as_deref(), Some("text:%time% %status%"));
        let exported = r#""leno.dev/proxy-access-log":"otlp","leno.dev/proxy-traces":"obs/c:4317""#;
        assert_eq!(log("", exported).as_deref(), Some("otlp"));
        // Traces are off, so the access log that would go to their collector is off as well.
        assert_eq!(log("otlp", ""), None);
        for (annotation, what) in [
            (r#""leno.dev/proxy-access-log":"json:state""#, "\"state\" is not a field: use time, "),
            (r#""leno.dev/proxy-access-log":"otlp""#, "set leno.dev/proxy-traces too"),
        ] {
            let wrong = of("", annotation).unwrap_err().to_string();
            assert!(wrong.contains("leno.dev/proxy-access-log") && wrong.contains(what), "{wrong}");
        }
    }

    #[test]
    fn a_pod_names_the_meshes_whose_metrics_its_proxy_serves() {
        let all = InjectionSettings {
            metrics_compat: metrics_compat("istio").unwrap(),
            ..InjectionSettings::default()
        };
        let of = |annotation: &str| {
            let pod = format!(r#"{{"metadata":{{"annotations":{{{annotation}}}}}}}"#);
            all.of_pod(&serde_json::from_str(&pod).unwrap(), &ProxiesOfNamespace::default())
                .map(|settings| settings.metrics_compat)
        };
        assert_eq!(of(""), Ok(Some("istio".to_owned())));
        assert_eq!(of(r#""leno.dev/proxy-metrics-compat":"off""#), Ok(None));
        let both = of(r#""leno.dev/proxy-metrics-compat":"linkerd,istio""#);
        assert_eq!(both, Ok(Some("linkerd,istio".to_owned())));
        let wrong = of(r#""leno.dev/proxy-metrics-compat":"consul""#).unwrap_err().to_string();
        assert!(wrong.contains("proxy-metrics-compat") && wrong.contains("use linkerd"), "{wrong}");
    }

    #[test]
    fn the_volume_of_a_workload_api_is_one_of_csi_or_a_folder_of_the_node() {
        for good in
            ["csi:csi.spiffe.io/spire-agent.sock", "hostPath:/run/spire/agent-sockets/a.sock"]
        {
            assert!(good.parse::<WorkloadApiVolume>().is_ok(), "{good}");
        }
        let long = format!("csi:csi.spiffe.io/{}", "a".repeat(MAX_NAME + 1));
        for bad in [
            "",
            "csi:",
            "csi:driver",
            "csi:driver/",
            "csi:/run/a.sock",
            "csi:a/b/c",
            "hostPath:run/a.sock",
            "hostPath:/a.sock",
            "hostPath:/run/../a.sock",
            "hostPath:/run//a.sock",
            "emptyDir:/run/a.sock",
            "csi:a/b c",
            &long,
        ] {
            assert!(bad.parse::<WorkloadApiVolume>().is_err(), "{bad}");
        }
        let all = InjectionSettings {
            workload_api: "csi:csi.spiffe.io/a.sock".parse().ok(),
            ..InjectionSettings::default()
        };
        let of = |annotation: &str| {
            let pod = format!(r#"{{"metadata":{{"annotations":{{{annotation}}}}}}}"#);
            all.of_pod(&serde_json::from_str(&pod).unwrap(), &ProxiesOfNamespace::default())
                .map(|settings| settings.workload_api)
        };
        assert_eq!(of(""), Ok(all.workload_api.clone()));
        assert_eq!(of(r#""leno.dev/spiffe-endpoint-socket":"off""#), Ok(None));
        assert!(of(r#""leno.dev/spiffe-endpoint-socket":"unix:///a""#).is_err());
    }

    #[test]
    fn a_quantity_is_a_number_with_a_unit_of_kubernetes() {
        for good in ["1", "10m", "0.5", "64Mi", "1.5Gi", "100k"] {
            assert!(is_quantity(good), "{good}");
        }
        for bad in ["", "m", "-1", "1.", ".5", "64MB", "64 Mi", "1e", "Mi64"] {
            assert!(!is_quantity(bad), "{bad}");
        }
    }
}
