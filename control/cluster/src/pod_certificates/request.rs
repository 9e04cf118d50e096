//! Parses a `PodCertificateRequest`, and checks that it matches the objects that it names.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::jiff::Timestamp;
use leno_identity::PodKey;
use leno_kube::api::DynamicObject;
use serde::Deserialize;

use crate::certificates_api::SIGNER;

/// The types of conditions after which the API server accepts no further status.
const FINAL: [&str; 3] = ["Issued", "Denied", "Failed"];
/// The longest lifetime of a certificate if the request names none, in seconds.
const DEFAULT_LONGEST_S: u32 = 86_400;
/// The service account of a pod whose spec names none.
const DEFAULT_ACCOUNT: &str = "default";
/// The annotation of a static pod, which the kubelet has read from a file and not from the API server.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// How long after the end of its grace period a pod may still get certificates. Its token is valid for as long.
const AFTER_DELETION: Duration = Duration::from_secs(60);

/// What identifies a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestKey {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A request without an answer.
#[derive(Clone, Debug)]
pub(super) struct PendingRequest {
    pub(super) key: RequestKey,
    pub(super) uid: String,
    pub(super) version: String,
    created: Option<Timestamp>,
    pub(super) spec: RequestSpec,
}

/// How long after the creation of an admission policy an API server may not enforce it yet.
pub(super) const UNTIL_ENFORCED: Duration = Duration::from_secs(10);

impl PendingRequest {
    /// Whether the request was created when API servers already enforced an admission policy that was created at
    /// `policy`.
    pub(super) fn is_after(&self, policy: Timestamp) -> bool {
        let margin = i64::try_from(UNTIL_ENFORCED.as_secs()).unwrap_or(i64::MAX);
        let enforced = policy.as_second().saturating_add(margin);
        self.created.is_some_and(|created| created.as_second() > enforced)
    }
}

/// The spec of a request. The API server has verified that the PKCS #10 is signed with its own key.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RequestSpec {
    signer_name: String,
    pub(super) pod_name: String,
    #[serde(rename = "podUID")]
    pod_uid: String,
    pub(super) service_account_name: String,
    #[serde(rename = "serviceAccountUID")]
    service_account_uid: String,
    pub(super) node_name: String,
    #[serde(rename = "nodeUID")]
    node_uid: String,
    max_expiration_seconds: Option<u32>,
    /// The key in `v1`, and in `v1beta1` of newer API servers.
    #[serde(default, rename = "stubPKCS10Request")]
    stub_pkcs10_request: Option<ByteString>,
    /// The key in `v1beta1` of older API servers.
    #[serde(default, rename = "pkixPublicKey")]
    public_key: Option<ByteString>,
    /// The pod's UID, signed with the key in `public_key`.
    #[serde(default, rename = "proofOfPossession")]
    proof: Option<ByteString>,
    /// The first name among the request's unverified annotations. The others are not kept, because they may be
    /// long and none has a meaning here.
    #[serde(default, rename = "unverifiedUserAnnotations")]
    annotation: FirstKey,
}

/// The first key of a map.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "BTreeMap<String, String>")]
struct FirstKey(Option<String>);

impl From<BTreeMap<String, String>> for FirstKey {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self(map.into_keys().next())
    }
}

/// Why a request is denied. A kubelet does not repeat a denied request, so only a request that can never become
/// valid is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denial {
    /// The reason as one word, for programs. Two of these words are defined by Kubernetes.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Denial {
    pub(super) fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message }
    }

    fn mismatch(message: String) -> Self {
        Self::new("Mismatch", message)
    }
}

/// Reads a request that a watch has reported. The second value is `None` if the request does not wait for an
/// answer any more.
pub(super) fn read(object: DynamicObject) -> (RequestKey, Option<PendingRequest>) {
    let metadata = object.metadata;
    let created = metadata.creation_timestamp.as_ref().map(|time| time.0);
    let [namespace, name, uid, version] =
        [metadata.namespace, metadata.name, metadata.uid, metadata.resource_version]
            .map(Option::unwrap_or_default);
    let key = RequestKey { namespace, name };
    let conditions = object.data["status"]["conditions"].as_array();
    let is_final = conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"].as_str().is_some_and(|kind| FINAL.contains(&kind)));
    if is_final || metadata.deletion_timestamp.is_some() {
        return (key, None);
    }
    let spec = object.data.get("spec").cloned().unwrap_or_default();
    match serde_json::from_value::<RequestSpec>(spec) {
        // The watch selects requests by this signer already; this checks it again.
        Ok(spec) if spec.signer_name == SIGNER => {
            (key.clone(), Some(PendingRequest { key, uid, version, created, spec }))
        }
        Ok(_) => (key, None),
        Err(error) => {
            tracing::warn!(%error, namespace = key.namespace, name = key.name, "a PodCertificateRequest cannot be read");
            (key, None)
        }
    }
}

impl RequestSpec {
    /// The key of the request; an empty PKCS #10 if it has no key. If it has a key in both formats, the key of
    /// `v1` is used.
    pub(super) fn key(&self) -> PodKey<'_> {
        fn bytes(given: &Option<ByteString>) -> Option<&[u8]> {
            given.as_ref().map(|bytes| &*bytes.0)
        }
        match (bytes(&self.stub_pkcs10_request), bytes(&self.public_key)) {
            (None | Some([]), Some(spki)) => {
                let proof = bytes(&self.proof).unwrap_or_default();
                PodKey::Signed { spki, pod_uid: &self.pod_uid, proof }
            }
            (request, _) => PodKey::Request(request.unwrap_or_default()),
        }
    }

    /// The longest lifetime that the API server accepts for this request.
    pub(super) fn longest(&self) -> Duration {
        let seconds = self.max_expiration_seconds.unwrap_or(DEFAULT_LONGEST_S);
        Duration::from_secs(seconds.into())
    }

    /// Whether the request has a key. An older kubelet sends the key in a field that a newer API server does not
    /// have and drops. Once the kubelet is upgraded, its requests have a key again.
    pub(super) fn has_key(&self) -> bool {
        self.key() != PodKey::Request(&[])
    }

    /// Denies a request for reasons that its spec alone shows.
    pub(super) fn check(&self) -> Result<(), Denial> {
        match &self.annotation.0 {
            None => Ok(()),
            Some(name) => Err(Denial::new(
                "InvalidUnverifiedUserAnnotations",
                format!(
                    "{SIGNER} has no annotation {name:?}: remove userAnnotations from the volume"
                ),
            )),
        }
    }

    /// Checks that the pod is the one that the request names, runs on the request's node with its service account,
    /// and has not ended.
    pub(super) fn check_pod(&self, pod: Option<&Pod>, now: SystemTime) -> Result<(), Denial> {
        let name = &self.pod_name;
        let Some(pod) = pod else {
            return Err(Denial::new("PodGone", format!("there is no pod {name}")));
        };
        if pod.metadata.uid.as_deref() != Some(&self.pod_uid) {
            return Err(Denial::mismatch(format!(
                "pod {name} is not that of the request, because its UID differs"
            )));
        }
        let spec = pod.spec.as_ref();
        if spec.and_then(|spec| spec.node_name.as_deref()) != Some(&self.node_name) {
            return Err(Denial::mismatch(format!(
                "pod {name} does not run on node {}",
                self.node_name
            )));
        }
        let account = spec.and_then(|spec| spec.service_account_name.as_deref());
        if account.unwrap_or(DEFAULT_ACCOUNT) != self.service_account_name {
            return Err(Denial::mismatch(format!(
                "pod {name} does not run as service account {}",
                self.service_account_name
            )));
        }
        let annotations = pod.metadata.annotations.as_ref();
        if annotations.is_some_and(|all| all.contains_key(MIRROR)) {
            return Err(Denial::mismatch(format!(
                "pod {name} is a static pod, which proves no identity"
            )));
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return Err(Denial::new("PodGone", format!("pod {name} has ended")));
        }
        let deletion = pod.metadata.deletion_timestamp.as_ref().map(|time| time.0);
        let latest = Timestamp::try_from(now.checked_sub(AFTER_DELETION).unwrap_or(now));
        if let (Some(deletion), Ok(latest)) = (deletion, latest)
            && deletion < latest
        {
            return Err(Denial::new("PodGone", format!("pod {name} is deleted")));
        }
        Ok(())
    }

    /// Checks that the service account and the node are the ones that the request names, and not later ones with
    /// the same name.
    pub(super) fn check_others(
        &self,
        account: Option<&ServiceAccount>,
        node: Option<&Node>,
    ) -> Result<(), Denial> {
        let account = account.and_then(|one| one.metadata.uid.as_deref());
        if account != Some(&self.service_account_uid) {
            return Err(Denial::mismatch(format!(
                "service account {} is not the one of the request, or is deleted",
                self.service_account_name
            )));
        }
        let node = node.and_then(|one| one.metadata.uid.as_deref());
        if node != Some(&self.node_uid) {
            return Err(Denial::mismatch(format!(
                "node {} is not the one of the request, or is deleted",
                self.node_name
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, spec: Value, status: Value) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
            "metadata": {"name": name, "namespace": "shop", "uid": "r", "resourceVersion": "7",
                "creationTimestamp": "2026-11-29T06:00:00Z"},
            "spec": spec, "status": status,
        }))
        .unwrap()
    }

    fn spec(node: &str) -> Value {
        json!({"signerName": SIGNER, "podName": "web-0", "podUID": "p", "serviceAccountName": "web",
            "serviceAccountUID": "s", "nodeName": node, "nodeUID": "n", "maxExpirationSeconds": 3600,
            "stubPKCS10Request": "AAEC"})
    }

    /// A request from a node.
    pub(crate) fn request(name: &str, node: &str) -> PendingRequest {
        read(object(name, spec(node), Value::Null)).1.unwrap()
    }

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web-0", "namespace": "shop", "uid": "p"},
            "spec": {"nodeName": "n1", "serviceAccountName": "web", "containers": []},
            "status": {"phase": "Pending"},
        }))
        .unwrap()
    }

    #[test]
    fn requests_of_this_signer_without_an_answer_are_read() {
        let one = request("one", "n1");
        assert_eq!((one.uid.as_str(), one.version.as_str()), ("r", "7"));
        assert_eq!(one.spec.key(), PodKey::Request(&[0, 1, 2]));
        // The request comes from an API server before Kubernetes 1.37.
        let mut earlier = spec("n1");
        earlier["stubPKCS10Request"] = Value::Null;
        earlier["pkixPublicKey"] = json!("AAEC");
        earlier["proofOfPossession"] = json!("AwQ=");
        let earlier = read(object("one", earlier, Value::Null)).1.unwrap();
        let signed = PodKey::Signed { spki: &[0, 1, 2], pod_uid: "p", proof: &[3, 4] };
        assert_eq!(earlier.spec.key(), signed);
        assert_eq!(earlier.spec.check(), Ok(()));
        assert_eq!(one.spec.longest(), Duration::from_secs(3600));
        let mut none = spec("n1");
        none.as_object_mut().unwrap().remove("maxExpirationSeconds");
        let none = read(object("one", none, Value::Null)).1.unwrap();
        assert_eq!(none.spec.longest(), Duration::from_secs(86_400));
        for kind in FINAL {
            let status = json!({"conditions": [{"type": kind, "status": "True"}]});
            assert!(read(object("one", spec("n1"), status)).1.is_none());
        }
        let mut other = spec("n1");
        other["signerName"] = json!("example.org/other");
        assert!(read(object("one", other, Value::Null)).1.is_none());
        assert!(read(object("one", json!({"signerName": SIGNER}), Value::Null)).1.is_none());
        let mut without = spec("n1");
        without["stubPKCS10Request"] = Value::Null;
        let keyless = read(object("one", without, Value::Null)).1.unwrap();
        assert!(!keyless.spec.has_key() && one.spec.has_key() && earlier.spec.has_key());
        assert_eq!(keyless.spec.check(), Ok(()), "a denial would hold for good");
    }

    #[test]
    fn a_request_from_before_the_policy_or_from_its_first_seconds_is_not_signed() {
        let created = "2026-11-29T06:00:00Z".parse::<Timestamp>().unwrap();
        let policy = |seconds: i64| Timestamp::from_second(created.as_second() - seconds).unwrap();
        let one = request("one", "n1");
        assert!(!one.is_after(policy(-1)) && !one.is_after(policy(10)) && one.is_after(policy(11)));
    }

    #[test]
    fn annotations_are_denied_by_name() {
        let mut with = spec("n1");
        with["unverifiedUserAnnotations"] = json!({"example.org/name": "admin"});
        let denial = read(object("one", with, Value::Null)).1.unwrap().spec.check().unwrap_err();
        assert_eq!(denial.reason, "InvalidUnverifiedUserAnnotations");
        assert!(denial.message.contains("example.org/name"), "{}", denial.message);
        assert_eq!(request("one", "n1").spec.check(), Ok(()));
    }

    #[test]
    fn a_pod_that_differs_from_the_request_gets_nothing() {
        let spec = request("one", "n1").spec;
        let now = SystemTime::now();
        assert_eq!(spec.check_pod(Some(&pod()), now), Ok(()));
        let denied = |change: &dyn Fn(&mut Pod)| {
            let mut pod = pod();
            change(&mut pod);
            let denial = spec.check_pod(Some(&pod), now).unwrap_err();
            (denial.reason, denial.message)
        };
        let mismatch = "Mismatch";
        assert_eq!(denied(&|pod| pod.metadata.uid = Some("q".to_owned())).0, mismatch);
        assert_eq!(denied(&|pod| pod.metadata.uid = None).0, mismatch);
        let elsewhere =
            |pod: &mut Pod| pod.spec.as_mut().unwrap().node_name = Some("n2".to_owned());
        assert!(denied(&elsewhere).1.contains("does not run on node n1"));
        assert_eq!(denied(&|pod| pod.spec.as_mut().unwrap().node_name = None).0, mismatch);
        let other = |pod: &mut Pod| pod.spec.as_mut().unwrap().service_account_name = None;
        assert!(denied(&other).1.contains("service account web"));
        let mirror = |pod: &mut Pod| {
            let annotation = (MIRROR.to_owned(), String::new());
            pod.metadata.annotations = Some([annotation].into_iter().collect());
        };
        assert_eq!(denied(&mirror).0, mismatch);
        let ended =
            |pod: &mut Pod| pod.status.as_mut().unwrap().phase = Some("Succeeded".to_owned());
        assert_eq!(denied(&ended).0, "PodGone");
        assert_eq!(spec.check_pod(None, now).unwrap_err().reason, "PodGone");
    }

    #[test]
    fn a_pod_that_is_being_deleted_gets_certificates_for_as_long_as_its_token_holds() {
        let spec = request("one", "n1").spec;
        let mut pod = pod();
        let now = SystemTime::now();
        let time = |time: SystemTime| {
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::try_from(time).unwrap())
        };
        pod.metadata.deletion_timestamp = Some(time(now - AFTER_DELETION / 2));
        assert_eq!(spec.check_pod(Some(&pod), now), Ok(()));
        pod.metadata.deletion_timestamp = Some(time(now - 2 * AFTER_DELETION));
        assert_eq!(spec.check_pod(Some(&pod), now).unwrap_err().reason, "PodGone");
    }

    #[test]
    fn another_account_or_node_of_the_same_name_gets_nothing() {
        let spec = request("one", "n1").spec;
        let of = |uid: &str| json!({"metadata": {"uid": uid}});
        let account = |uid: &str| serde_json::from_value::<ServiceAccount>(of(uid)).unwrap();
        let node = |uid: &str| serde_json::from_value::<Node>(of(uid)).unwrap();
        let check = |account: Option<ServiceAccount>, node: Option<Node>| {
            spec.check_others(account.as_ref(), node.as_ref()).is_ok()
        };
        assert!(check(Some(account("s")), Some(node("n"))));
        assert!(!check(Some(account("t")), Some(node("n"))));
        assert!(!check(Some(account("s")), Some(node("m"))));
        assert!(!check(None, Some(node("n"))) && !check(Some(account("s")), None));
    }
}
