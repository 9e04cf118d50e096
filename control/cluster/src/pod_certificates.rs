//! Signs certificates that kubelets request for their pods (`PodCertificateRequest`, KEP-4317), while this replica
//! leads.
//!
//! ```text
//!  watch ──► RequestQueue ──round──► read pod, service account, node ──► sign ──► status: Issued
//!                 ▲                        │ they differ ──────────────────────► status: Denied
//!                 └───── later ────────────┴ the API server does not respond
//! ```
//! The API server has verified that a request is signed with its own key, and its admission ensures that a kubelet
//! requests only for pods of its own node. Nothing is signed without the admission policy that permits only kubelets to
//! request. The signer nevertheless reads the objects. So neither an outdated request nor a request of another client
//! gets the identity of a pod that does not exist as the request describes it.
//!
//! A denial is final, because a kubelet does not repeat a denied request. So the signer denies only a request that
//! can never become valid. It tries all others again until Kubernetes removes them, a quarter of an hour after
//! their creation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use leno_identity::{Authority, IssueError, IssuedCertificate};
use leno_kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use leno_kube::{Api, Client, Error, Event, WatchReport, WatchSelection, is_status};
use leno_program::Family;
use leno_types::Identity;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use crate::certificates_api::{CertificatesKind, SIGNER};
use crate::counts;
use crate::pem::pem;
use crate::reconcile::{Reconciler, while_leading};
use crate::trust_bundle;

mod queue;
mod request;

use queue::{MAX_WAITING, RequestQueue};
use request::{Denial, PendingRequest, UNTIL_ENFORCED, read};

/// The name of the ValidatingAdmissionPolicy and of its binding, which permit only kubelets to request certificates
/// of this signer.
const GUARD: &str = "leno-pod-certificates-v2";
const KIND: CertificatesKind = CertificatesKind {
    kind: "PodCertificateRequest",
    plural: "podcertificaterequests",
    versions: &["v1", "v1beta1"],
    remedy: "it does by default from Kubernetes 1.37 on, and from 1.35 on by its flags --feature-gates and --runtime-config",
};
/// How many requests are processed at once. Each takes three small reads and a write.
const AT_ONCE: usize = 16;
/// Most requests of one round.
const A_ROUND: usize = 128;
/// How many objects one page of a list has. The annotations of one request may have 256 KiB.
const PAGE: u32 = 50;
/// Longest wait for all answers of the API server about one request.
const ANSWERS: Duration = Duration::from_secs(10);
/// How long to wait for the admission policy, which is installed together with the control plane.
const INSTALLED: Duration = Duration::from_secs(30);
/// The pause between two checks for the policy.
const LOOK: Duration = Duration::from_secs(1);
/// From this age on, in seconds, an admission policy is certainly enforced, even if clocks differ.
const SURELY_ENFORCED_S: i64 = 60;
/// When a kubelet is to renew a certificate, as a share of its remaining lifetime. Proxies renew their
/// certificates at the same point.
const RENEW_AT: f64 = 0.7;

/// Signs the certificates that kubelets request for pods.
pub struct PodCertificateSigner {
    client: Client,
    authority: Arc<Authority>,
    /// The lifetime of the certificates that are signed.
    lifetime: Duration,
    is_wanted: bool,
    issued: AtomicU64,
    denied: AtomicU64,
    failed: AtomicU64,
    /// How many times a request was read that has no key which this API server keeps. It gets no answer.
    keyless: AtomicU64,
    waiting: AtomicU64,
    /// How many requests have found no room in the queue since all were last listed.
    left_out: AtomicU64,
    /// 1 if the admission policy existed when it was last checked.
    guarded: AtomicU64,
}

/// The result of an attempt to answer a request.
enum Outcome {
    Issued,
    Denied,
    /// The request does not exist any more, or has an answer already.
    Gone,
    /// The attempt has failed and will be repeated.
    Failed,
}

/// Why a request gets no certificate.
enum Refusal {
    Denied(Denial),
    Failed(String),
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl PodCertificateSigner {
    /// Whether pods may use a volume with a certificate that the kubelet requests. For that, the API server must
    /// serve the kinds, and an admission policy must permit only kubelets to request certificates. Right after an
    /// installation this may wait some seconds for the policy.
    ///
    /// # Errors
    /// If the API server does not respond, or does not permit reading the admission policy.
    pub async fn is_ready(client: &Client) -> Result<bool, Error> {
        let is_served = KIND.served(client).await?.is_some()
            && trust_bundle::KIND.served(client).await?.is_some();
        if !is_served {
            return Ok(false);
        }
        let begin = Instant::now();
        loop {
            if let Some(since) = guarded_since(client).await? {
                let age = Timestamp::now().as_second().saturating_sub(since.as_second());
                if age <= SURELY_ENFORCED_S {
                    sleep(UNTIL_ENFORCED + LOOK).await;
                }
                return Ok(true);
            }
            if begin.elapsed() > INSTALLED {
                return Ok(false);
            }
            sleep(LOOK).await;
        }
    }

    /// Creates a signer that signs with this authority. `is_wanted` is whether signing is enabled; otherwise
    /// [`run`](Self::run) does nothing.
    #[must_use]
    pub fn new(
        client: Client,
        authority: Arc<Authority>,
        (lifetime, is_wanted): (Duration, bool),
    ) -> Self {
        let [issued, denied, failed, keyless, waiting, left_out, guarded] =
            std::array::from_fn(|_| AtomicU64::new(0));
        Self {
            client,
            authority,
            lifetime,
            is_wanted,
            issued,
            denied,
            failed,
            keyless,
            waiting,
            left_out,
            guarded,
        }
    }

    /// Watches requests, and signs while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, leads: watch::Receiver<bool>) {
        if !self.is_wanted {
            return;
        }
        let resource = KIND.wait(&self.client, || ()).await;
        while_leading(leads, || {
            let api = Api::all_with(self.client.clone(), &resource);
            let (queue, unguarded) = Default::default();
            Observed { own: self, resource: &resource, api, queue, unguarded }
        })
        .await;
    }

    /// Appends the counters and gauges, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Answers to PodCertificateRequests, by result; failed ones are tried again, and those of kubelets that are \
                    too old have no key and no answer.";
        let results = [
            ("issued", &self.issued),
            ("denied", &self.denied),
            ("failed", &self.failed),
            ("keyless", &self.keyless),
        ];
        counts::render(text, ("pod_certificates_total", help), &results);
        let help = "PodCertificateRequests without an answer, as far as this replica leads: waiting, or left out for want of \
                    room in the queue until it is empty.";
        let mut family = Family::gauge(text, "leno_control_pod_certificate_requests", help);
        for (state, count) in [("waiting", &self.waiting), ("left_out", &self.left_out)] {
            family.sample(&[("state", state)], count.load(Ordering::Relaxed));
        }
        let help = "Whether the admission policy that permits kubelets alone to request certificates of pods was there when \
                    this replica looked last; nothing is signed without it.";
        Family::gauge(text, "leno_control_pod_certificates_guarded", help)
            .sample(&[], self.guarded.load(Ordering::Relaxed));
    }

    async fn answer(
        &self,
        resource: &ApiResource,
        (request, guarded): (&PendingRequest, Timestamp),
    ) -> Outcome {
        let attempt = async {
            let issued = self.issue(request, guarded).await;
            let (outcome, status) = match &issued {
                Ok(issued) => (Outcome::Issued, issued_status(issued, SystemTime::now())),
                Err(Refusal::Denied(denial)) => (Outcome::Denied, denied_status(denial)),
                Err(Refusal::Failed(reason)) => return Err(reason.clone()),
            };
            match self.write(resource, request, status).await {
                Ok(()) => {
                    log(request, issued.err());
                    Ok(outcome)
                }
                // The request has another version by now, or was removed. The watch will report that.
                Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(Outcome::Gone),
                Err(error) => Err(error.to_string()),
            }
        };
        let failure = match timeout(ANSWERS, attempt).await {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(failure)) => failure,
            Err(_elapsed) => "no answer".to_owned(),
        };
        let (namespace, pod) = (&request.key.namespace, &request.spec.pod_name);
        tracing::warn!(
            failure,
            namespace,
            pod,
            "a PodCertificateRequest was not answered; retrying"
        );
        Outcome::Failed
    }

    async fn issue(
        &self,
        request: &PendingRequest,
        guarded: Timestamp,
    ) -> Result<IssuedCertificate, Refusal> {
        let (spec, namespace) = (&request.spec, &request.key.namespace);
        spec.check()?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        spec.check_pod(pods.get_opt(&spec.pod_name).await?.as_ref(), SystemTime::now())?;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let nodes: Api<Node> = Api::all(self.client.clone());
        let account = accounts.get_opt(&spec.service_account_name).await?;
        let node = nodes.get_opt(&spec.node_name).await?;
        spec.check_others(account.as_ref(), node.as_ref())?;
        let identity = self.identity(namespace, &spec.service_account_name)?;
        let lifetimes = (self.lifetime, spec.longest());
        let signed = self.authority.sign_for_pod(spec.key(), &identity, lifetimes);
        let signed = signed.map_err(|error| match error {
            IssueError::Key => {
                let message = format!("{error}: use keyType: ECDSAP256");
                Refusal::Denied(Denial::new("UnsupportedKeyType", message))
            }
            error if error.is_bad_request() => {
                Refusal::Denied(Denial::new("InvalidRequest", error.to_string()))
            }
            error => Refusal::Failed(error.to_string()),
        })?;
        // A request that is invalid in itself was denied before this check.
        if !request.is_after(guarded) {
            let reason = format!(
                "the request is older than ValidatingAdmissionPolicy {GUARD}: its kubelet repeats \
                 it once Kubernetes has removed it"
            );
            return Err(Refusal::Failed(reason));
        }
        Ok(signed)
    }

    fn identity(&self, namespace: &str, account: &str) -> Result<Identity, Denial> {
        let domain = self.authority.trust_domain().clone();
        Identity::new(domain, namespace, account).map_err(|error| {
            let message = format!("service account {account} cannot have an identity: {error}");
            Denial::new("NoIdentity", message)
        })
    }

    async fn write(
        &self,
        resource: &ApiResource,
        request: &PendingRequest,
        status: Value,
    ) -> Result<(), Error> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &request.key.namespace, resource);
        // The patch applies only to this object in this version, because another replica may have answered the
        // request meanwhile.
        let metadata = json!({"uid": request.uid, "resourceVersion": request.version});
        let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
        api.patch_status(&request.key.name, &PatchParams::default(), &patch).await.map(drop)
    }
}

struct Observed<'a> {
    own: &'a PodCertificateSigner,
    resource: &'a ApiResource,
    api: Api<DynamicObject>,
    queue: RequestQueue,
    /// The last logged reason why nothing is signed.
    unguarded: String,
}

impl Observed<'_> {
    fn selector() -> String {
        format!("spec.signerName={SIGNER}")
    }

    fn take(&mut self, object: DynamicObject) {
        match read(object) {
            (key, Some(request)) if !request.spec.has_key() => {
                // Without a key the request cannot be signed. It is not denied, because its spec cannot change and
                // a denial would be final.
                self.queue.remove(&key);
                self.own.keyless.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    node = request.spec.node_name,
                    namespace = key.namespace,
                    pod = request.spec.pod_name,
                    "a PodCertificateRequest has no key that this API server keeps, and is left without an answer: update the \
                     kubelet of this node; it repeats the request once Kubernetes has removed this one"
                );
            }
            (_, Some(request)) => self.queue.put(request),
            (key, None) => self.queue.remove(&key),
        }
    }

    /// Lists all requests again, for those that found no room in the queue.
    async fn list_again(&mut self) -> Result<(), Error> {
        self.queue.clear();
        let mut page = ListParams::default().fields(&Self::selector()).limit(PAGE);
        loop {
            let list = self.api.list(&page).await?;
            list.items.into_iter().for_each(|object| self.take(object));
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) if self.queue.waiting() < MAX_WAITING => {
                    page = page.continue_token(&token);
                }
                Some(_) => {
                    self.queue.leave_out();
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
    }

    /// Since when only kubelets can request certificates; `None` if other clients can as well, or if this is not
    /// known.
    async fn guard(&mut self) -> Option<Timestamp> {
        let failure = match timeout(ANSWERS, guarded_since(&self.own.client)).await {
            Ok(Ok(Some(since))) => {
                self.unguarded.clear();
                self.own.guarded.store(1, Ordering::Relaxed);
                return Some(since);
            }
            Ok(Ok(None)) => {
                "it does not exist: install it again with leno upgrade | kubectl apply \
                 --server-side -f -"
                    .to_owned()
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        self.own.guarded.store(0, Ordering::Relaxed);
        if failure != self.unguarded {
            tracing::error!(
                failure,
                "no certificate is signed for kubelets without ValidatingAdmissionPolicy {GUARD} and its binding"
            );
            self.unguarded = failure;
        }
        None
    }

    fn show(&self) {
        let shown = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        self.own.waiting.store(shown(self.queue.waiting()), Ordering::Relaxed);
        self.own.left_out.store(shown(self.queue.left_out()), Ordering::Relaxed);
    }
}

impl Reconciler for Observed<'_> {
    type Observation = WatchReport<DynamicObject>;

    /// Shorter than by default, because a round takes as long as its requests, and kubelets wait for the answers.
    const PAUSE: Duration = Duration::from_millis(50);

    fn watches(&self) -> BoxStream<'static, Self::Observation> {
        let selection =
            WatchSelection { fields: Self::selector(), page: PAGE, ..WatchSelection::default() };
        leno_kube::watch(self.api.clone(), selection).boxed()
    }

    fn observe(&mut self, observation: Self::Observation) {
        match observation {
            WatchReport::Event(Event::Init) => self.queue.clear(),
            WatchReport::Event(Event::InitApply(object) | Event::Apply(object)) => {
                self.take(object)
            }
            WatchReport::Event(Event::Delete(object)) => self.queue.remove(&read(object).0),
            WatchReport::Event(Event::InitDone) | WatchReport::Resumed => {}
            WatchReport::Failed(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "cannot watch PodCertificateRequests; retrying");
            }
        }
        self.show();
    }

    fn is_due(&self) -> bool {
        self.queue.waiting() > 0 || self.queue.left_out() > 0
    }

    fn not_before(&self) -> Option<Instant> {
        self.queue.next()
    }

    async fn reconcile(&mut self) -> bool {
        if self.queue.waiting() == 0 {
            let listed = timeout(ANSWERS, self.list_again()).await;
            let is_listed = matches!(listed, Ok(Ok(())));
            if !is_listed {
                self.queue.leave_out();
            }
            self.show();
            return is_listed;
        }
        let Some(guarded) = self.guard().await else { return false };
        let round = self.queue.round(A_ROUND, Instant::now());
        let (own, resource) = (self.own, self.resource);
        let answers = round.into_iter().map(|request| async move {
            let outcome = own.answer(resource, (&request, guarded)).await;
            (request.key, outcome)
        });
        let answered: Vec<_> = stream::iter(answers).buffer_unordered(AT_ONCE).collect().await;
        for (key, outcome) in answered {
            let counter = match outcome {
                Outcome::Issued => Some(&self.own.issued),
                Outcome::Denied => Some(&self.own.denied),
                Outcome::Gone => None,
                Outcome::Failed => {
                    self.own.failed.fetch_add(1, Ordering::Relaxed);
                    self.queue.put_off(&key, Instant::now());
                    continue;
                }
            };
            if let Some(counter) = counter {
                counter.fetch_add(1, Ordering::Relaxed);
            }
            self.queue.remove(&key);
        }
        self.show();
        true
    }
}

impl Drop for Observed<'_> {
    /// Runs when this replica stops leading.
    fn drop(&mut self) {
        self.queue.clear();
        self.show();
    }
}

/// Since when the API server refuses requests of clients that are not kubelets; `None` if it does not refuse them.
/// A request does not show which client created it. So without the policy nothing is signed, and requests older
/// than the policy are never signed.
async fn guarded_since(client: &Client) -> Result<Option<Timestamp>, Error> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    let (policy, binding) = (policies.get_opt(GUARD).await?, bindings.get_opt(GUARD).await?);
    let created = |metadata: ObjectMeta| metadata.creation_timestamp.map(|time| time.0);
    let policy = policy.and_then(|one| created(one.metadata));
    let binding = binding.and_then(|one| created(one.metadata));
    Ok(policy.zip(binding).map(|(policy, binding)| policy.max(binding)))
}

fn log(request: &PendingRequest, refusal: Option<Refusal>) {
    let (namespace, spec) = (&request.key.namespace, &request.spec);
    let (pod, node, account) = (&spec.pod_name, &spec.node_name, &spec.service_account_name);
    match refusal {
        None => tracing::info!(namespace, pod, node, account, "certificate issued to a kubelet"),
        Some(Refusal::Denied(denial)) => {
            let (reason, message) = (denial.reason, denial.message);
            tracing::warn!(
                namespace,
                pod,
                node,
                reason,
                message,
                "a PodCertificateRequest is denied"
            );
        }
        Some(Refusal::Failed(_)) => {}
    }
}

/// The status of a request with its certificate. The chain does not include the root.
fn issued_status(issued: &IssuedCertificate, now: SystemTime) -> Value {
    let chain: String = issued.chain_der.iter().map(|one| pem(one)).collect();
    let left = issued.not_after.duration_since(now).unwrap_or_default();
    // The API server requires that the time of renewal is at least ten minutes from both ends of the validity.
    let margin = Duration::from_mins(10);
    let earliest = issued.not_before + margin;
    let latest = (issued.not_after - margin).max(earliest);
    let refresh = (now + left.mul_f64(RENEW_AT)).clamp(earliest, latest);
    json!({
        "conditions": [condition("Issued", "Signed", "the key belongs to the pod's service account")],
        "certificateChain": chain,
        "notBefore": time(issued.not_before),
        "notAfter": time(issued.not_after),
        "beginRefreshAt": time(refresh),
    })
}

fn denied_status(denial: &Denial) -> Value {
    json!({"conditions": [condition("Denied", denial.reason, &denial.message)]})
}

fn condition(kind: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": "True", "reason": reason, "message": message,
        "lastTransitionTime": time(SystemTime::now())})
}

/// Formats a time as Kubernetes does, in whole seconds.
fn time(time: SystemTime) -> Value {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).map_or(Value::Null, |time| json!(Time(time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_renews_between_the_bounds_of_the_api_server() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_hours(24 * 365 * 50);
        let refresh = |before: Duration, after: Duration| {
            let issued = IssuedCertificate {
                chain_der: vec![b"leaf".to_vec(), b"issuer".to_vec()],
                not_before: now - before,
                not_after: now + after,
                issuer: String::new(),
            };
            let status = issued_status(&issued, now);
            assert_eq!(status["certificateChain"].as_str().unwrap().matches("BEGIN").count(), 2);
            let time = |name: &str| status[name].as_str().unwrap().parse::<Timestamp>().unwrap();
            let [first, last, refresh] =
                ["notBefore", "notAfter", "beginRefreshAt"].map(|name| time(name).as_second());
            assert!(refresh - first >= 600 && last - refresh >= 600, "{status}");
            refresh - time("notBefore").as_second()
        };
        let minute = Duration::from_mins(1);
        let hour = 60 * minute;
        assert_eq!(refresh(2 * minute, 24 * hour), 120 + 60_480);
        assert_eq!(refresh(2 * minute, 58 * minute), 120 + 2436);
        // After a revocation, a certificate's validity begins at the time of its issue.
        assert_eq!(refresh(Duration::ZERO, hour), 2520);
    }
}
