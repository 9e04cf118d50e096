//! Determines the owner of a token with a request to the API server (`TokenReview`).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use leno_kube::api::PostParams;
use leno_kube::{Api, Client};
use leno_serve::{AnswerFuture, AuthenticationError, Authenticator, ProvenIdentity, ServedPod};
use leno_types::{Identity, InstanceName, TrustDomain};
use tokio::sync::Semaphore;
use tokio::time::{Instant as Deadline, timeout_at};

mod cache;
mod claims;
mod keys;
mod served_pods;

use crate::counts;
use cache::{ReviewCache, Reviewed, TokenDigest};
use keys::{ClusterKeys, Signature};
use served_pods::{ServedPods, TokenBearer};

pub use served_pods::NODE_ACCOUNT;

/// The default audience of proxies' tokens.
pub const AUDIENCE: &str = "leno";

/// Most reviews at a time. Each makes the API server verify a signature, and the API server has other work.
const AT_ONCE: usize = 16;
/// Most reviews at a time of tokens whose key the cluster does not publish. Such a token is junk, or was signed in
/// the minutes in which the cluster replaces its key. These reviews must not delay those of other tokens.
const UNKNOWN_AT_ONCE: usize = 2;
/// The longest check of a token, including waits for permits and for the API server. A proxy waits 5 s for its
/// certificate and should receive the reason if it gets none.
const ANSWER: Duration = Duration::from_secs(4);
/// How long to wait until the watch reports the pod of a proxy that has already sent a request.
const PATIENCE: Duration = Duration::from_secs(5);
/// The extra fields in which the API server names the pod for which a token was issued.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
/// The prefix of the user names of service accounts. Namespace and name follow it.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Determines the owners of tokens with the API server.
pub struct TokenReviewer {
    api: Api<TokenReview>,
    audience: String,
    trust_domain: TrustDomain,
    /// Limits the simultaneous reviews of tokens that the cluster has signed, or that cannot be checked here.
    turns: Semaphore,
    /// Limits the simultaneous reviews of tokens that name an unknown key.
    turns_of_unknown: Semaphore,
    keys: ClusterKeys,
    cache: Mutex<ReviewCache>,
    served: ServedPods,
    counts: Counts,
}

/// Counts checks of tokens by their result. `accepted`, `refused` and `failed` are results of reviews; `refused` also
/// counts tokens whose claims already rule them out. For `cached` and `unsigned`, no review was needed.
#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    cached: AtomicU64,
    unsigned: AtomicU64,
}

/// Why the API server has given no result.
#[derive(Debug, thiserror::Error)]
enum ReviewFailure {
    #[error("the API server did not answer within {ANSWER:?}")]
    Late,
    #[error("the API server gave no verdict on the token")]
    Failed(#[from] leno_kube::Error),
}

impl TokenReviewer {
    /// Reviews tokens for an audience. Identities are in `trust_domain`. `namespace` is the control plane's; it
    /// contains the service account of node proxies, [`NODE_ACCOUNT`].
    #[must_use]
    pub fn new(client: Client, audience: &str, trust_domain: TrustDomain, namespace: &str) -> Self {
        Self {
            served: ServedPods::new(client.clone(), namespace),
            keys: ClusterKeys::new(client.clone()),
            turns_of_unknown: Semaphore::new(UNKNOWN_AT_ONCE),
            api: Api::all(client),
            audience: audience.to_owned(),
            trust_domain,
            turns: Semaphore::new(AT_ONCE),
            cache: Mutex::default(),
            counts: Counts::default(),
        }
    }

    /// Appends the counters, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let Counts { accepted, refused, failed, cached, unsigned } = &self.counts;
        let help = "Reviews of tokens that proxies presented, by result.";
        let results = [
            ("accepted", accepted),
            ("refused", refused),
            ("failed", failed),
            ("cached", cached),
            ("unsigned", unsigned),
        ];
        counts::render(text, ("token_reviews_total", help), &results);
        self.served.render(text);
    }

    async fn check(
        &self,
        token: &str,
        deadline: Deadline,
    ) -> Result<TokenBearer, AuthenticationError> {
        let begin = SystemTime::now();
        let ends = claims::check(token, &self.audience, begin).map_err(|error| {
            count(&self.counts.refused);
            AuthenticationError::Bad(error.to_string())
        })?;
        let key = TokenDigest::of(token);
        let known = self.cache().get(key, Instant::now());
        let reviewed = if let Some(known) = known {
            count(&self.counts.cached);
            known
        } else {
            let signature = timeout_at(deadline, self.keys.check(token)).await;
            let turns = match signature.unwrap_or(Signature::NoKeys) {
                Signature::Good | Signature::NoKeys => &self.turns,
                Signature::UnknownKey => &self.turns_of_unknown,
                Signature::Bad => {
                    count(&self.counts.unsigned);
                    let reason = "the token is not signed by the key of the cluster that it names";
                    return Err(AuthenticationError::Bad(reason.to_owned()));
                }
            };
            let reviewed = self.review(token, turns, deadline).await.map_err(|error| {
                count(&self.counts.failed);
                AuthenticationError::from(error)
            })?;
            count(if reviewed.is_ok() { &self.counts.accepted } else { &self.counts.refused });
            let left = ends.and_then(|ends| ends.duration_since(begin).ok());
            let left = left.unwrap_or(Duration::MAX);
            self.cache().put(key, reviewed.clone(), left, Instant::now());
            reviewed
        };
        reviewed.map_err(AuthenticationError::Bad)
    }

    async fn review(
        &self,
        token: &str,
        turns: &Semaphore,
        deadline: Deadline,
    ) -> Result<Reviewed, ReviewFailure> {
        let audience = self.audience.clone();
        let spec = TokenReviewSpec { token: token.to_owned(), audiences: Some(vec![audience]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let asked = async {
            // Acquiring cannot fail, because the semaphore is never closed.
            let _turn = turns.acquire().await;
            self.api.create(&PostParams::default(), &review).await
        };
        let answer = timeout_at(deadline, asked).await.map_err(|_| ReviewFailure::Late)??;
        let status = answer.status.unwrap_or_default();
        Ok(proven(status, &self.audience, &self.trust_domain))
    }

    fn cache(&self) -> MutexGuard<'_, ReviewCache> {
        // Poisoning is ignored, because entries are inserted and removed as a whole.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authenticator for TokenReviewer {
    fn authenticate<'a>(
        &'a self,
        token: &'a str,
    ) -> AnswerFuture<'a, Result<ProvenIdentity, AuthenticationError>> {
        Box::pin(async move { Ok(self.check(token, deadline()).await?.proven) })
    }

    fn authenticate_for<'a>(
        &'a self,
        token: &'a str,
        pod: &'a ServedPod,
    ) -> AnswerFuture<'a, Result<ProvenIdentity, AuthenticationError>> {
        Box::pin(async move {
            let deadline = deadline();
            self.served.check(&self.check(token, deadline).await?, pod, deadline).await
        })
    }

    fn identity_of<'a>(
        &'a self,
        _instance: &'a InstanceName,
    ) -> AnswerFuture<'a, Option<Identity>> {
        // No request is needed, because the index has the service accounts of pods.
        Box::pin(std::future::ready(None))
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }
}

impl fmt::Debug for TokenReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenReviewer").field("audience", &self.audience).finish_non_exhaustive()
    }
}

fn deadline() -> Deadline {
    Deadline::now() + ANSWER
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The owner of a token according to the API server's answer.
fn proven(status: TokenReviewStatus, audience: &str, trust_domain: &TrustDomain) -> Reviewed {
    if status.authenticated != Some(true) {
        let error = status.error.filter(|error| !error.is_empty());
        let error = error.unwrap_or_else(|| "it gives no reason".to_owned());
        return Err(format!("the API server does not accept the token: {error}"));
    }
    // An API server that does not support audiences names none in its answer, and has not checked them.
    if !status.audiences.iter().flatten().any(|found| found == audience) {
        return Err(format!("the API server does not confirm that the token is for {audience:?}"));
    }
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let account = name.strip_prefix(SERVICE_ACCOUNT).and_then(|rest| rest.split_once(':'));
    let Some((namespace, account)) = account else {
        return Err(format!("the token is of {name:?}, which is not a service account"));
    };
    let identity = Identity::new(trust_domain.clone(), namespace, account)
        .map_err(|error| format!("{name:?} cannot be an identity: {error}"))?;
    let extra = |name: &str| user.extra.as_ref()?.get(name)?.first().cloned();
    let instance = extra(POD_NAME).and_then(|pod| InstanceName::new(namespace, &pod).ok());
    let proven = ProvenIdentity { identity, instance };
    Ok(TokenBearer { proven, uid: extra(POD_UID), node: extra(NODE_NAME) })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn judged(status: &str) -> Reviewed {
        proven(serde_json::from_str(status).unwrap(), AUDIENCE, &TrustDomain::default())
    }

    #[test]
    fn a_reviewed_token_is_its_service_account_and_its_pod() {
        let TokenBearer { proven, uid, node } = judged(
            r#"{"authenticated":true,"audiences":["leno"],"user":{
                "username":"system:serviceaccount:shop:web",
                "extra":{"authentication.kubernetes.io/pod-name":["web-7d9"],
                    "authentication.kubernetes.io/pod-uid":["u"],
                    "authentication.kubernetes.io/node-name":["n1"]}}}"#,
        )
        .unwrap();
        assert_eq!(proven.identity.to_string(), "spiffe://cluster.local/ns/shop/sa/web");
        assert_eq!(proven.instance.unwrap().to_string(), "shop/web-7d9");
        assert_eq!((uid.as_deref(), node.as_deref()), (Some("u"), Some("n1")));
        let unbound = judged(
            r#"{"authenticated":true,"audiences":["leno"],
                "user":{"username":"system:serviceaccount:shop:web"}}"#,
        );
        let TokenBearer { proven, uid, node } = unbound.unwrap();
        assert_eq!((proven.instance, uid, node), (None, None, None));
    }

    #[test]
    fn whatever_is_less_proves_nothing_and_says_why() {
        let rows = [
            (r#"{}"#, "it gives no reason"),
            (r#"{"authenticated":false,"error":"token has been invalidated"}"#, "invalidated"),
            (
                r#"{"authenticated":true,"user":{"username":"system:serviceaccount:shop:web"}}"#,
                "does not confirm that the token is for",
            ),
            (
                r#"{"authenticated":true,"audiences":["other"],
                    "user":{"username":"system:serviceaccount:shop:web"}}"#,
                "does not confirm that the token is for",
            ),
            (
                r#"{"authenticated":true,"audiences":["leno"],"user":{"username":"admin"}}"#,
                "not a service account",
            ),
            (
                r#"{"authenticated":true,"audiences":["leno"],
                    "user":{"username":"system:serviceaccount:shop:a/b"}}"#,
                "cannot be an identity",
            ),
        ];
        for (status, part) in rows {
            let reason = judged(status).unwrap_err();
            assert!(reason.contains(part), "{status}: {reason}");
        }
    }

    /// Regression: the review of a token and the read of a pod had separate time limits, which together exceeded
    /// the time that a proxy waits. So the proxy did not get the reason, and repeated its request before the first
    /// one had ended.
    #[tokio::test(start_paused = true)]
    async fn a_check_of_a_token_ends_before_the_proxy_stops_waiting() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", silent.local_addr().unwrap());
        let client = leno_kube::connect_to(address.parse().unwrap()).unwrap();
        let reviewer = TokenReviewer::new(client, AUDIENCE, TrustDomain::default(), "leno-system");
        let encoded = |text: &str| data_encoding::BASE64URL_NOPAD.encode(text.as_bytes());
        let (head, claims) = (encoded(r#"{"alg":"ES256"}"#), encoded(r#"{"aud":"leno"}"#));
        let token = format!("{head}.{claims}.AAAA");
        let pod = ServedPod { instance: "shop/web-0".parse().unwrap(), uid: "u".to_owned() };
        let begin = Deadline::now();
        let checked = reviewer.authenticate_for(&token, &pod).await;
        assert!(matches!(checked, Err(AuthenticationError::Unavailable(_))), "{checked:?}");
        assert_eq!(begin.elapsed().as_secs(), ANSWER.as_secs());
        let end = begin + ANSWER;
        let identity = Identity::new(TrustDomain::default(), "leno-system", NODE_ACCOUNT).unwrap();
        let proven = ProvenIdentity { identity, instance: None };
        let bearer = TokenBearer { proven, uid: None, node: Some("n1".to_owned()) };
        let late = reviewer.served.check(&bearer, &pod, end).await;
        assert!(matches!(late, Err(AuthenticationError::Unavailable(_))), "{late:?}");
        assert_eq!(begin.elapsed().as_secs(), ANSWER.as_secs(), "no time is left for the pod");
    }
}
