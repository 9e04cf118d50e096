//! The request that the API server sends before it stores an object, and the response to it
//! (`admission.k8s.io/v1`).

use data_encoding::BASE64;

use crate::inject::{PodContext, PodOutcome, SkipReason, declines, inject, patch};
use crate::settings::InjectionSettings;
use crate::value::JsonValue;

const VERSION: &str = "admission.k8s.io/v1";
/// Longest warning. The API server truncates warnings above 256 characters.
const MAX_WARNING: usize = 250;
/// Most warnings in one response. A user would not read more.
const MAX_WARNINGS: usize = 16;

/// Why a text is not a review.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The text is not JSON.
    #[error("the review is not JSON")]
    Json(#[from] serde_json::Error),
    /// A field is missing or has another form.
    #[error("the review has no {0}")]
    Missing(&'static str),
}

/// A request to decide whether an object may be stored.
#[derive(Clone, Debug)]
pub struct AdmissionReview {
    uid: String,
    /// The namespace of the object; empty if it has none.
    pub namespace: String,
    /// The new object.
    pub object: JsonValue,
    /// The object before the change, if the request is an update.
    pub old: Option<JsonValue>,
}

/// The answer to a review.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReviewAnswer {
    /// Why the object must not be stored; `None` if it may.
    pub denied: Option<String>,
    /// The warnings for the client that stores the object.
    pub warnings: Vec<String>,
    /// The changes of the object, as a JSON patch; empty or null for none.
    pub patch: Option<JsonValue>,
}

impl AdmissionReview {
    /// Parses a request of the API server.
    ///
    /// # Errors
    /// [`ReviewError`] if it is not a review.
    pub fn parse(text: &[u8]) -> Result<Self, ReviewError> {
        let mut review: JsonValue = serde_json::from_slice(text)?;
        if review.get("apiVersion").and_then(JsonValue::text) != Some(VERSION) {
            return Err(ReviewError::Missing("apiVersion admission.k8s.io/v1"));
        }
        let mut request = review.remove("request").ok_or(ReviewError::Missing("request"))?;
        let text = |field: &str| request.get(field).and_then(JsonValue::text).map(str::to_owned);
        let uid = text("uid").ok_or(ReviewError::Missing("request.uid"))?;
        let namespace = text("namespace").unwrap_or_default();
        let object = request.remove("object").ok_or(ReviewError::Missing("request.object"))?;
        let old = request.remove("oldObject").filter(|old| !matches!(old, JsonValue::Null));
        Ok(Self { uid, namespace, object, old })
    }

    /// Adds the proxy to the pod of this review.
    #[must_use]
    pub fn inject(&self, settings: &InjectionSettings, enclosing: &PodContext) -> ReviewAnswer {
        let mut pod = self.object.clone();
        match inject(&mut pod, settings, enclosing) {
            Ok(PodOutcome::Injected) => {
                let warning = || {
                    format!(
                        "leno.dev/inject: disabled has no effect, because namespace {} has \
                         enabled: an administrator can create a PodExemption with settings: \
                         [inject]",
                        self.namespace
                    )
                };
                let warnings = declines(&pod).then(warning).into_iter().collect();
                ReviewAnswer {
                    patch: Some(patch(&self.object, &pod)),
                    warnings,
                    ..ReviewAnswer::default()
                }
            }
            Ok(PodOutcome::Skipped(SkipReason::NodeMode))
                if enclosing.offers_workload_api(&pod) =>
            {
                let warning = format!(
                    "leno.dev/workload-api: enabled of namespace {} has no effect on a pod in node mode: set \
                     leno.dev/mode: sidecar on the pod if its application needs it",
                    self.namespace
                );
                ReviewAnswer { warnings: vec![warning], ..ReviewAnswer::default() }
            }
            Ok(PodOutcome::Skipped(_)) => ReviewAnswer::default(),
            Err(error) => ReviewAnswer::denied(format!("the pod cannot have a proxy: {error}")),
        }
    }

    /// The text of the response.
    #[must_use]
    pub fn answered(&self, answer: &ReviewAnswer) -> String {
        let mut response = JsonValue::from([
            ("uid", self.uid.as_str().into()),
            ("allowed", answer.denied.is_none().into()),
        ]);
        if let Some(reason) = &answer.denied {
            let status = [("code", 403_u32.into()), ("message", reason.as_str().into())];
            response.set("status", status);
        }
        if !answer.warnings.is_empty() {
            let warnings = answer.warnings.iter().take(MAX_WARNINGS);
            let warnings = warnings.map(|text| shortened(text).into()).collect();
            response.set("warnings", JsonValue::List(warnings));
        }
        if let Some(patch) = answer.patch.as_ref().filter(|patch| !patch.items().is_empty()) {
            let patch = serde_json::to_string(patch).expect("a value is JSON");
            response.set("patchType", "JSONPatch");
            response.set("patch", BASE64.encode(patch.as_bytes()));
        }
        let review = JsonValue::from([
            ("apiVersion", VERSION.into()),
            ("kind", "AdmissionReview".into()),
            ("response", response),
        ]);
        serde_json::to_string(&review).expect("a value is JSON")
    }
}

impl ReviewAnswer {
    /// An answer that denies the object.
    #[must_use]
    pub fn denied(reason: String) -> Self {
        Self { denied: Some(reason), ..Self::default() }
    }
}

fn shortened(text: &str) -> String {
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let end = ends.take_while(|end| *end <= MAX_WARNING).last().unwrap_or(0);
    if end == text.len() { text.to_owned() } else { format!("{}...", &text[..end]) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn review(pod: serde_json::Value) -> AdmissionReview {
        let review = json!({"apiVersion": VERSION, "kind": "AdmissionReview", "request": {
            "uid": "u-1", "namespace": "shop", "operation": "CREATE", "object": pod}});
        AdmissionReview::parse(review.to_string().as_bytes()).unwrap()
    }

    fn answer(review: &AdmissionReview, answer: &ReviewAnswer) -> serde_json::Value {
        let told: serde_json::Value = serde_json::from_str(&review.answered(answer)).unwrap();
        assert_eq!(told["response"]["uid"], "u-1");
        told["response"].clone()
    }

    #[test]
    fn a_pod_is_patched_to_what_injection_makes_of_it() {
        let bare = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web"}]}});
        let full = json!({
            "metadata": {"generateName": "web-", "annotations": {"a/b": "c"}},
            "spec": {
                "containers": [{"name": "web", "livenessProbe": {"tcpSocket": {"port": 80}}}],
                "initContainers": [{"name": "before"}],
                "volumes": [{"name": "files"}],
            },
        });
        let nameless = json!({"spec": {"containers": [{"name": "web"}]}});
        for pod in [bare, full, nameless] {
            let review = review(pod.clone());
            let told = answer(
                &review,
                &review.inject(&InjectionSettings::default(), &PodContext::default()),
            );
            assert_eq!((&told["allowed"], &told["patchType"]), (&json!(true), &json!("JSONPatch")));
            let changes = BASE64.decode(told["patch"].as_str().unwrap().as_bytes()).unwrap();
            let changes: json_patch::Patch = serde_json::from_slice(&changes).unwrap();
            let mut patched = pod;
            json_patch::patch(&mut patched, &changes).unwrap();
            let mut wanted = review.object.clone();
            inject(&mut wanted, &InjectionSettings::default(), &PodContext::default()).unwrap();
            assert_eq!(patched, serde_json::to_value(&wanted).unwrap());
        }
    }

    #[test]
    fn what_the_namespace_says_of_capture_is_copied_where_the_pod_says_nothing() {
        let settings = [("leno.dev/capture".to_owned(), "iptables".to_owned())].into();
        let enclosing = PodContext::of_namespace(&settings);
        for (own, expected) in [(None, Some("iptables")), (Some("ebpf"), None)] {
            let labels = own.map(|own| json!({"leno.dev/capture": own}));
            let review = review(json!({"metadata": {"labels": labels},
                "spec": {"containers": [{"name": "web"}]}}));
            let patch = review.inject(&InjectionSettings::default(), &enclosing).patch.unwrap();
            let annotations = patch.items()[0].get("value").unwrap();
            let copied = annotations.get("leno.dev/capture").and_then(JsonValue::text);
            assert_eq!(copied, expected);
        }
    }

    #[test]
    fn how_the_namespace_has_flows_accounted_for_is_copied_where_the_pod_says_nothing() {
        const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, \
            annotations: {leno.dev/flow-metrics: packets, leno.dev/flow-cpu-budget: 0.2%}}\n";
        let mut stored = crate::StoredObjects::default();
        let parsed = leno_resources::parse("", NAMESPACE).unwrap();
        parsed.objects.iter().for_each(|located| stored.put(&located.value));
        for (own, expected) in [(None, "packets"), (Some("off"), "off")] {
            let metadata = match own {
                Some(own) => json!({"annotations": {"leno.dev/flow-metrics": own}}),
                None => json!({"name": "web"}),
            };
            let spec = json!({"containers": [{"name": "web"}]});
            let review = review(json!({"metadata": metadata, "spec": spec}));
            let enclosing = stored.enclosing(&review).unwrap();
            let mut injected = review.object.clone();
            inject(&mut injected, &InjectionSettings::default(), &enclosing).unwrap();
            let annotation = |name: &str| {
                injected.at(&["metadata", "annotations", name]).and_then(JsonValue::text)
            };
            assert_eq!(annotation("leno.dev/flow-metrics"), Some(expected));
            assert_eq!(annotation("leno.dev/flow-cpu-budget"), Some("0.2%"));
            crate::uninject(&mut injected).unwrap();
            assert_eq!(injected, review.object);
        }
    }

    #[test]
    fn a_namespace_has_the_proxies_of_its_pods_serve_the_workload_api() {
        let stored = |value: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: {{leno.dev/workload-api: {value}}}}}\n"
            );
            let mut stored = crate::StoredObjects::default();
            let parsed = leno_resources::parse("", &text).unwrap();
            parsed.objects.iter().for_each(|located| stored.put(&located.value));
            stored
        };
        let answer = |stored: &crate::StoredObjects, annotations: serde_json::Value| {
            let spec = json!({"containers": [{"name": "web"}]});
            let review = review(json!({"metadata": {"annotations": annotations}, "spec": spec}));
            review.inject(&InjectionSettings::default(), &stored.enclosing(&review).unwrap())
        };
        let serves = |answer: &ReviewAnswer| {
            let patch = serde_json::to_string(answer.patch.as_ref().unwrap()).unwrap();
            patch.contains("SPIFFE_ENDPOINT_SOCKET")
        };
        let (enabled, disabled) = (stored("enabled"), stored("disabled"));
        let own = |value: &str| json!({"leno.dev/workload-api": value});
        assert!(serves(&answer(&enabled, json!({}))));
        assert!(!serves(&answer(&enabled, own("disabled"))), "the pod decides");
        assert!(serves(&answer(&disabled, own("enabled"))), "the pod decides");
        assert!(!serves(&answer(&disabled, json!({}))));
        // A pod that does not need the Workload API is not rejected.
        let left = answer(&enabled, json!({"leno.dev/inject": "disabled"}));
        assert_eq!(left, ReviewAnswer::default());
        let left = answer(&enabled, json!({"leno.dev/mode": "node"}));
        assert_eq!((&left.denied, &left.patch), (&None, &None));
        assert!(left.warnings[0].contains("namespace shop has no effect"), "{:?}", left.warnings);
    }

    #[test]
    fn a_pod_loosens_what_its_namespace_says_only_if_it_is_exempt() {
        const NAMESPACE: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, \
            labels: {leno.dev/inject: enabled}, annotations: {leno.dev/capture: ebpf}}\n";
        const EXEMPTION: &str = "---\napiVersion: leno.dev/v1alpha1\nkind: PodExemption\n\
            metadata: {name: batch, namespace: shop}\n\
            spec: {selector: {matchLabels: {app: batch}}, settings: [inject, capture]}\n";
        let stored = |objects: &str| {
            let mut stored = crate::StoredObjects::default();
            let parsed = leno_resources::parse("", objects).unwrap();
            parsed.objects.iter().for_each(|located| stored.put(&located.value));
            stored
        };
        let (plain, exempting) = (stored(NAMESPACE), stored(&format!("{NAMESPACE}{EXEMPTION}")));
        let pod = |app: &str, key: &str, value: &str| {
            review(json!({"metadata": {"labels": {"app": app}, "annotations": {key: value}},
                "spec": {"containers": [{"name": "web"}]}}))
        };
        let answer = |stored: &crate::StoredObjects, review: &AdmissionReview| {
            review.inject(&InjectionSettings::default(), &stored.enclosing(review).unwrap())
        };
        let declines = |app: &str| pod(app, "leno.dev/inject", "disabled");
        let has_proxy = |answer: &ReviewAnswer| answer.patch.is_some();
        for app in ["web", "batch"] {
            let answer = answer(&plain, &declines(app));
            assert!(has_proxy(&answer), "{app}");
            assert!(answer.warnings[0].contains("settings: [inject]"), "{:?}", answer.warnings);
        }
        assert!(has_proxy(&answer(&exempting, &declines("web"))), "the selector is of another");
        assert_eq!(answer(&exempting, &declines("batch")), ReviewAnswer::default());

        let captured = |app: &str| pod(app, "leno.dev/capture", "iptables");
        for (stored, app) in [(&plain, "web"), (&plain, "batch"), (&exempting, "web")] {
            let denied = answer(stored, &captured(app)).denied.unwrap();
            assert!(denied.contains("contradicts its namespace, which has ebpf"), "{denied}");
        }
        assert!(has_proxy(&answer(&exempting, &captured("batch"))));
        assert!(has_proxy(&answer(&plain, &pod("web", "leno.dev/capture", "ebpf"))));
        let auto = stored(&NAMESPACE.replace("capture: ebpf", "capture: auto"));
        assert!(has_proxy(&answer(&auto, &captured("web"))), "the namespace leaves the choice");
        let open = stored(&NAMESPACE.replace("inject: enabled", "inject: disabled"));
        assert!(!has_proxy(&answer(&open, &declines("web"))), "the namespace asks for no proxy");
    }

    #[test]
    fn a_pod_that_is_left_is_allowed_and_one_that_cannot_be_injected_is_not() {
        let left = review(json!({"spec": {"hostNetwork": true, "containers": [{"name": "web"}]}}));
        let told =
            answer(&left, &left.inject(&InjectionSettings::default(), &PodContext::default()));
        assert_eq!(told, json!({"uid": "u-1", "allowed": true}));
        let clash = review(json!({"spec": {"containers": [{"name": "web"}],
            "volumes": [{"name": "leno-token"}]}}));
        let told =
            answer(&clash, &clash.inject(&InjectionSettings::default(), &PodContext::default()));
        assert_eq!((&told["allowed"], &told["status"]["code"]), (&json!(false), &json!(403)));
        let reason = told["status"]["message"].as_str().unwrap();
        assert!(
            reason.starts_with("the pod cannot have a proxy: it already has a volume"),
            "{reason}"
        );
    }

    #[test]
    fn what_is_no_review_is_refused_and_warnings_have_a_bound() {
        for text in ["", "{", "[]", "{\"request\":{}}", "{\"apiVersion\":\"admission.k8s.io/v1\"}"]
        {
            assert!(AdmissionReview::parse(text.as_bytes()).is_err(), "{text}");
        }
        let review = review(json!({}));
        let warnings = vec!["ä".repeat(1000); 100];
        let told = answer(&review, &ReviewAnswer { warnings, ..ReviewAnswer::default() });
        let told = told["warnings"].as_array().unwrap();
        assert_eq!(told.len(), MAX_WARNINGS);
        assert!(told.iter().all(|text| text.as_str().unwrap().len() <= 256), "{told:?}");
    }
}
