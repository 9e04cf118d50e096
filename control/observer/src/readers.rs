//! Identifies readers, and determines which namespaces they may see, with reviews by the API server.
//!
//! ```text
//!  Authorization: Bearer ─► TokenReview ─► user ─► SubjectAccessReview for all namespaces or each ─► VisibleNamespaces
//! ```
//! A reader may see a namespace if they have the right to `create` `pods/portforward` in it. With that right,
//! `leno stat` and `leno tap` can read the same data from the proxies.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use leno_dashboard::visible_namespaces::{AUDIENCE, VisibleNamespaces};
use leno_kube::api::PostParams;
use leno_kube::{Api, Client};
use tokio::time::timeout;

use crate::metrics::Metrics;

/// How long an answer of the API server is cached. A reader whose right was withdrawn loses access within this
/// time.
const HOLDS: Duration = Duration::from_secs(30);
/// Most readers that are cached. The readers seen most recently are kept.
const MAX_READERS: usize = 256;
/// How long the rejection of a token is cached.
const REJECTED: Duration = Duration::from_secs(5);
/// Most rejected tokens that are cached. The most recent ones are kept.
const MAX_REJECTED: usize = 256;
/// Most reviews that are requested at the same time for one request of a reader. Each is one short request.
const AT_ONCE: usize = 16;
/// Longest wait for all reviews of one request.
const BOUND: Duration = Duration::from_secs(4);
/// Longest token that is reviewed, in bytes.
const MAX_TOKEN: usize = 16 * 1024;
/// The name of the observer's own service account.
const ACCOUNT: &str = "observer";
/// The name that stands for all namespaces.
const ALL: &str = "";

/// Identifies readers by reviews of the API server, and caches the results.
pub(crate) struct Readers {
    tokens: Api<TokenReview>,
    rights: Api<SubjectAccessReview>,
    /// The observer's own user name.
    own: String,
    known: Mutex<HashMap<Key, Reader>>,
    /// Why tokens were rejected, and when.
    rejected: Mutex<HashMap<Key, (String, Instant)>>,
    metrics: Arc<Metrics>,
}

/// The SHA-256 digest of a token.
type Key = [u8; 32];

/// A reader, and the results of reviews.
#[derive(Clone, Debug)]
struct Reader {
    user: UserInfo,
    /// When the API server accepted the token.
    since: Instant,
    /// Whether the reader may see each namespace, and when the API server has answered that.
    rights: BTreeMap<String, (bool, Instant)>,
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReaderRefusal {
    /// There is no token.
    NoToken,
    /// The API server has rejected the token; the text is its reason.
    Bad(String),
    /// The API server did not answer.
    Unavailable(String),
}

impl Readers {
    /// Creates this without any reader. `namespace` is the observer's own.
    pub(crate) fn new(client: Client, namespace: &str, metrics: Arc<Metrics>) -> Self {
        Self {
            tokens: Api::all(client.clone()),
            rights: Api::all(client),
            own: format!("system:serviceaccount:{namespace}:{ACCOUNT}"),
            known: Mutex::default(),
            rejected: Mutex::default(),
            metrics,
        }
    }

    /// Which of these namespaces the reader with this token may see, and from what time on. `namespaces` is only
    /// called once the token was accepted, and returns `None` while the namespaces are not known.
    pub(crate) async fn sight(
        &self,
        token: Option<&str>,
        namespaces: impl FnOnce() -> Option<BTreeMap<String, u64>>,
    ) -> Result<VisibleNamespaces, ReaderRefusal> {
        let found = timeout(BOUND, self.find(token, namespaces)).await.unwrap_or_else(|_late| {
            Err(ReaderRefusal::Unavailable(format!("no answer within {} s", BOUND.as_secs())))
        });
        let count = match &found {
            Ok(_) => &self.metrics.answered,
            Err(ReaderRefusal::NoToken | ReaderRefusal::Bad(_)) => &self.metrics.refused,
            Err(ReaderRefusal::Unavailable(_)) => &self.metrics.unreviewed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    async fn find(
        &self,
        token: Option<&str>,
        namespaces: impl FnOnce() -> Option<BTreeMap<String, u64>>,
    ) -> Result<VisibleNamespaces, ReaderRefusal> {
        let token = token.filter(|token| !token.is_empty()).ok_or(ReaderRefusal::NoToken)?;
        if token.len() > MAX_TOKEN {
            return Err(ReaderRefusal::Bad("the token is too long".to_owned()));
        }
        let key = digest(token);
        let reader = match self.remembered(key) {
            Some(reader) => reader,
            None => {
                if let Some(why) = rejection(&mut lock(&self.rejected), key) {
                    return Err(ReaderRefusal::Bad(why));
                }
                let user = self.review(token).await;
                if let Err(ReaderRefusal::Bad(why)) = &user {
                    reject(&mut lock(&self.rejected), key, why);
                }
                let user = user?;
                let reader = Reader { user, since: Instant::now(), rights: BTreeMap::new() };
                self.remember(key, reader.clone());
                reader
            }
        };
        // A client with a token of the observer's own account can read everything that the observer can.
        if reader.user.username.as_ref() == Some(&self.own) {
            return Ok(VisibleNamespaces::All);
        }
        if self.may_see(key, &reader, [(ALL.to_owned(), 0)].into()).await?.contains_key(ALL) {
            return Ok(VisibleNamespaces::All);
        }
        let namespaces = namespaces().ok_or_else(|| {
            ReaderRefusal::Unavailable("the namespaces have not been listed yet".to_owned())
        })?;
        Ok(VisibleNamespaces::Namespaces(self.may_see(key, &reader, namespaces).await?))
    }

    /// The namespaces among these that the reader may see.
    async fn may_see(
        &self,
        key: Key,
        reader: &Reader,
        namespaces: BTreeMap<String, u64>,
    ) -> Result<BTreeMap<String, u64>, ReaderRefusal> {
        let asked = stream::iter(namespaces).map(async |(namespace, since_ms): (String, u64)| {
            let known = reader.rights.get(&namespace).filter(|(_, at)| at.elapsed() < HOLDS);
            let allowed = match known {
                Some((allowed, _)) => *allowed,
                None => {
                    let allowed = self.allows(&reader.user, &namespace).await?;
                    // Cached at once. If the time for the request is over before all answers have arrived, the
                    // next request uses those that have.
                    self.keep(key, &namespace, allowed);
                    allowed
                }
            };
            Ok::<_, ReaderRefusal>(allowed.then_some((namespace, since_ms)))
        });
        let answers: Vec<_> = asked.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Caches whether a reader may see a namespace.
    fn keep(&self, key: Key, namespace: &str, allowed: bool) {
        if let Some(reader) = lock(&self.known).get_mut(&key) {
            reader.rights.insert(namespace.to_owned(), (allowed, Instant::now()));
        }
    }

    async fn review(&self, token: &str) -> Result<UserInfo, ReaderRefusal> {
        // Tokens that were issued for the observer have its audience. All others are for the API server.
        let own = audiences(token).iter().any(|audience| audience == AUDIENCE);
        let audiences = own.then(|| vec![AUDIENCE.to_owned()]);
        let spec = TokenReviewSpec { token: token.to_owned(), audiences };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = self.tokens.create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| unavailable(&error))?.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            let error = status.error.filter(|error| !error.is_empty());
            let why = error.unwrap_or_else(|| "it gives no reason".to_owned());
            return Err(ReaderRefusal::Bad(format!(
                "the API server does not accept the token: {why}"
            )));
        }
        if own && !status.audiences.iter().flatten().any(|audience| audience == AUDIENCE) {
            return Err(ReaderRefusal::Bad(
                "the API server does not accept the token's audience".to_owned(),
            ));
        }
        Ok(status.user.unwrap_or_default())
    }

    async fn allows(&self, user: &UserInfo, namespace: &str) -> Result<bool, ReaderRefusal> {
        let attributes = ResourceAttributes {
            verb: Some("create".to_owned()),
            resource: Some("pods".to_owned()),
            subresource: Some("portforward".to_owned()),
            namespace: (namespace != ALL).then(|| namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        let user = user.clone();
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                uid: user.uid,
                groups: user.groups,
                extra: user.extra,
                resource_attributes: Some(attributes),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = self.rights.create(&PostParams::default(), &review).await;
        let status = answer.map_err(|error| unavailable(&error))?.status;
        Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }

    fn remembered(&self, key: Key) -> Option<Reader> {
        let mut known = lock(&self.known);
        let reader = known.get_mut(&key).filter(|reader| reader.since.elapsed() < HOLDS)?;
        reader.rights.retain(|_, (_, at)| at.elapsed() < HOLDS);
        Some(reader.clone())
    }

    fn remember(&self, key: Key, reader: Reader) {
        let mut known = lock(&self.known);
        known.retain(|_, reader| reader.since.elapsed() < HOLDS);
        make_room(&mut known, MAX_READERS, |reader| reader.since);
        known.insert(key, reader);
    }
}

/// Why this token was rejected, if that is cached.
fn rejection(rejected: &mut HashMap<Key, (String, Instant)>, key: Key) -> Option<String> {
    rejected.retain(|_, (_, at)| at.elapsed() < REJECTED);
    rejected.get(&key).map(|(why, _)| why.clone())
}

fn reject(rejected: &mut HashMap<Key, (String, Instant)>, key: Key, why: &str) {
    make_room(rejected, MAX_REJECTED, |(_, at)| *at);
    rejected.insert(key, (why.to_owned(), Instant::now()));
}

/// Removes the oldest entry if there are already `most`.
fn make_room<T>(all: &mut HashMap<Key, T>, most: usize, since: impl Fn(&T) -> Instant) {
    if all.len() < most {
        return;
    }
    if let Some(oldest) = all.iter().min_by_key(|(_, one)| since(one)).map(|(key, _)| *key) {
        all.remove(&oldest);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Poisoning is ignored, because entries are inserted and removed as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(error: &leno_kube::Error) -> ReaderRefusal {
    ReaderRefusal::Unavailable(leno_program::chain(error))
}

fn digest(token: &str) -> Key {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The audiences that a token names. The API server verifies them; here they only decide which audience to ask
/// for.
fn audiences(token: &str) -> Vec<String> {
    let claims =
        token.split('.').nth(1).and_then(|part| BASE64URL_NOPAD.decode(part.as_bytes()).ok());
    let claims = claims.and_then(|json| serde_json::from_slice::<serde_json::Value>(&json).ok());
    let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
    match claims.as_ref().map(|claims| &claims["aud"]) {
        Some(serde_json::Value::Array(all)) => all.iter().filter_map(text).collect(),
        Some(one) => text(one).into_iter().collect(),
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_were_not_accepted_are_few() {
        let mut rejected = HashMap::new();
        let key = |nth: usize| digest(&nth.to_string());
        for nth in 0..MAX_REJECTED + 3 {
            assert_eq!(rejection(&mut rejected, key(nth)), None);
            reject(&mut rejected, key(nth), "expired");
        }
        assert_eq!(rejected.len(), MAX_REJECTED);
        let last = key(MAX_REJECTED + 2);
        assert_eq!(rejection(&mut rejected, last).as_deref(), Some("expired"));
        rejected.get_mut(&last).unwrap().1 -= REJECTED;
        assert_eq!(rejection(&mut rejected, last), None, "the API server is asked again");
    }

    #[test]
    fn a_token_names_its_audiences() {
        let token = |claims: &str| format!("x.{}.y", BASE64URL_NOPAD.encode(claims.as_bytes()));
        assert_eq!(audiences(&token(r#"{"aud":["a","leno-observer"]}"#)), ["a", "leno-observer"]);
        assert_eq!(audiences(&token(r#"{"aud":"a"}"#)), ["a"]);
        for other in ["", "opaque", "a.b.c", &token("{}"), &token("7")] {
            assert!(audiences(other).is_empty(), "{other}");
        }
    }
}
