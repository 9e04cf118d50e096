//! Decides with the API server's data whether a node proxy may get the certificate of a pod's workload.
//!
//! ```text
//!  token of a node proxy ──review──► its node ─┐
//!                                              ├─ the same node, in node mode ──► the pod's identity
//!  the requested pod ────────read────► its node ┘
//! ```
//! The pod is read for every certificate, the first one and each renewal, and no answer is cached. So once a pod
//! has ended, is deleted or leaves node mode, its node proxy gets no further certificate.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use leno_kube::{Api, Client};
use leno_resources::{INJECT_ANNOTATION, MODE_ANNOTATION, NamespaceMode, PodMode};
use leno_serve::{AuthenticationError, ProvenIdentity, ServedPod};
use leno_types::{Identity, InstanceName};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::{ReviewFailure, count};
use crate::counts;

/// The service account of node proxies. It is in the namespace of the control plane.
pub const NODE_ACCOUNT: &str = "node";

/// How many pods are read at the same time. Each takes one to three small reads.
const AT_ONCE: usize = 16;
/// The service account of a pod whose spec names none.
const DEFAULT_ACCOUNT: &str = "default";

/// The owner of a token, according to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenBearer {
    /// The identity that the token proves by itself.
    pub(super) proven: ProvenIdentity,
    /// The UID of the pod for which the token was issued.
    pub(super) uid: Option<String>,
    /// The node of that pod. API servers before Kubernetes 1.30 do not report it.
    pub(super) node: Option<String>,
}

/// Reads pods for node proxies.
pub(super) struct ServedPods {
    client: Client,
    /// The namespace of the control plane.
    namespace: String,
    turns: Semaphore,
    accepted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
}

/// Why a node proxy gets no certificate.
#[derive(Debug)]
enum Refusal {
    /// The proxy may not have the certificate, for this reason.
    Denied(String),
    /// It is not known whether the proxy may have the certificate.
    Failed(ReviewFailure),
}

impl From<leno_kube::Error> for Refusal {
    fn from(error: leno_kube::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl ServedPods {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            turns: Semaphore::new(AT_ONCE),
            accepted: AtomicU64::default(),
            refused: AtomicU64::default(),
            failed: AtomicU64::default(),
        }
    }

    /// The workload of a pod, if the bearer of the token may act for it.
    ///
    /// # Errors
    /// `Denied` if the bearer is not a node proxy, or the pod does not run on the bearer's node; otherwise why
    /// this is not known.
    pub(super) async fn check(
        &self,
        bearer: &TokenBearer,
        served: &ServedPod,
        deadline: Instant,
    ) -> Result<ProvenIdentity, AuthenticationError> {
        let asked = async {
            // Acquiring cannot fail, because the semaphore is never closed.
            let _turn = self.turns.acquire().await;
            self.identity(bearer, served).await
        };
        let checked = timeout_at(deadline, asked).await;
        match checked.unwrap_or(Err(Refusal::Failed(ReviewFailure::Late))) {
            Ok(identity) => {
                count(&self.accepted);
                Ok(ProvenIdentity { identity, instance: Some(served.instance.clone()) })
            }
            Err(Refusal::Denied(reason)) => {
                count(&self.refused);
                Err(AuthenticationError::Denied(reason))
            }
            Err(Refusal::Failed(error)) => {
                count(&self.failed);
                Err(error.into())
            }
        }
    }

    async fn identity(
        &self,
        bearer: &TokenBearer,
        served: &ServedPod,
    ) -> Result<Identity, Refusal> {
        let own = &bearer.proven.identity;
        if (own.namespace(), own.service_account()) != (self.namespace.as_str(), NODE_ACCOUNT) {
            return Err(Refusal::Denied(format!(
                "{own} is not a node proxy: only service account {NODE_ACCOUNT} of namespace {} \
                 gets certificates for pods",
                self.namespace
            )));
        }
        let node = self.node_of(bearer).await?;
        let name = &served.instance;
        let pod = self.pod(name).await?;
        let pod = pod.ok_or_else(|| Refusal::Denied(format!("there is no pod {name}")))?;
        check_place(&pod, served, &node).map_err(Refusal::Denied)?;
        check_mode(&pod, self.mode_of(&name.namespace).await?).map_err(Refusal::Denied)?;
        let account = pod.spec.and_then(|spec| spec.service_account_name);
        let account = account.as_deref().unwrap_or(DEFAULT_ACCOUNT);
        Identity::new(own.trust_domain().clone(), &name.namespace, account)
            .map_err(|error| Refusal::Denied(format!("{name} cannot have an identity: {error}")))
    }

    /// The node of the pod for which the token was issued.
    async fn node_of(&self, bearer: &TokenBearer) -> Result<String, Refusal> {
        if let Some(node) = &bearer.node {
            return Ok(node.clone());
        }
        let unbound = || {
            let reason = "the token of the node proxy names no pod: mount it from a projected \
                          volume";
            Refusal::Denied(reason.to_owned())
        };
        let own = bearer.proven.instance.as_ref().ok_or_else(unbound)?;
        let pod = self.pod(own).await?.filter(|pod| pod.metadata.uid == bearer.uid);
        pod.and_then(|pod| pod.spec?.node_name).ok_or_else(unbound)
    }

    async fn pod(&self, name: &InstanceName) -> Result<Option<Pod>, Refusal> {
        let api = Api::<Pod>::namespaced(self.client.clone(), &name.namespace);
        Ok(api.get_opt(&name.name).await?)
    }

    /// The settings of a namespace for its pods that set nothing themselves.
    async fn mode_of(&self, namespace: &str) -> Result<NamespaceMode, Refusal> {
        let found = Api::<Namespace>::all(self.client.clone()).get_opt(namespace).await?;
        let metadata = found.map(|namespace| namespace.metadata).unwrap_or_default();
        Ok(NamespaceMode::new(metadata.labels.as_ref(), metadata.annotations.as_ref()))
    }

    /// Appends the counters as Prometheus text.
    pub(super) fn render(&self, text: &mut String) {
        let help =
            "Certificates of pods that node proxies requested, by whether the pod may be served.";
        let results =
            [("accepted", &self.accepted), ("refused", &self.refused), ("failed", &self.failed)];
        counts::render(text, ("node_proxy_requests_total", help), &results);
    }
}

/// Checks that a pod is the requested one and runs on this node, in its own network namespace.
fn check_place(pod: &Pod, served: &ServedPod, node: &str) -> Result<(), String> {
    let name = &served.instance;
    if pod.metadata.uid.as_ref() != Some(&served.uid) {
        return Err(format!("the pod {name} does not have the UID {}", served.uid));
    }
    let spec = pod.spec.as_ref();
    match spec.and_then(|spec| spec.node_name.as_deref()) {
        Some(of) if of == node => {}
        // The message does not contain the pod's node, because the bearer must not learn it.
        _ => return Err(format!("the pod {name} does not run on node {node}")),
    }
    if spec.is_some_and(|spec| spec.host_network == Some(true)) {
        return Err(format!("the pod {name} uses its node's network"));
    }
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Err(format!("the pod {name} has ended"));
    }
    Ok(())
}

/// Checks that a pod is in the mesh and in node mode, by its own setting or else by that of its namespace.
fn check_mode(pod: &Pod, of_namespace: NamespaceMode) -> Result<(), String> {
    let metadata = &pod.metadata;
    let own = PodMode::new(metadata.labels.as_ref(), metadata.annotations.as_ref());
    if own.is_node(of_namespace) {
        return Ok(());
    }
    let name = [&metadata.namespace, &metadata.name];
    let name = name.map(|part| part.as_deref().unwrap_or_default()).join("/");
    Err(format!(
        "the pod {name} is not in node mode ({MODE_ANNOTATION}: node, {INJECT_ANNOTATION}: enabled)"
    ))
}

impl From<ReviewFailure> for AuthenticationError {
    fn from(error: ReviewFailure) -> Self {
        let denied = matches!(&error,
            ReviewFailure::Failed(leno_kube::Error::Api(status)) if matches!(status.code, 401 | 403));
        let error = Arc::new(error);
        if denied { Self::Broken(error) } else { Self::Unavailable(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(changes: &[(&str, &str)]) -> Pod {
        let mut text = r#"{"metadata":{"name":"web-0","namespace":"shop","uid":"u"},
            "spec":{"nodeName":"n1","containers":[]},"status":{"phase":"Running"}}"#
            .to_owned();
        for (before, after) in changes {
            assert!(text.contains(before), "{before}");
            text = text.replace(before, after);
        }
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn only_the_named_pod_on_the_same_node_is_served() {
        let served = ServedPod { instance: "shop/web-0".parse().unwrap(), uid: "u".to_owned() };
        let place = |changes: &[(&str, &str)]| check_place(&pod(changes), &served, "n1");
        assert_eq!(place(&[]), Ok(()));
        assert_eq!(place(&[("Running", "Pending")]), Ok(()), "its proxy is there before it");
        let rows = [
            (("\"uid\":\"u\"", "\"uid\":\"v\""), "does not have the UID u"),
            (("n1", "n2"), "does not run on node n1"),
            (("\"nodeName\":\"n1\",", ""), "does not run on node n1"),
            (("\"spec\":{", "\"spec\":{\"hostNetwork\":true,"), "uses its node's network"),
            (("Running", "Succeeded"), "has ended"),
            (("Running", "Failed"), "has ended"),
        ];
        for (change, part) in rows {
            let reason = place(&[change]).unwrap_err();
            assert!(reason.contains(part), "{change:?}: {reason}");
            assert!(!reason.contains("n2"), "the node of another pod is not told: {reason}");
        }
    }

    #[test]
    fn a_pod_is_in_node_mode_by_its_own_word_and_else_by_its_namespaces() {
        let enabled = ("leno.dev/inject", "enabled");
        let rows = [
            ("", &[enabled][..], false),
            ("", &[enabled, ("leno.dev/mode", "node")], true),
            ("", &[("leno.dev/mode", "node")], false),
            ("", &[enabled, ("leno.dev/mode", "nod")], false),
            (r#","labels":{"leno.dev/mode":"node"}"#, &[enabled], true),
            (r#","labels":{"leno.dev/mode":"node"}"#, &[], false),
            (r#","labels":{"leno.dev/mode":"node","leno.dev/inject":"enabled"}"#, &[], true),
            (
                r#","annotations":{"leno.dev/inject":"disabled"}"#,
                &[enabled, ("leno.dev/mode", "node")],
                false,
            ),
            (
                r#","annotations":{"leno.dev/mode":"sidecar"}"#,
                &[enabled, ("leno.dev/mode", "node")],
                false,
            ),
            (
                r#","annotations":{"leno.dev/mode":"Node"}"#,
                &[enabled, ("leno.dev/mode", "node")],
                false,
            ),
        ];
        for (own, of_namespace, expected) in rows {
            let pod = pod(&[("\"uid\":\"u\"", &format!("\"uid\":\"u\"{own}"))]);
            let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            let labels = of_namespace.iter().map(text).collect();
            let checked = check_mode(&pod, NamespaceMode::new(Some(&labels), None));
            assert_eq!(checked.is_ok(), expected, "{own} {checked:?}");
        }
    }
}
