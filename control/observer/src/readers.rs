//! Who reads, and which namespaces they may see: by the API server's word.
//!
//! ```text
//!  Authorization: Bearer ──► TokenReview ──► user ──► SubjectAccessReview for all namespaces, else for each ──► Sight
//! ```
//! A namespace may be seen by who may `create` `pods/portforward` in it. By that right `leno stat` and `leno tap` read
//! the same from the proxies.

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

/// How long an answer of the API server holds: a right that was withdrawn ends within this time.
const HOLDS: Duration = Duration::from_secs(30);
/// Most readers that are remembered, those seen last.
const MAX_READERS: usize = 256;
/// How long it is remembered that a token was not accepted.
const REJECTED: Duration = Duration::from_secs(5);
/// Most such tokens that are remembered, the last ones.
const MAX_REJECTED: usize = 256;
/// Reviews at once for one request; each is one short request.
const AT_ONCE: usize = 16;
/// Longest wait for all reviews of one request.
const BOUND: Duration = Duration::from_secs(4);
/// Longest token that is reviewed, in bytes.
const MAX_TOKEN: usize = 16 * 1024;
/// The service account of the observer itself.
const ACCOUNT: &str = "observer";
/// The namespace that stands for all of them.
const ALL: &str = "";

/// Knows readers by asking the API server.
pub(crate) struct Readers {
    tokens: Api<TokenReview>,
    rights: Api<SubjectAccessReview>,
    /// The user name of the observer.
    own: String,
    known: Mutex<HashMap<Key, Reader>>,
    /// Why tokens were not accepted, and when that was said.
    rejected: Mutex<HashMap<Key, (String, Instant)>>,
    metrics: Arc<Metrics>,
}

/// The SHA-256 digest of a token.
type Key = [u8; 32];

/// A reader, and what was found out.
#[derive(Clone, Debug)]
struct Reader {
    user: UserInfo,
    since: Instant,
    /// Whether the reader may see each namespace, and when that was asked.
    rights: BTreeMap<String, (bool, Instant)>,
}

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReaderRefusal {
    /// There is no token.
    NoToken,
    /// The API server does not accept the token; the text is its reason.
    Bad(String),
    /// The API server did not answer.
    Unavailable(String),
}

impl Readers {
    /// `namespace`: the observer's own.
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

    /// What the reader with this token may see, of these namespaces, with from when on they may be seen; `None` where they are not
    /// known yet. Who has no token that is accepted has none of the work for them.
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
        // Who can have a token of the observer can see all that it sees.
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

    /// Those of these namespaces that the reader may see.
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
                    // At once: a request that ends before it has all answers is asked again with these.
                    self.keep(key, &namespace, allowed);
                    allowed
                }
            };
            Ok::<_, ReaderRefusal>(allowed.then_some((namespace, since_ms)))
        });
        let answers: Vec<_> = asked.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Remembers whether a reader may see a namespace.
    fn keep(&self, key: Key, namespace: &str, allowed: bool) {
        if let Some(reader) = lock(&self.known).get_mut(&key) {
            reader.rights.insert(namespace.to_owned(), (allowed, Instant::now()));
        }
    }

    async fn review(&self, token: &str) -> Result<UserInfo, ReaderRefusal> {
        // Tokens that were made for the observer alone have its audience; all others are of the API server.
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
                "the API server does not know the token's audience".to_owned(),
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

/// Why this token was not accepted, if it was just shown before.
fn rejection(rejected: &mut HashMap<Key, (String, Instant)>, key: Key) -> Option<String> {
    rejected.retain(|_, (_, at)| at.elapsed() < REJECTED);
    rejected.get(&key).map(|(why, _)| why.clone())
}

fn reject(rejected: &mut HashMap<Key, (String, Instant)>, key: Key, why: &str) {
    make_room(rejected, MAX_REJECTED, |(_, at)| *at);
    rejected.insert(key, (why.to_owned(), Instant::now()));
}

/// Removes the oldest one where there are as many as there may be.
fn make_room<T>(all: &mut HashMap<Key, T>, most: usize, since: impl Fn(&T) -> Instant) {
    if all.len() < most {
        return;
    }
    if let Some(oldest) = all.iter().min_by_key(|(_, one)| since(one)).map(|(key, _)| *key) {
        all.remove(&oldest);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole entries only: what a panic left behind is still sound.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unavailable(error: &leno_kube::Error) -> ReaderRefusal {
    ReaderRefusal::Unavailable(leno_program::chain(error))
}

fn digest(token: &str) -> Key {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The audiences that a token names. The API server verifies them; here they only say what to ask it.
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
