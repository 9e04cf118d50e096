//! Adds the proxy to a pod.

use std::collections::BTreeMap;
use std::fmt;

use leno_resources::{
    CAPTURE_ANNOTATION, FLOW_CPU_BUDGET_ANNOTATION, FLOW_METRICS_ANNOTATION, INJECT_ANNOTATION,
    UDP_ANNOTATION,
};
use leno_types::ports::PROXY_UID;

use crate::container::{container, volumes};
use crate::mode::{self, ProxiesOfNamespace};
use crate::probes::Probes;
use crate::settings::{ContainerShape, InjectionSettings};
use crate::value::JsonValue;
use crate::waypoint::is_waypoint;
use crate::{
    CONTAINER, IDENTITY_VOLUME, ROOTS, TOKEN_VOLUME, WORKLOAD_API_VOLUME, ports, pre_stop,
    workload_api,
};

/// The annotation that records what injection has added besides the proxy, so that it can be undone. Its value
/// lists names of added lists, maps and annotations, separated by commas.
pub(crate) const RECORD: &str = "leno.dev/injected";
/// Annotations that injection copies from the namespace to the pod, where the node's agent reads them, each with
/// its name in the record.
pub(crate) const AGENT_ANNOTATIONS: [(&str, &str); 4] = [
    (CAPTURE_ANNOTATION, "capture"),
    (UDP_ANNOTATION, "udp"),
    (FLOW_METRICS_ANNOTATION, "flow-metrics"),
    (FLOW_CPU_BUDGET_ANNOTATION, "flow-cpu-budget"),
];
/// The prefix, in the record, of the name of a Secret that was added.
pub(crate) const PULL_SECRET: &str = "pull-secret=";
/// The field of a pod that lists the Secrets for pulling its images.
pub(crate) const PULL_SECRETS: &str = "imagePullSecrets";
/// The Kubernetes annotation that names the default container of `kubectl logs` and `exec`.
pub(crate) const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// The Kubernetes annotation of a static pod, which the kubelet reads from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The sysctl whose value marks a captured network namespace.
const RESERVED: &str = "net.ipv4.ip_local_reserved_ports";
/// The values of `leno.dev/capture`.
const CAPTURES: [&str; 4] = ["auto", "ebpf", "nftables", "iptables"];

/// The result for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodOutcome {
    /// The pod has got a proxy.
    Injected,
    /// The pod was not changed.
    Skipped(SkipReason),
}

/// Why a pod was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// The pod already has a proxy.
    Meshed,
    /// The pod's labels or annotations disable injection.
    Disabled,
    /// The pod uses its node's network.
    HostNetwork,
    /// The pod is static: the kubelet reads it from a file, not from the API server.
    Mirror,
    /// The pod runs on Windows.
    Windows,
    /// The pod ends by itself, but a proxy in an ordinary container would keep it running.
    Ends,
    /// A proxy of its node serves the pod.
    NodeMode,
    /// The pod is the proxy of a waypoint.
    Waypoint,
}

/// Why a pod cannot be injected. The pod was not changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InjectError {
    /// The value is not a pod, or a field of it does not have the required type.
    #[error("{0} is not {1}")]
    Form(&'static str, &'static str),
    /// One of Leno's labels or annotations has an invalid value.
    #[error("the annotation or label {name}: {reason}")]
    Annotation {
        /// The name of the label or annotation.
        name: String,
        /// Why the value is invalid.
        reason: String,
    },
    /// The pod is in node mode, and declines the proxy that its namespace requires.
    #[error(
        "it has leno.dev/inject: disabled, but its namespace requires a proxy: remove this setting \
         from the pod, or have an administrator create a PodExemption with settings: [inject]"
    )]
    DeclinesNodeMode,
    /// The pod has a volume with the name of one of the proxy's volumes.
    #[error("it already has a volume {0}, a name that the proxy uses: rename the volume")]
    Volume(&'static str),
    /// A container of the pod mounts the folder of the Workload API with permission to write to it.
    #[error(
        "its container {0} mounts the proxy's volume {WORKLOAD_API_VOLUME} for writing: add \
         readOnly: true"
    )]
    WorkloadApiMount(String),
    /// A container of the pod uses a port on which the proxy listens.
    #[error(
        "its container {container} has the port {port}, on which the proxy listens: use another port"
    )]
    Port {
        /// The container's name.
        container: String,
        /// The port.
        port: u16,
    },
    /// A container of the pod runs as the proxy's user, so its connections would be mistaken for the proxy's own.
    #[error("{0} runs as user {PROXY_UID}, which is reserved for the proxy: use another user")]
    User(String),
    /// The pod reserves local ports, which is how a node's agent marks captured namespaces.
    #[error(
        "it sets the sysctl {RESERVED}, which marks a captured pod: remove it from \
         securityContext.sysctls"
    )]
    Reserved,
    /// The pod has init containers. They would start before a proxy in an ordinary container, and their
    /// connections would fail.
    #[error(
        "it has init containers, which would start before a proxy in an ordinary container and \
         could not connect: use a native sidecar (Kubernetes 1.29), or remove the init containers"
    )]
    Before,
    /// A probe names a port that its container does not have.
    #[error("the {probe} of its container {container} uses port {}, which the container does not \
             declare: name the port there", said(.port))]
    ProbePort {
        /// The container's name.
        container: String,
        /// The probe's field.
        probe: &'static str,
        /// The name of the port.
        port: JsonValue,
    },
}

/// The settings of a pod's namespace that affect its injection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodContext {
    /// The settings for the node's agent, by annotation.
    pub agent: BTreeMap<&'static str, String>,
    /// The settings for proxies.
    pub proxies: ProxiesOfNamespace,
    /// The settings that the pod cannot loosen.
    pub floor: NamespaceFloor,
}

/// The settings of a namespace that its pods cannot loosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceFloor {
    /// Whether its pods must have a proxy, even those that decline it.
    pub inject: bool,
    /// Whether its pods must be captured in the way that the namespace sets.
    pub capture: bool,
}

/// Puts the proxy into a pod or the template of one.
///
/// # Errors
/// [`InjectError`] if the pod has an invalid setting.
pub fn inject(
    pod: &mut JsonValue,
    settings: &InjectionSettings,
    enclosing: &PodContext,
) -> Result<PodOutcome, InjectError> {
    if is_waypoint(pod, settings) {
        return Ok(PodOutcome::Skipped(SkipReason::Waypoint));
    }
    let settings = settings.of_pod(pod, &enclosing.proxies)?;
    if let Some(left) = left(pod, &settings, enclosing.floor)? {
        if left == SkipReason::Meshed {
            check_captured(pod)?;
        }
        if settings.serves_workload_api && !has_workload_api(pod, left) {
            return Err(without_proxy(left));
        }
        return Ok(PodOutcome::Skipped(left));
    }
    check(pod)?;
    check_captured(pod)?;
    check_capture(pod, enclosing)?;
    if mode::is_node(pod, &enclosing.proxies)? {
        // A pod that declines a proxy gets here only if its namespace requires one. Other pods in node mode are not
        // changed, and the agent reads their settings; but a proxy of the node cannot serve the Workload API to them.
        return match declines(pod) {
            true => Err(InjectError::DeclinesNodeMode),
            false if settings.serves_workload_api => Err(served_by_none()),
            false => Ok(PodOutcome::Skipped(SkipReason::NodeMode)),
        };
    }
    let settings = settings.of_namespace(pod, &enclosing.proxies)?;
    if settings.shape == ContainerShape::Container && has_init_containers(pod) {
        return Err(InjectError::Before);
    }
    let mut injected = pod.clone();
    let spec = injected.get_mut("spec").ok_or(InjectError::Form("spec", "a map"))?;
    let mut probes = Probes::default();
    each_container(spec, |container| probes.take(container))?;

    let mut made = Vec::new();
    let first = default_container(spec);
    made.extend(pre_stop::add(spec, &settings));
    if settings.serves_workload_api {
        made.extend(workload_api::add(spec));
    }
    let proxy = container(&settings, &probes);
    let (list, new) = match settings.shape {
        ContainerShape::Sidecar => spec.list_in("initContainers"),
        ContainerShape::Container => spec.list_in("containers"),
    };
    list.insert(0, proxy);
    if new {
        made.push("initContainers".to_owned());
    }
    let (list, new) = spec.list_in("volumes");
    list.extend(volumes(&settings));
    if new {
        made.push("volumes".to_owned());
    }
    add_pull_secrets(spec, &settings, &mut made);
    annotate(&mut injected, (&settings, enclosing), first, made);
    *pod = injected;
    Ok(PodOutcome::Injected)
}

/// The change from `before` to `after`, as a JSON patch (RFC 6902) that adds, replaces or removes whole fields.
#[must_use]
pub fn patch(before: &JsonValue, after: &JsonValue) -> JsonValue {
    const FIELDS: [&[&str]; 6] = [
        &["metadata"],
        &["metadata", "annotations"],
        &["spec", "initContainers"],
        &["spec", "containers"],
        &["spec", "volumes"],
        &["spec", "imagePullSecrets"],
    ];
    let mut changes = Vec::new();
    let whole = before.get("metadata").is_none();
    for path in FIELDS {
        // A pod without `metadata` gets the field as a whole. In other pods only the annotations are patched.
        if path.first() == Some(&"metadata") && whole != (path.len() == 1) {
            continue;
        }
        let (old, new) = (before.at(path), after.at(path));
        if old == new {
            continue;
        }
        let pointer = path.iter().fold(String::new(), |at, field| at + "/" + field);
        let change = match new {
            // `add` also replaces a field that exists.
            Some(new) => {
                vec![("op", "add".into()), ("path", pointer.into()), ("value", new.clone())]
            }
            None => vec![("op", "remove".into()), ("path", pointer.into())],
        };
        let change = change.into_iter().map(|(name, value)| (name.to_owned(), value));
        changes.push(JsonValue::Map(change.collect()));
    }
    JsonValue::List(changes)
}

/// The value of the pod's label with this name, or else of the annotation.
pub(crate) fn setting<'p>(pod: &'p JsonValue, name: &str) -> Option<&'p JsonValue> {
    let of = |map| pod.at(&["metadata", map]).and_then(|map| map.get(name));
    of("labels").or_else(|| of("annotations"))
}

pub(crate) fn one_of<'p>(
    pod: &'p JsonValue,
    name: &str,
    allowed: &[&'static str],
) -> Result<Option<&'p str>, InjectError> {
    let Some(given) = setting(pod, name) else { return Ok(None) };
    let text = given.text().filter(|text| allowed.contains(text));
    let reason = || format!("{} is not one of {}", said(given), allowed.join(", "));
    let wrong = || InjectError::Annotation { name: name.to_owned(), reason: reason() };
    text.map(Some).ok_or_else(wrong)
}

/// Why injection leaves the pod unchanged; `None` if it does not.
fn left(
    pod: &JsonValue,
    settings: &InjectionSettings,
    floor: NamespaceFloor,
) -> Result<Option<SkipReason>, InjectError> {
    let spec = pod.get("spec").ok_or(InjectError::Form("spec", "a map"))?;
    let mut containers = spec.containers();
    let on_windows = || {
        let system = spec.at(&["os", "name"]);
        let node = spec.get("nodeSelector").and_then(|node| node.get("kubernetes.io/os"));
        system.or(node).and_then(JsonValue::text) == Some("windows")
    };
    let ends = || {
        let policy = spec.get("restartPolicy").and_then(JsonValue::text);
        settings.shape == ContainerShape::Container && matches!(policy, Some("Never" | "OnFailure"))
    };
    let annotations = pod.at(&["metadata", "annotations"]);
    let asked = one_of(pod, INJECT_ANNOTATION, &["enabled", "disabled"])?;
    one_of(pod, CAPTURE_ANNOTATION, &CAPTURES)?;
    let reasons = [
        (containers.any(|one| one.name() == Some(CONTAINER)), SkipReason::Meshed),
        (asked == Some("disabled") && !floor.inject, SkipReason::Disabled),
        (matches!(spec.get("hostNetwork"), Some(JsonValue::Bool(true))), SkipReason::HostNetwork),
        (annotations.is_some_and(|all| all.get(MIRROR).is_some()), SkipReason::Mirror),
        (on_windows(), SkipReason::Windows),
        (ends(), SkipReason::Ends),
    ];
    Ok(reasons.into_iter().find_map(|(holds, left)| holds.then_some(left)))
}

/// Whether a pod declines a proxy.
pub(crate) fn declines(pod: &JsonValue) -> bool {
    setting(pod, INJECT_ANNOTATION).and_then(JsonValue::text) == Some("disabled")
}

impl PodContext {
    /// The context of the pods of a namespace with these labels and annotations. Its pods may loosen the settings.
    #[must_use]
    pub fn of_namespace(settings: &BTreeMap<String, String>) -> Self {
        let of_agent = AGENT_ANNOTATIONS.into_iter();
        let of_agent = of_agent.filter_map(|(name, _)| Some((name, settings.get(name)?.clone())));
        Self {
            agent: of_agent.collect(),
            proxies: ProxiesOfNamespace::new(settings),
            floor: NamespaceFloor::default(),
        }
    }

    /// Whether the pod overrides none of the settings that it may not loosen.
    #[must_use]
    pub fn suits(&self, pod: &JsonValue) -> bool {
        !(self.floor.inject && declines(pod)) && self.contradicted(pod).is_none()
    }

    /// Whether the namespace's setting applies and makes the pod's proxy serve the Workload API.
    pub(crate) fn offers_workload_api(&self, pod: &JsonValue) -> bool {
        !workload_api::is_said_by(pod) && self.proxies.serves_workload_api() == Ok(true)
    }

    /// The capture that the pod sets and the one that its namespace sets, if they differ and the pod may not
    /// choose.
    fn contradicted<'a>(&'a self, pod: &'a JsonValue) -> Option<(&'a str, &'a str)> {
        let of_namespace =
            self.agent.get(CAPTURE_ANNOTATION).filter(|_| self.floor.capture)?.as_str();
        let own = setting(pod, CAPTURE_ANNOTATION)?.text()?;
        (own != of_namespace && of_namespace != "auto").then_some((own, of_namespace))
    }
}

/// Whether a pod has the same capture as its namespace, if it may not choose. A pod with another capture is
/// rejected and not corrected, because the setting may be a label by which a ReplicaSet selects its pods.
fn check_capture(pod: &JsonValue, enclosing: &PodContext) -> Result<(), InjectError> {
    let Some((own, of_namespace)) = enclosing.contradicted(pod) else { return Ok(()) };
    let reason = format!(
        "{own} contradicts its namespace, which has {of_namespace}: remove it from the pod, or \
         have an administrator create a PodExemption with settings: [capture]"
    );
    Err(InjectError::Annotation { name: CAPTURE_ANNOTATION.to_owned(), reason })
}

/// Checks whether the pod can have a proxy.
fn check(pod: &JsonValue) -> Result<(), InjectError> {
    let spec = pod.get("spec").ok_or(InjectError::Form("spec", "a map"))?;
    let maps = [("metadata", pod.get("metadata")), ("spec", Some(spec))];
    let annotations = pod.at(&["metadata", "annotations"]);
    for (name, map) in maps.into_iter().chain([("metadata.annotations", annotations)]) {
        if map.is_some_and(|map| !matches!(map, JsonValue::Map(_))) {
            return Err(InjectError::Form(name, "a map"));
        }
    }
    for list in ["containers", "initContainers", "volumes", "imagePullSecrets"] {
        if spec.get(list).is_some_and(|given| !matches!(given, JsonValue::List(_))) {
            return Err(InjectError::Form(list, "a list"));
        }
    }
    if spec.list("containers").is_empty() {
        return Err(InjectError::Form("containers", "a list of at least one"));
    }
    for own in [TOKEN_VOLUME, ROOTS, WORKLOAD_API_VOLUME, IDENTITY_VOLUME] {
        let same = |volume: &JsonValue| volume.name() == Some(own);
        if spec.list("volumes").iter().any(same) {
            return Err(InjectError::Volume(own));
        }
    }
    if user(spec) == Some(PROXY_UID.into()) {
        return Err(InjectError::User("it".to_owned()));
    }
    for container in spec.containers() {
        if let Some(port) = ports::taken(container) {
            return Err(InjectError::Port { container: name(container).to_owned(), port });
        }
        // Only this volume is checked. A hostPath volume that leads to the same folder on the node must be forbidden by
        // a policy of the namespace.
        let writes = |mount: &JsonValue| {
            mount.name() == Some(WORKLOAD_API_VOLUME)
                && !matches!(mount.get("readOnly"), Some(JsonValue::Bool(true)))
        };
        if container.list("volumeMounts").iter().any(writes) {
            return Err(InjectError::WorkloadApiMount(name(container).to_owned()));
        }
    }
    Ok(())
}

/// The error for a pod in node mode that wants the Workload API.
fn served_by_none() -> InjectError {
    let reason = "needs a proxy in the pod, whose containers alone reach its socket: set leno.dev/mode: sidecar, or remove it";
    InjectError::Annotation { name: workload_api::ANNOTATION.to_owned(), reason: reason.to_owned() }
}

/// Whether a pod that is left unchanged need not be rejected: its proxy serves the Workload API already, or the
/// pod is static and runs already.
fn has_workload_api(pod: &JsonValue, left: SkipReason) -> bool {
    let mut containers = pod.get("spec").into_iter().flat_map(JsonValue::containers);
    let serves = |proxy: &JsonValue| {
        proxy.list("volumeMounts").iter().any(|mount| mount.name() == Some(WORKLOAD_API_VOLUME))
    };
    match left {
        SkipReason::Meshed => containers.any(|one| one.name() == Some(CONTAINER) && serves(one)),
        SkipReason::Mirror => true,
        _ => false,
    }
}

/// The error for a pod that wants the Workload API but gets no proxy. Without the error, its application would
/// wait for a socket that never appears.
fn without_proxy(left: SkipReason) -> InjectError {
    let reason = match left {
        SkipReason::Meshed => {
            "needs a proxy that serves it, but the pod was injected earlier with one that does \
             not: run leno uninject and inject the pod again, or remove the annotation"
                .to_owned()
        }
        left => format!(
            "needs a proxy in the pod, which gets none, because {left}: change that, \
             or remove the annotation"
        ),
    };
    InjectError::Annotation { name: workload_api::ANNOTATION.to_owned(), reason }
}

/// Checks, as far as the spec shows, that no container of a captured pod could be mistaken for the proxy. This
/// also applies to pods that have brought their own proxy.
fn check_captured(pod: &JsonValue) -> Result<(), InjectError> {
    let Some(spec) = pod.get("spec") else { return Ok(()) };
    // A pod in its node's network is not captured.
    if matches!(spec.get("hostNetwork"), Some(JsonValue::Bool(true))) {
        return Ok(());
    }
    for container in spec.containers().filter(|one| one.name() != Some(CONTAINER)) {
        if user(container).or(user(spec)) == Some(PROXY_UID.into()) {
            return Err(InjectError::User(format!("its container {}", name(container))));
        }
    }
    let sysctls = spec.get("securityContext").map_or(&[][..], |context| context.list("sysctls"));
    // A sysctl may be written with dots or with slashes (sysctl.d(5)).
    if sysctls.iter().any(|sysctl| name(sysctl).replace('/', ".") == RESERVED) {
        return Err(InjectError::Reserved);
    }
    Ok(())
}

fn name(of: &JsonValue) -> &str {
    of.name().unwrap_or_default()
}

/// The user that a pod or a container sets in its security context.
fn user(of: &JsonValue) -> Option<i64> {
    of.at(&["securityContext", "runAsUser"]).and_then(JsonValue::number)
}

fn has_init_containers(pod: &JsonValue) -> bool {
    pod.get("spec").is_some_and(|spec| !spec.list("initContainers").is_empty())
}

/// Calls a function for every container that can have probes.
pub(crate) fn each_container<E>(
    spec: &mut JsonValue,
    mut work: impl FnMut(&mut JsonValue) -> Result<(), E>,
) -> Result<(), E> {
    for list in ["initContainers", "containers"] {
        if let Some(JsonValue::List(containers)) = spec.get_mut(list) {
            containers.iter_mut().try_for_each(&mut work)?;
        }
    }
    Ok(())
}

/// Adds those Secrets for pulling the proxy's image that the pod does not have yet. It may have them from its spec, or
/// from its service account, whose Secrets the API server has added by then.
fn add_pull_secrets(spec: &mut JsonValue, settings: &InjectionSettings, made: &mut Vec<String>) {
    let has = |wanted: &str| spec.list(PULL_SECRETS).iter().any(|secret| name(secret) == wanted);
    let missing: Vec<String> =
        settings.pull_secrets.iter().filter(|wanted| !has(wanted.as_str())).cloned().collect();
    if missing.is_empty() {
        return;
    }
    let (list, new) = spec.list_in(PULL_SECRETS);
    for wanted in missing {
        let mut secret = JsonValue::map();
        secret.set("name", wanted.as_str());
        list.push(secret);
        made.push(PULL_SECRET.to_owned() + &wanted);
    }
    if new {
        made.push(PULL_SECRETS.to_owned());
    }
}

/// The default container for `kubectl`, which is the first one.
fn default_container(spec: &JsonValue) -> Option<String> {
    let first = spec.list("containers").first()?;
    first.name().map(str::to_owned)
}

/// Records in annotations what injection has done.
fn annotate(
    pod: &mut JsonValue,
    (settings, enclosing): (&InjectionSettings, &PodContext),
    first: Option<String>,
    mut made: Vec<String>,
) {
    let mut all = Vec::new();
    // The agent reads these from the pod. So they apply for as long as the pod's proxy runs, even if the namespace
    // changes.
    for (name, recorded) in AGENT_ANNOTATIONS {
        if let (None, Some(value)) = (setting(pod, name), enclosing.agent.get(name)) {
            all.push((name, value.clone()));
            made.push(recorded.to_owned());
        }
    }
    let said = pod.at(&["metadata", "annotations", DEFAULT_CONTAINER]).is_some();
    if let (ContainerShape::Container, false, Some(first)) = (settings.shape, said, first) {
        all.push((DEFAULT_CONTAINER, first));
        made.push("default-container".to_owned());
    }
    for map in ["metadata", "annotations"] {
        let path: &[&str] = if map == "metadata" { &["metadata"] } else { &["metadata", map] };
        if pod.at(path).is_some() {
            continue;
        }
        made.push(map.to_owned());
        match pod.get_mut("metadata") {
            Some(metadata) => metadata.set(map, JsonValue::map()),
            None => pod.set(map, JsonValue::map()),
        }
    }
    all.push((RECORD, made.join(",")));
    let annotations = pod.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"));
    if let Some(annotations) = annotations {
        all.into_iter().for_each(|(name, text)| annotations.set(name, text));
    }
}

pub(crate) fn said(value: &JsonValue) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Meshed => "it has a proxy already",
            Self::Disabled => "it has leno.dev/inject: disabled",
            Self::HostNetwork => "it uses its node's network",
            Self::Mirror => "its node runs it from a file (a static pod)",
            Self::Windows => "it runs on Windows",
            Self::Waypoint => "it is the proxy of a waypoint",
            Self::NodeMode => {
                "it has leno.dev/mode: node, or its namespace has: a proxy of its node serves it"
            }
            Self::Ends => {
                "it is meant to complete, but would not with a proxy in an ordinary container: use \
                 a native sidecar (Kubernetes 1.29)"
            }
        })
    }
}
