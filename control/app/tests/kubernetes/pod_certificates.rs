//! Tests certificates that kubelets request for their pods, with the API server's own objects.

use std::fs;
use std::path::PathBuf;

use data_encoding::BASE64;
use leno_charts::{NAMESPACE, Values, render};
use leno_discovery::{CertificateFiles, CertificateSource};
use leno_identity::{MIN_POD_LIFETIME, POD_CLOCK_SKEW};
use leno_kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use leno_kube::{Client, connect};
use leno_testkit_api::objects::pod;
use leno_testkit_api::{TestApiServer, binary, until};
use rcgen::{
    CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PublicKeyData as _,
    SigningKey as _,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use serde_json::{Value, json};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use crate::kinds::own_pod;
use crate::proxy::Proxy;
use crate::replica::Replica;
use crate::rotation::{ask, identity, is};
use crate::{cluster_with, leads, proxy};

const SIGNER: &str = "leno.dev/identity";
const FLAGS: [&str; 3] = ["--pod-certificates", "--phase-hold", "1s"];
/// How many requests one node creates at once.
const FLOOD: usize = 300;

/// A cluster with two nodes in which pods get certificates, and a kubeconfig with the control plane's service
/// account.
async fn signing_cluster(kube: &std::path::Path) -> (TestApiServer, PathBuf) {
    signing_cluster_with(kube, &[]).await
}

/// As [`signing_cluster`], with flags for the API server.
async fn signing_cluster_with(kube: &std::path::Path, flags: &[&str]) -> (TestApiServer, PathBuf) {
    let (bed, kubeconfig) = cluster_with(kube, flags).await;
    let values = Values::load(&[], &["identity.podCertificates=true".to_owned()]).unwrap();
    let all: Vec<Value> =
        serde_saphyr::from_multiple(&render(&values, NAMESPACE).unwrap()).unwrap();
    let ours = ["leno-pod-certificates", "leno-pod-certificates-v2", "leno-trust-bundle"];
    let wanted = |one: &Value| ours.iter().any(|name| one["metadata"]["name"] == *name);
    let objects: Vec<Value> = all.into_iter().filter(wanted).collect();
    assert_eq!(
        objects.len(),
        6,
        "two roles, their bindings, a policy and its binding: {objects:?}"
    );
    for object in objects {
        bed.apply(object).await;
    }
    for node in ["n1", "n2"] {
        bed.apply(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})).await;
    }
    is_guarded(&bed).await;
    (bed, kubeconfig)
}

fn binding() -> Value {
    json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "leno-pod-certificates-v2"}})
}

/// Replaces the present admission policy by that of an earlier release, which only covers v1. Returns the present
/// policy with its binding.
async fn put_old_policy(bed: &TestApiServer) -> [Value; 2] {
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "leno-pod-certificates-v2"}});
    let mut current = [policy, binding()];
    for object in &mut current {
        object["spec"] = bed.get(object.clone()).await.unwrap().data["spec"].clone();
        bed.delete(object.clone()).await;
        let mut old = object.clone();
        old["metadata"]["name"] = json!("leno-pod-certificates");
        if old["kind"] == "ValidatingAdmissionPolicy" {
            let rule = &mut old["spec"]["matchConstraints"]["resourceRules"][0];
            rule["apiVersions"] = json!(["v1"]);
        } else {
            old["spec"]["policyName"] = json!("leno-pod-certificates");
        }
        bed.apply(old).await;
    }
    current
}

/// Waits until the admission policy has been in force for so long that requests are signed.
async fn is_guarded(bed: &TestApiServer) {
    until("the admission policy counts", async || {
        let created = bed.get(binding()).await?.metadata.creation_timestamp?.0.as_second();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        (i64::try_from(now.as_secs()).unwrap() > created + 11).then_some(())
    })
    .await;
}

/// Creates a pod with a proxy and the certificate volume on a node.
async fn run(bed: &TestApiServer, name: &str, node: &str) {
    let certificate = json!({"signerName": SIGNER, "keyType": "ECDSAP256",
        "credentialBundlePath": "credentials.pem"});
    let mut pod = pod(name, "10.244.0.7");
    pod["spec"]["nodeName"] = json!(node);
    pod["spec"]["volumes"] =
        json!([{"name": "identity", "projected": {"sources": [{"podCertificate": certificate}]}}]);
    bed.apply(pod.clone()).await;
    bed.set_status(pod).await;
}

fn csr(key: &KeyPair) -> Vec<u8> {
    CertificateParams::default().serialize_request(key).unwrap().der().to_vec()
}

async fn uid(bed: &TestApiServer, kind: &str, name: &str) -> String {
    let mut metadata = json!({"name": name});
    if kind != "Node" {
        metadata["namespace"] = json!("shop");
    }
    let object = json!({"apiVersion": "v1", "kind": kind, "metadata": metadata});
    bed.get(object).await.unwrap().metadata.uid.unwrap()
}

/// The request that the kubelet of a node creates for a pod.
async fn request(
    bed: &TestApiServer,
    (name, pod, node): (&str, &str, &str),
    key: &KeyPair,
) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"signerName": SIGNER, "podName": pod, "podUID": uid(bed, "Pod", pod).await,
            "serviceAccountName": "web", "serviceAccountUID": uid(bed, "ServiceAccount", "web").await,
            "nodeName": node, "nodeUID": uid(bed, "Node", node).await,
            "stubPKCS10Request": BASE64.encode(&csr(key))}})
}

async fn create(client: &Client, object: &Value) -> Result<(), String> {
    let version = object["apiVersion"].as_str().unwrap().rsplit('/').next().unwrap();
    let kind = GroupVersionKind::gvk("certificates.k8s.io", version, "PodCertificateRequest");
    let resource = ApiResource::from_gvk_with_plural(&kind, "podcertificaterequests");
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "shop", &resource);
    let made = serde_json::from_value(object.clone()).unwrap();
    api.create(&PostParams::default(), &made).await.map(drop).map_err(|error| error.to_string())
}

/// Creates the request as this client. Repeats that, because the API server may learn of the pod with a delay.
async fn created(client: &Client, object: &Value) {
    until("the request is accepted", async || create(client, object).await.ok()).await;
}

/// The conditions of a request.
async fn conditions(bed: &TestApiServer, name: &str) -> Value {
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
        "metadata": {"name": name, "namespace": "shop"}});
    bed.get(object).await.unwrap().data["status"]["conditions"].clone()
}

/// The resource version at which a request was answered.
async fn version(bed: &TestApiServer, name: &str) -> u64 {
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
        "metadata": {"name": name, "namespace": "shop"}});
    bed.get(object).await.unwrap().metadata.resource_version.unwrap().parse().unwrap()
}

/// The status of a request once it has an answer.
async fn answered(bed: &TestApiServer, name: &str) -> Value {
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "PodCertificateRequest",
        "metadata": {"name": name, "namespace": "shop"}});
    until(&format!("the answer to {name}"), async || {
        let status = bed.get(object.clone()).await?.data["status"].clone();
        status["conditions"].as_array().is_some_and(|all| !all.is_empty()).then_some(status)
    })
    .await
}

fn chain(status: &Value) -> Vec<CertificateDer<'static>> {
    let pem = status["certificateChain"].as_str().unwrap_or_else(|| panic!("{status}"));
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(Result::unwrap).collect()
}

fn seconds(value: &Value) -> i64 {
    value.as_str().unwrap().parse::<k8s_openapi::jiff::Timestamp>().unwrap().as_second()
}

/// Whether a verifier with these roots accepts a chain.
fn verifies(roots: &str, chain: &[CertificateDer<'_>]) -> bool {
    let mut store = rustls::RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(roots.as_bytes()) {
        store.add(root.unwrap()).unwrap();
    }
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(store.into(), provider);
    verifier.build().unwrap().verify_client_cert(&chain[0], &chain[1..], UnixTime::now()).is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_gets_the_certificate_of_its_pod_through_a_revocation_and_a_rotation() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = signing_cluster(&kube).await;
    run(&bed, "web-0", "n1").await;
    for name in ["controller-0", "controller-1"] {
        bed.apply(own_pod(name)).await;
        bed.set_status(own_pod(name)).await;
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let kubelet = bed.kubelet("n1").await;
    // The request exists before any signer runs.
    created(&kubelet, &request(&bed, ("first", "web-0", "n1"), &key).await).await;
    let first = Replica::start_with("controller-0", &kubeconfig, &FLAGS);
    let status = answered(&bed, "first").await;
    assert_eq!(status["conditions"][0]["type"], "Issued", "{status}");

    let issued = chain(&status);
    let (_, leaf) = X509Certificate::from_der(&issued[0]).unwrap();
    let names = leaf.subject_alternative_name().unwrap().unwrap();
    let web = "spiffe://cluster.local/ns/shop/sa/web";
    assert_eq!(names.value.general_names, [GeneralName::URI(web)], "and no other name");
    assert_eq!(leaf.public_key().raw, key.subject_public_key_info());
    assert!(verifies(&proxy::roots(&bed).await, &issued));
    let [begin, end, refresh] =
        ["notBefore", "notAfter", "beginRefreshAt"].map(|name| seconds(&status[name]));
    // The test's replicas issue certificates that are valid for an hour.
    let expected = (MIN_POD_LIFETIME + POD_CLOCK_SKEW).as_secs();
    assert!(u64::try_from(end - begin).unwrap().abs_diff(expected) <= 1, "{status}");
    assert!(begin + 600 <= refresh && refresh + 600 <= end, "{status}");

    // The revocation also covers this certificate. The validity of the next certificate begins after the
    // revocation.
    ask(&bed, "revoke", json!({"revoke": web})).await;
    is(&first, "the revocation", |report| report.to_string().contains(web)).await;
    created(&kubelet, &request(&bed, ("second", "web-0", "n1"), &key).await).await;
    let second = answered(&bed, "second").await;
    assert!(seconds(&second["notBefore"]) > begin, "{second}");

    // Only the leading replica signs. When it ends, the next leader continues.
    let next = Replica::start_with("controller-1", &kubeconfig, &FLAGS);
    next.line("serving discovery and identity").await;
    let before = identity(&first).await["bundle"].clone();
    ask(&bed, "root", json!("begin")).await;
    is(&first, "the beginning", |report| report["bundle"] != before).await;
    is(&first, "the end", |report| report["phase"] == "stable" && report["bundle"] != before).await;
    first.end();
    leads(&next).await;
    created(&kubelet, &request(&bed, ("third", "web-0", "n1"), &key).await).await;
    let third = answered(&bed, "third").await;
    let roots = proxy::roots(&bed).await;
    assert!(verifies(&roots, &chain(&third)) && !verifies(&roots, &issued));
    let total = "leno_control_pod_certificates_total{result=\"issued\"}";
    until("one is counted", async || (next.metric(total).await as u64 == 1).then_some(())).await;
    next.end();
}

/// API servers of Kubernetes 1.35 and 1.36 serve only `v1beta1`, in which a request has a key and a signature
/// instead of PKCS #10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kubelet_gets_the_certificate_of_its_pod_where_v1beta1_alone_is_served() {
    let Some(kube) = binary() else { return };
    let beta = "--runtime-config=certificates.k8s.io/v1beta1/podcertificaterequests=true,\
                certificates.k8s.io/v1/podcertificaterequests=false";
    // The node authorizer of this API server works only with v1. RBAC grants kubelets the same rights here.
    let flags = [beta, "--authorization-mode=RBAC"];
    let (bed, kubeconfig) = signing_cluster_with(&kube, &flags).await;
    let right = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["podcertificaterequests"],
        "verbs": ["create"]});
    bed.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "kubelets"}, "rules": [right]}))
        .await;
    bed.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "kubelets"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "kubelets"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes"}]}))
        .await;
    run(&bed, "web-0", "n1").await;
    bed.apply(own_pod("controller-0")).await;
    bed.set_status(own_pod("controller-0")).await;
    let kubelet = bed.kubelet("n1").await;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let proof = key.sign(uid(&bed, "Pod", "web-0").await.as_bytes()).unwrap();
    let mut object = request(&bed, ("first", "web-0", "n1"), &key).await;
    assert!(create(&kubelet, &object).await.is_err(), "v1 is not served");
    object["apiVersion"] = json!("certificates.k8s.io/v1beta1");
    let spec = object["spec"].as_object_mut().unwrap();
    spec.remove("stubPKCS10Request");
    spec.insert("pkixPublicKey".to_owned(), json!(BASE64.encode(&key.subject_public_key_info())));
    spec.insert("proofOfPossession".to_owned(), json!(BASE64.encode(&proof)));
    // The policy of an earlier release does not cover v1beta1. Any client could create such requests, so none is
    // signed.
    let current = put_old_policy(&bed).await;
    created(&bed.admin, &variant(&object, "stolen", &|_| ())).await;
    let replica = Replica::start_with("controller-0", &kubeconfig, &FLAGS);
    replica.line("no certificate is signed for kubelets without").await;
    assert_eq!(replica.metric("leno_control_pod_certificates_guarded").await as u64, 0);
    for one in current {
        bed.apply(one).await;
    }
    is_guarded(&bed).await;
    // Neither the administrator nor a kubelet of another node may request.
    let refused = create(&bed.admin, &variant(&object, "of-admin", &|_| ())).await.unwrap_err();
    assert!(refused.contains("only the kubelet of the pod's node"), "{refused}");
    let other = bed.kubelet("n2").await;
    assert!(create(&other, &variant(&object, "of-n2", &|_| ())).await.is_err());
    created(&kubelet, &object).await;
    let status = until("the answer", async || {
        let status = bed.get(object.clone()).await?.data["status"].clone();
        status["conditions"].as_array().is_some_and(|all| !all.is_empty()).then_some(status)
    })
    .await;
    assert_eq!(status["conditions"][0]["type"], "Issued", "{status}");
    let issued = chain(&status);
    let (_, leaf) = X509Certificate::from_der(&issued[0]).unwrap();
    assert_eq!(leaf.public_key().raw, key.subject_public_key_info());
    assert!(verifies(&proxy::roots(&bed).await, &issued));
    let stolen = bed.get(variant(&object, "stolen", &|_| ())).await.unwrap();
    assert_eq!(stolen.data["status"]["conditions"], Value::Null, "{stolen:?}");
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_has_the_certificate_of_its_kubelet_and_one_by_its_token_when_the_root_is_replaced()
{
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = signing_cluster(&kube).await;
    bed.apply(own_pod("controller-0")).await;
    bed.set_status(own_pod("controller-0")).await;
    run(&bed, "web-0", "n1").await;
    let replica = Replica::start_with("controller-0", &kubeconfig, &FLAGS);
    leads(&replica).await;
    let kubelet = bed.kubelet("n1").await;
    // These files stand for those that the kubelet puts into the volume.
    let file = |name: &str| bed.directory.path().join(name);
    let put = async |name: &str| {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        created(&kubelet, &request(&bed, (name, "web-0", "n1"), &key).await).await;
        let status = answered(&bed, name).await;
        let text = key.serialize_pem() + status["certificateChain"].as_str().unwrap();
        fs::write(file("next.pem"), text).unwrap();
        fs::rename(file("next.pem"), file("credentials.pem")).unwrap();
        chain(&status)[0].to_vec()
    };
    let bundle = until("the roots of the volume", async || {
        let bundle = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "ClusterTrustBundle",
            "metadata": {"name": "leno.dev:identity:mesh"}});
        bed.get(bundle).await?.data["spec"]["trustBundle"].as_str().map(str::to_owned)
    })
    .await;
    fs::write(file("bundle.pem"), bundle).unwrap();
    let first = put("first").await;
    let mut settings = proxy::settings_of(&bed, &replica, "shop/web-0", "none").await;
    let files = CertificateFiles {
        credentials: file("credentials.pem"),
        roots: file("bundle.pem"),
        identity: "spiffe://cluster.local/ns/shop/sa/web".parse().unwrap(),
    };
    settings.certificates = CertificateSource::Files(files, file("token-of-web-0"));
    let proxy = Proxy::with(settings);
    proxy.has_policy().await;
    assert!(proxy.is_connected() && proxy.certificate().await == first);
    let reviews = "leno_control_token_reviews_total{result=\"accepted\"}";
    assert_eq!(replica.metric(reviews).await as u64, 0, "no token was needed");
    let second = put("second").await;
    until("the renewed one", async || (proxy.certificate().await == second).then_some(())).await;

    // The next root begins to sign before the kubelet renews the certificate. Proxies need not wait for that
    // renewal.
    let token = bed.token(("shop", "web"), Some("leno"), Some("web-0")).await;
    fs::write(file("token-of-web-0"), token).unwrap();
    let before = identity(&replica).await["bundle"].clone();
    ask(&bed, "root", json!("begin")).await;
    is(&replica, "the beginning", |report| report["bundle"] != before).await;
    is(&replica, "the end", |report| report["phase"] == "stable" && report["bundle"] != before)
        .await;
    let by_token = proxy.certificate().await;
    assert!(by_token != second && replica.metric(reviews).await as u64 > 0);
    let third = put("third").await;
    until("the kubelet's next", async || (proxy.certificate().await == third).then_some(())).await;
    replica.end();
}

/// The same request under another name, with a change.
fn variant(good: &Value, name: &str, change: &dyn Fn(&mut Value)) -> Value {
    let mut object = good.clone();
    object["metadata"]["name"] = json!(name);
    change(&mut object["spec"]);
    object
}

/// Asserts that the API server refuses a request of another node's kubelet, for a pod of another node, and one
/// that is not signed with its own key.
async fn other_nodes_are_refused(bed: &TestApiServer, good: &Value, key: &KeyPair) {
    let (own, other) = (bed.kubelet("n1").await, bed.kubelet("n2").await);
    let refused = async |client: &Client, name: &str, change: &dyn Fn(&mut Value)| {
        create(client, &variant(good, name, change)).await.unwrap_err()
    };
    let error = refused(&other, "of-another-node", &|_| ()).await;
    assert!(error.contains("is not the requesting node"), "{error}");
    let far = uid(bed, "Pod", "far").await;
    let error = refused(&own, "far", &|spec| {
        spec["podName"] = json!("far");
        spec["podUID"] = json!(far);
    })
    .await;
    assert!(error.contains("is not running on node"), "{error}");
    let error = refused(&own, "unproven", &|spec| {
        let mut unproven = csr(key);
        let last = unproven.len() - 1;
        unproven[last] ^= 1;
        spec["stubPKCS10Request"] = json!(BASE64.encode(&unproven));
    })
    .await;
    assert!(error.contains("invalid signature") || error.contains("PKCS#10"), "{error}");
}

/// Asserts that the API server refuses requests of a tenant with all rights in its namespace and of the
/// administrator, because neither is a kubelet.
async fn other_clients_are_refused(bed: &TestApiServer, good: &Value) {
    let right = json!({"apiGroups": ["certificates.k8s.io"], "resources": ["podcertificaterequests"],
        "verbs": ["create"]});
    bed.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": {"name": "tenant", "namespace": "shop"}, "rules": [right]}))
        .await;
    bed.apply(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tenant", "namespace": "shop"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tenant"},
        "subjects": [{"kind": "ServiceAccount", "name": "other", "namespace": "shop"}]}))
        .await;
    let token = bed.token(("shop", "other"), None, None).await;
    let tenant = bed.kubeconfig("tenant.kubeconfig", bed.port, &token);
    let tenant = connect(Some(&tenant), None).await.unwrap();
    let mut number = 0;
    for client in [&tenant, &bed.admin] {
        // The API server needs a while to enforce the policy.
        until("a client that is no kubelet is refused", async || {
            number += 1;
            let object = variant(good, &format!("of-a-client-{number}"), &|_| ());
            let error = create(client, &object).await.err()?;
            error.contains("only the kubelet of the pod's node").then_some(())
        })
        .await;
    }
}

/// Creates requests that do not match the objects that they name, or will not match them soon.
async fn put_what_differs(bed: &TestApiServer, good: &Value) {
    let put = async |name: &str, change: &dyn Fn(&mut Value)| {
        created(&bed.admin, &variant(good, name, change)).await;
    };
    let web_1 = uid(bed, "Pod", "web-1").await;
    put("other-uid", &|spec| spec["podUID"] = json!(web_1)).await;
    put("no-uid", &|spec| spec["podUID"] = json!("00000000-0000-0000-0000-000000000000")).await;
    put("other-node", &|spec| spec["nodeName"] = json!("n2")).await;
    put("other-node-uid", &|spec| spec["nodeUID"] = json!("m")).await;
    put("other-account", &|spec| spec["serviceAccountName"] = json!("other")).await;
    put("other-account-uid", &|spec| spec["serviceAccountUID"] = json!("s")).await;
    put("annotated", &|spec| {
        spec["unverifiedUserAnnotations"] = json!({"example.org/identity": "admin"});
    })
    .await;
    let other_kind = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let other_kind = BASE64.encode(&csr(&other_kind));
    put("other-key", &|spec| spec["stubPKCS10Request"] = json!(other_kind)).await;
    let gone = uid(bed, "Pod", "gone").await;
    put("gone", &|spec| {
        spec["podName"] = json!("gone");
        spec["podUID"] = json!(gone);
    })
    .await;
    put("other-signer", &|spec| spec["signerName"] = json!("example.org/other")).await;
    bed.delete(json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "gone", "namespace": "shop"}}))
        .await;
}

/// Waits until the signer has denied these requests.
async fn what_differs_is_denied(bed: &TestApiServer) {
    for (name, reason, part) in [
        ("other-uid", "Mismatch", "its UID differs"),
        ("no-uid", "Mismatch", "its UID differs"),
        ("other-node", "Mismatch", "does not run on node n2"),
        ("other-node-uid", "Mismatch", "node n1 is not the one of the request"),
        ("other-account", "Mismatch", "does not run as service account other"),
        ("other-account-uid", "Mismatch", "service account web is not the one of the request"),
        ("annotated", "InvalidUnverifiedUserAnnotations", "example.org/identity"),
        ("other-key", "UnsupportedKeyType", "ECDSAP256"),
        ("gone", "PodGone", "there is no pod gone"),
    ] {
        let status = answered(bed, name).await;
        let condition = &status["conditions"][0];
        assert_eq!(condition["type"], "Denied", "{name}: {status}");
        assert_eq!(condition["reason"], reason, "{name}: {status}");
        let message = condition["message"].as_str().unwrap();
        assert!(message.contains(part), "{name}: {message}");
        assert_eq!(status["certificateChain"], Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_kubelet_of_a_pod_gets_its_certificate() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = signing_cluster(&kube).await;
    for (pod, node) in [("web-0", "n1"), ("web-1", "n1"), ("gone", "n1"), ("far", "n2")] {
        run(&bed, pod, node).await;
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let good = request(&bed, ("good", "web-0", "n1"), &key).await;
    created(&bed.kubelet("n1").await, &good).await;
    other_nodes_are_refused(&bed, &good, &key).await;
    other_clients_are_refused(&bed, &good).await;

    // Without the policy, any client may have created a request. So nothing is signed, and requests from that time
    // are not signed later either.
    let policy = bed.get(binding()).await.unwrap();
    bed.delete(binding()).await;
    put_what_differs(&bed, &good).await;
    created(&bed.admin, &variant(&good, "unguarded", &|_| ())).await;
    let replica = Replica::start_with("controller-0", &kubeconfig, &FLAGS);
    replica.line("no certificate is signed for kubelets without").await;
    assert_eq!(replica.metric("leno_control_pod_certificates_guarded").await as u64, 0);
    let mut again = binding();
    again["spec"] = policy.data["spec"].clone();
    bed.apply(again).await;
    what_differs_is_denied(&bed).await;
    replica.line("the request is older than ValidatingAdmissionPolicy").await;
    is_guarded(&bed).await;
    created(&bed.kubelet("n1").await, &variant(&good, "late", &|_| ())).await;
    let status = answered(&bed, "late").await;
    assert_eq!(status["conditions"][0]["type"], "Issued", "{status}");
    for name in ["good", "unguarded"] {
        assert_eq!(conditions(&bed, name).await, Value::Null, "{name}");
    }
    assert_eq!(conditions(&bed, "other-signer").await, Value::Null);
    let total =
        |result: &str| format!("leno_control_pod_certificates_total{{result=\"{result}\"}}");
    until("they are counted", async || {
        (replica.metric(&total("denied")).await as u64 == 9).then_some(())
    })
    .await;
    replica.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_node_does_not_hold_up_another() {
    let Some(kube) = binary() else { return };
    let (bed, kubeconfig) = signing_cluster(&kube).await;
    run(&bed, "web-0", "n1").await;
    run(&bed, "far", "n2").await;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let (flooding, calm) = (bed.kubelet("n1").await, bed.kubelet("n2").await);
    let mut object = request(&bed, ("flood", "web-0", "n1"), &key).await;
    created(&flooding, &object).await;
    for number in 0..FLOOD {
        object["metadata"]["name"] = json!(format!("flood-{number}"));
        create(&flooding, &object).await.unwrap();
    }
    created(&calm, &request(&bed, ("far", "far", "n2"), &key).await).await;
    let replica = Replica::start_with("controller-0", &kubeconfig, &FLAGS);
    let far = answered(&bed, "far").await;
    assert_eq!(far["conditions"][0]["type"], "Issued", "{far}");
    let issued = "leno_control_pod_certificates_total{result=\"issued\"}";
    until("all have an answer", async || {
        (replica.metric(issued).await as usize == FLOOD + 2).then_some(())
    })
    .await;
    let waiting = "leno_control_pod_certificate_requests{state=\"waiting\"}";
    until("none waits", async || (replica.metric(waiting).await as u64 == 0).then_some(())).await;
    // The resource versions show the order of the answers.
    let mut versions = Vec::new();
    for number in 0..FLOOD {
        versions.push(version(&bed, &format!("flood-{number}")).await);
    }
    let far = version(&bed, "far").await;
    let before = versions.iter().filter(|flood| **flood < far).count();
    assert!(before < FLOOD * 2 / 3, "{before} requests of one node were answered first");
    replica.end();
}
