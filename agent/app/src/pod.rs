//! The fields of a pod that the agent uses.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod as Object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use leno_capture::{CaptureChoice, UnknownBackend};
use leno_flows::{CpuBudget, FlowMetricsSource, UnknownBudget, UnknownFlowMetricsSource};
use leno_handover::{KubeletProbes, PlacedPod};
use leno_resources::{
    CAPTURE_ANNOTATION, FLOW_CPU_BUDGET_ANNOTATION, FLOW_METRICS_ANNOTATION, NamespaceMode,
    PodMode, UDP_ANNOTATION, promote_after, promotion, setting, share,
};
use leno_sources::{PROXY_CONTAINER, is_served, owner};
use leno_supervise::ProcessSharing;
use leno_types::{Datagrams, InstanceName, UnknownDatagrams};

mod probes;

/// The name label of pods in which node proxies run. The label grants no rights: the agent reads the request
/// counts of processes with the proxies' user in every meshed pod in any case.
const SUPERVISORS: (&str, &str) = ("app.kubernetes.io/name", "leno-node");

/// The fields of a pod that the agent needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pod {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// The uid that the API server has given the pod. No client can choose it, and the node's directories and
    /// control groups are named after it. A static pod has another uid on the node, which the CNI plugin passes.
    /// An annotation also contains that uid, but it is not used, because any user could write another pod's uid in
    /// it.
    pub(crate) uid: String,
    /// The workload that has created it, as users refer to it: its Deployment, StatefulSet, CronJob, ..., or the
    /// pod itself.
    pub(crate) workload: String,
    /// Whether it has a proxy, either a sidecar or a node proxy, and a network namespace of its own.
    pub(crate) meshed: bool,
    /// Whether it has a network namespace of its own.
    pub(crate) own_network: bool,
    /// Whether node proxies run in it.
    pub(crate) has_node_proxies: bool,
    /// Whether all its containers have ended for good.
    pub(crate) ended: bool,
    /// What its status reports of whether a node proxy serves it; `None` without a report.
    pub(crate) served: Option<bool>,
    /// The source of its flow metrics that it sets or, in node mode, that its namespace sets. For pods with a
    /// sidecar, the injector copies the namespace's setting to the pod.
    pub(crate) flows: Option<Result<FlowMetricsSource, UnknownFlowMetricsSource>>,
    /// The CPU budget for accounting its flows, set in the same way.
    pub(crate) flow_budget: Option<Result<CpuBudget, UnknownBudget>>,
    /// Its choice of capture, set in the same way.
    pub(crate) capture: Option<Result<CaptureChoice, UnknownBackend>>,
    /// Which of its datagrams its proxy carries, set in the same way.
    pub(crate) datagrams: Option<Result<Datagrams, UnknownDatagrams>>,
    /// Whether it has a separate user namespace, so that its user IDs differ from the node's (`hostUsers: false`).
    pub(crate) own_users: bool,
    /// Whether it sets kernel parameters (sysctls) in its namespaces.
    pub(crate) sysctls: bool,
    pub(crate) account: String,
    /// Its annotation for node mode, if it has no sidecar but a network namespace of its own.
    pub(crate) mode: Option<PodMode>,
    /// Which pods share its process in node mode, if its own annotation sets that.
    pub(crate) share: Option<String>,
    /// How long it must be busy before it gets its own proxy process: the text of its annotation, if it has one.
    pub(crate) promotion: Option<String>,
    /// The same setting of its namespace, which applies if it has no annotation.
    pub(crate) namespace_promotion: Option<String>,
    /// Its HTTP probes as JSON, for its node proxy.
    pub(crate) probes: String,
    /// The group whose node proxy serves it; `None` if it is not in node mode.
    pub(crate) group: Option<String>,
    /// Whether its namespace does not put it into the mesh, and it says nothing of that itself. False while the namespaces are not
    /// known.
    pub(crate) withdrawn: bool,
}

/// The settings of a namespace for its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceSettings {
    mode: NamespaceMode,
    share: Option<String>,
    promotion: Option<String>,
    capture: Option<Result<CaptureChoice, UnknownBackend>>,
    datagrams: Option<Result<Datagrams, UnknownDatagrams>>,
    flows: Option<Result<FlowMetricsSource, UnknownFlowMetricsSource>>,
    flow_budget: Option<Result<CpuBudget, UnknownBudget>>,
}

impl NamespaceSettings {
    /// Whether its pods must not start while it is not known whether they are in node mode: they are by default, or those that
    /// are must not be without the capture that the namespace asks for.
    pub(crate) fn needs_agent(&self) -> bool {
        let carries = |datagrams: &Result<Datagrams, _>| *datagrams != Ok(Datagrams::Off);
        PodMode::default().is_node(self.mode)
            || self.capture.is_some()
            || self.datagrams.as_ref().is_some_and(carries)
    }

    /// The settings of a namespace; `None` if it sets nothing.
    pub(crate) fn new(metadata: &ObjectMeta) -> Option<Self> {
        let (labels, annotations) = (metadata.labels.as_ref(), metadata.annotations.as_ref());
        let of = |name| setting(labels, annotations, name);
        let own = Self {
            mode: NamespaceMode::new(labels, annotations),
            share: share(labels, annotations).map(str::to_owned),
            promotion: promotion(labels, annotations).map(str::to_owned),
            capture: of(CAPTURE_ANNOTATION).map(str::parse),
            datagrams: of(UDP_ANNOTATION).map(str::parse),
            flows: of(FLOW_METRICS_ANNOTATION).map(str::parse),
            flow_budget: of(FLOW_CPU_BUDGET_ANNOTATION).map(str::parse),
        };
        (own != Self::default()).then_some(own)
    }
}

impl Pod {
    /// Reads the fields of a pod of the API server.
    pub(crate) fn new(object: &Object) -> Self {
        let metadata = &object.metadata;
        let spec = object.spec.as_ref();
        let is_proxy = |container: &Container| container.name == PROXY_CONTAINER;
        let has_proxy = spec.is_some_and(|spec| {
            spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(is_proxy)
        });
        let host_network = spec.is_some_and(|spec| spec.host_network == Some(true));
        let phase = object.status.as_ref().and_then(|status| status.phase.as_deref());
        let label = |name: &str| metadata.labels.as_ref()?.get(name);
        let either = |name| setting(metadata.labels.as_ref(), metadata.annotations.as_ref(), name);
        Self {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            workload: owner(object).name,
            meshed: has_proxy && !host_network,
            own_network: !host_network,
            has_node_proxies: label(SUPERVISORS.0).is_some_and(|name| name == SUPERVISORS.1),
            flows: either(FLOW_METRICS_ANNOTATION).map(str::parse),
            flow_budget: either(FLOW_CPU_BUDGET_ANNOTATION).map(str::parse),
            ended: matches!(phase, Some("Succeeded" | "Failed")),
            served: is_served(object),
            capture: either(CAPTURE_ANNOTATION).map(str::parse),
            datagrams: either(UDP_ANNOTATION).map(str::parse),
            sysctls: spec
                .and_then(|spec| spec.security_context.as_ref()?.sysctls.as_ref())
                .is_some_and(|sysctls| !sysctls.is_empty()),
            own_users: spec.is_some_and(|spec| spec.host_users == Some(false)),
            account: spec
                .and_then(|spec| spec.service_account_name.clone())
                .unwrap_or_else(|| "default".to_owned()),
            mode: (!has_proxy && !host_network)
                .then(|| PodMode::new(metadata.labels.as_ref(), metadata.annotations.as_ref())),
            share: share(metadata.labels.as_ref(), metadata.annotations.as_ref())
                .map(str::to_owned),
            promotion: promotion(metadata.labels.as_ref(), metadata.annotations.as_ref())
                .map(str::to_owned),
            namespace_promotion: None,
            probes: match host_network || has_proxy {
                true => String::new(),
                false => probes::of(spec),
            },
            group: None,
            withdrawn: false,
        }
    }

    /// The pod with the settings of its namespace as defaults.
    pub(crate) fn within(mut self, namespace: Option<&NamespaceSettings>) -> Self {
        let of_namespace = namespace.map(|settings| settings.mode).unwrap_or_default();
        if !self.mode.is_some_and(|mode| mode.is_node(of_namespace)) {
            self.withdrawn = self.mode.is_some_and(|mode| mode.is_withdrawn(of_namespace));
            return self;
        }
        let Ok(name) = InstanceName::new(&self.namespace, &self.name) else { return self };
        let share = self.share.as_ref().or(namespace.and_then(|settings| settings.share.as_ref()));
        // The injector rejects invalid values. A value that became invalid later is ignored.
        let share: ProcessSharing = share.and_then(|text| text.parse().ok()).unwrap_or_default();
        self.group = Some(share.group(&name, &self.account));
        self.namespace_promotion = namespace.and_then(|settings| settings.promotion.clone());
        if let Some(namespace) = namespace {
            self.capture = self.capture.or_else(|| namespace.capture.clone());
            self.datagrams = self.datagrams.or_else(|| namespace.datagrams.clone());
            self.flows = self.flows.or_else(|| namespace.flows.clone());
            self.flow_budget = self.flow_budget.or_else(|| namespace.flow_budget.clone());
        }
        self.meshed = true;
        self
    }

    /// The description of the pod for its node proxy, if it is in node mode. `captured` is which of its datagrams
    /// are captured, which may differ from its present annotations.
    pub(crate) fn placed(&self, captured: Datagrams) -> Option<PlacedPod> {
        Some(PlacedPod {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            workload: Some(self.workload.clone()),
            uid: self.uid.clone(),
            group: self.group.clone()?,
            kubelet: KubeletProbes { probes: self.probes.clone(), addresses: Vec::new() },
            datagrams: captured.is_on(),
            promote_after_ms: promote_after_ms(self.promotion.as_deref()),
            namespace_promote_after_ms: promote_after_ms(self.namespace_promotion.as_deref()),
        })
    }
}

/// How long a pod must be busy before it gets its own proxy process, in milliseconds; 0 turns that off. The
/// injector rejects invalid values. A value that became invalid later is ignored.
fn promote_after_ms(said: Option<&str>) -> Option<u64> {
    let after = promote_after(said?).ok()?;
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Some(after.map_or(0, ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use leno_capture::Backend;

    fn pod(metadata: &str, spec: &str, phase: &str) -> Pod {
        let text = format!(
            r#"{{"metadata":{{"name":"web-0","namespace":"shop","uid":"u"{metadata}}},
                "spec":{spec},"status":{{"phase":"{phase}"}}}}"#
        );
        Pod::new(&serde_json::from_str(&text).unwrap())
    }

    const SIDECAR: &str =
        r#"{"containers":[{"name":"web"}],"initContainers":[{"name":"leno-proxy"}]}"#;

    #[test]
    fn a_pod_with_a_proxy_and_a_network_of_its_own_is_meshed() {
        let meshed = |spec: &str| pod("", spec, "Running").meshed;
        assert!(meshed(SIDECAR));
        assert!(meshed(r#"{"containers":[{"name":"web"},{"name":"leno-proxy"}]}"#));
        assert!(!meshed(r#"{"containers":[{"name":"web"}]}"#));
        let host = SIDECAR.replacen('{', r#"{"hostNetwork":true,"#, 1);
        assert!(!meshed(&host));
    }

    #[test]
    fn how_it_is_captured_stands_in_its_label_or_its_annotation() {
        let capture = |metadata: &str| pod(metadata, SIDECAR, "Pending").capture;
        assert_eq!(capture(""), None);
        let label = r#","labels":{"leno.dev/capture":"iptables"}"#;
        assert_eq!(capture(label), Some(Ok(CaptureChoice::Only(Backend::Iptables))));
        let both = format!(r#"{label},"annotations":{{"leno.dev/capture":"ebpf"}}"#);
        assert_eq!(capture(&both), Some(Ok(CaptureChoice::Only(Backend::Iptables))));
        assert!(capture(r#","annotations":{"leno.dev/capture":"tproxy"}"#).unwrap().is_err());
    }

    #[test]
    fn where_its_flows_are_read_stands_in_its_annotation() {
        let flows = |metadata: &str| pod(metadata, SIDECAR, "Pending").flows;
        assert_eq!(flows(""), None);
        let asked = |value: &str| {
            flows(&format!(r#","annotations":{{"leno.dev/flow-metrics":"{value}"}}"#))
        };
        assert_eq!(asked("packets"), Some(Ok(FlowMetricsSource::Packets)));
        assert!(asked("all").unwrap().is_err());
        let budget = |value: &str| {
            let metadata = format!(r#","annotations":{{"leno.dev/flow-cpu-budget":"{value}"}}"#);
            pod(&metadata, SIDECAR, "Pending").flow_budget.unwrap()
        };
        assert_eq!(budget("0.2%").unwrap().to_string(), "0.2%");
        assert!(budget("much").is_err());
    }

    #[test]
    fn no_annotation_gives_a_pod_the_uid_of_another() {
        let names = ["hash", "mirror", "source"].map(|name| format!("kubernetes.io/config.{name}"));
        let annotations = names.map(|name| format!(r#""{name}":"victim""#)).join(",");
        let metadata = format!(r#","annotations":{{{annotations}}}"#);
        assert_eq!(pod(&metadata, SIDECAR, "Running").uid, "u");
    }

    #[test]
    fn a_pod_in_node_mode_has_a_group_and_is_meshed() {
        let namespace = |labels: &str| {
            let metadata = format!(r#"{{"name":"shop","labels":{labels}}}"#);
            NamespaceSettings::new(&serde_json::from_str(&metadata).unwrap())
        };
        let node = namespace(r#"{"leno.dev/inject":"enabled","leno.dev/mode":"node"}"#);
        assert_eq!(namespace("{}"), None);
        let plain = r#"{"serviceAccountName":"web","containers":[{"name":"web"}]}"#;
        let group = |metadata: &str, spec: &str, namespace: &Option<NamespaceSettings>| {
            let pod = pod(metadata, spec, "Pending").within(namespace.as_ref());
            assert_eq!(pod.meshed, pod.group.is_some() || spec.contains("leno-proxy"));
            pod.group
        };
        let of = |metadata: &str| group(metadata, plain, &node);
        assert_eq!(of("").as_deref(), Some("service-account.shop.web"));
        let share = |share: &str| format!(r#","annotations":{{"leno.dev/share":"{share}"}}"#);
        assert_eq!(of(&share("node")).as_deref(), Some("node"));
        assert_eq!(of(&share("workload")).as_deref(), Some("workload.shop.web-0"));
        assert_eq!(of(r#","labels":{"leno.dev/mode":"sidecar"}"#), None);
        assert_eq!(group("", plain, &None), None);
        assert_eq!(group("", SIDECAR, &node), None, "it has a proxy");
        let host = plain.replacen('{', r#"{"hostNetwork":true,"#, 1);
        assert_eq!(group("", &host, &node), None);
    }

    #[test]
    fn how_long_a_pod_is_busy_before_it_is_promoted_is_said_by_itself_and_by_its_namespace() {
        let of_namespace = r#"{"name":"shop","labels":{"leno.dev/inject":"enabled","leno.dev/mode":"node"},
            "annotations":{"leno.dev/promote-after":"90s"}}"#;
        let of_namespace = NamespaceSettings::new(&serde_json::from_str(of_namespace).unwrap());
        let after = |metadata: &str| {
            let pod = pod(metadata, r#"{"containers":[{"name":"web"}]}"#, "Pending");
            let placed = pod.within(of_namespace.as_ref()).placed(Datagrams::Off).unwrap();
            assert_eq!(placed.namespace_promote_after_ms, Some(90_000));
            placed.promote_after_ms
        };
        let own = |value: &str| format!(r#","annotations":{{"leno.dev/promote-after":"{value}"}}"#);
        assert_eq!(after(""), None);
        assert_eq!(after(&own("1m")), Some(60_000));
        assert_eq!(after(&own("off")), Some(0));
        assert_eq!(after(&own("soon")), None);
    }

    #[test]
    fn what_is_captured_and_how_is_said_by_a_pod_and_in_node_mode_by_its_namespace() {
        use Datagrams::{All, Enabled, Off};
        let namespace = |mode: &str| {
            let metadata = format!(
                r#"{{"name":"shop","labels":{{"leno.dev/inject":"enabled","leno.dev/mode":"{mode}"}},
                    "annotations":{{"leno.dev/udp":"enabled","leno.dev/capture":"ebpf"}}}}"#
            );
            NamespaceSettings::new(&serde_json::from_str(&metadata).unwrap())
        };
        let plain = r#"{"containers":[{"name":"web"}]}"#;
        let own = |value: &str| format!(r#","annotations":{{"leno.dev/udp":"{value}"}}"#);
        let of = |metadata: &str, spec: &str, mode: &str| {
            pod(metadata, spec, "Pending").within(namespace(mode).as_ref()).datagrams
        };
        assert_eq!(of("", plain, "node"), Some(Ok(Enabled)));
        assert_eq!(of(&own("off"), plain, "node"), Some(Ok(Off)), "the pod decides");
        assert_eq!(of(r#","labels":{"leno.dev/udp":"all"}"#, plain, "node"), Some(Ok(All)));
        assert!(of(&own("on"), plain, "node").unwrap().is_err());
        assert_eq!(of("", SIDECAR, "sidecar"), None, "its sidecar was made for none");
        assert_eq!(of(&own("all"), SIDECAR, "sidecar"), Some(Ok(All)));
        let of_namespace = namespace("node");
        let capture =
            |metadata: &str| pod(metadata, plain, "Pending").within(of_namespace.as_ref()).capture;
        assert_eq!(capture(""), Some(Ok(CaptureChoice::Only(Backend::Ebpf))));
        let own_way = r#","labels":{"leno.dev/capture":"nftables"}"#;
        assert_eq!(capture(own_way), Some(Ok(CaptureChoice::Only(Backend::Nftables))));
        for captured in [Off, Enabled, All] {
            let pod = pod("", plain, "Pending").within(namespace("node").as_ref());
            assert_eq!(pod.placed(captured).unwrap().datagrams, captured != Off);
        }
    }

    /// A value for a setting of a namespace that the agent follows for pods in node mode. The error is the reason
    /// why the agent does not follow the setting.
    fn of_namespace(setting: &str) -> Result<&'static str, &'static str> {
        Ok(match setting {
            "leno.dev/share" => "namespace",
            "leno.dev/promote-after" => "90s",
            "leno.dev/udp" => "all",
            "leno.dev/capture" => "nftables",
            "leno.dev/flow-metrics" => "packets",
            "leno.dev/flow-cpu-budget" => "0.2%",
            "leno.dev/mode" => "sidecar",
            "leno.dev/inject" => return Err("followed as a label"),
            "leno.dev/mtls"
            | "leno.dev/egress"
            | "leno.dev/default-authorization"
            | "leno.dev/path-normalisation"
            | "leno.dev/tunnel"
            | "leno.dev/use-waypoint"
            | "leno.dev/use-waypoint-namespace"
            | "leno.dev/keys-from" => return Err("the control plane follows it"),
            "leno.dev/waypoint" | "leno.dev/waypoint-from" => return Err("a label of pods"),
            "leno.dev/workload-api" => return Err("only proxies in the pod serve certificates"),
            "leno.dev/spiffe-endpoint-socket" => {
                return Err("the control plane issues certificates of node mode");
            }
            "leno.dev/flow-map-size" | "leno.dev/flow-ring-size" => return Err("of the node"),
            forgotten => panic!("{forgotten}: follow it of namespaces, or say here what does"),
        })
    }

    #[test]
    fn each_setting_of_a_namespace_reaches_its_pods_in_node_mode_or_says_why_not() {
        let of = |own: &str, setting: &str, value: &str| {
            let mut annotations = serde_json::json!({"leno.dev/mode": "node"});
            annotations[setting] = value.into();
            let labels = serde_json::json!({"leno.dev/inject": "enabled"});
            let metadata = serde_json::json!({"labels": labels, "annotations": annotations});
            let namespace = NamespaceSettings::new(&serde_json::from_value(metadata).unwrap());
            pod(own, r#"{"containers":[{"name":"web"}]}"#, "Pending").within(namespace.as_ref())
        };
        let plain = of("", "leno.dev/mode", "node");
        for setting in leno_resources::SETTINGS {
            let Ok(value) = of_namespace(setting) else { continue };
            assert_ne!(of("", setting, value), plain, "{setting}: {value} changes no pod");
        }
        let packets = |own: &str| of(own, FLOW_METRICS_ANNOTATION, "packets").flows;
        assert_eq!(packets(""), Some(Ok(FlowMetricsSource::Packets)));
        let own = r#","annotations":{"leno.dev/flow-metrics":"off"}"#;
        assert_eq!(packets(own), Some(Ok(FlowMetricsSource::Off)), "the pod decides");
    }

    #[test]
    fn a_pod_ends_with_its_containers() {
        assert!(pod("", SIDECAR, "Succeeded").ended && pod("", SIDECAR, "Failed").ended);
        assert!(!pod("", SIDECAR, "Pending").ended);
        let users = SIDECAR.replacen('{', r#"{"hostUsers":false,"#, 1);
        assert!(pod("", &users, "Pending").own_users && !pod("", SIDECAR, "Pending").own_users);
    }
}
