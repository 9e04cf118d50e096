//! The key sets that policies name. When a set changes, the policies that name it change as well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::HEXLOWER;
use leno_index::ObjectChange;
use leno_program::Family;
use leno_resources::{
    AuthorizationPolicy, KEY_SET_KEY, KEYS_FROM_ANNOTATION, Kind, Namespace, Object, ObjectKey,
    Origin, OriginError, TokenIssuerSpec, keys_from,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::authorities::WebAuthorities;
use crate::fetch::{FetchError, Fetcher};
use crate::published::PublishedSet;
use crate::store::DocumentStore;

/// The pause between two fetches. It may be long, because most issuers publish keys long before they sign with
/// them.
const REFRESH: Duration = Duration::from_secs(30);
/// The shortest pause between two fetches of a URL. Clients choose the keys that their tokens name, and must not
/// be able to cause frequent fetches.
const LEAST_PAUSE: Duration = Duration::from_secs(5);
/// The first wait after a failed fetch. It doubles up to [`REFRESH`].
const RETRY: Duration = Duration::from_secs(2);
/// Most URLs that are fetched. Each tenant can name other URLs in policies.
const MAX_URLS: usize = 256;
/// Most URLs that are fetched for the policies of one namespace, so that one tenant cannot use up all slots.
const MAX_URLS_OF_NAMESPACE: usize = 32;
/// Most results of fetches that wait in the channel.
const RESULTS: usize = 16;

/// The result of fetching a URL.
type FetchedSet = (String, Result<PublishedSet, FetchError>);

/// The key sets that authorization policies name by URL, by `ConfigMap` or by `Secret`.
pub struct KeySets {
    /// The namespace of the control plane. Its annotation permits origins.
    namespace: String,
    fetcher: Fetcher,
    /// The pause between two fetches.
    refresh: Duration,
    store: Option<DocumentStore>,
    /// The policies that name a key set, as they were written.
    policies: BTreeMap<ObjectKey, AuthorizationPolicy>,
    /// The sets in `ConfigMap`s and `Secret`s.
    objects: BTreeMap<ObjectKey, PublishedSet>,
    followed: BTreeMap<String, FollowedSet>,
    /// Whether the first changes, which contain all policies, were applied.
    is_filled: bool,
    /// How many permitted URLs are not fetched because there are too many.
    left_out: usize,
    counts: Arc<Counts>,
    results: (mpsc::Sender<FetchedSet>, mpsc::Receiver<FetchedSet>),
}

/// A URL that policies name.
struct FollowedSet {
    /// The last valid set.
    set: Option<PublishedSet>,
    /// Whether the last fetch failed, or the URL may not be fetched.
    is_failing: bool,
    /// Whether the last fetch found the set, so that it may be stored.
    is_confirmed: bool,
    /// The task that fetches the set; `None` if its origin is not permitted or there are too many URLs.
    task: Option<AbortHandle>,
    /// Makes the task fetch the set sooner.
    early: Arc<Notify>,
}

impl FollowedSet {
    fn end(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// Counts key sets by their state.
#[derive(Debug, Default)]
struct Counts {
    current: AtomicUsize,
    stale: AtomicUsize,
    missing: AtomicUsize,
    /// How many keys are not used because their private part was published with them.
    left_out: AtomicUsize,
    /// How many times a set was fetched early because a token named a key that the set does not have.
    refetches: AtomicU64,
}

impl KeySets {
    /// Creates this without any sets. `namespace` is the control plane's; its annotation permits origins. `store`
    /// keeps the last valid sets for the next start. `authorities` verify https servers.
    #[must_use]
    pub fn new(
        namespace: &str,
        store: Option<DocumentStore>,
        authorities: Arc<WebAuthorities>,
    ) -> Self {
        Self {
            namespace: namespace.to_owned(),
            fetcher: Fetcher::new(Vec::new(), authorities),
            refresh: REFRESH,
            store,
            policies: BTreeMap::new(),
            objects: BTreeMap::new(),
            followed: BTreeMap::new(),
            is_filled: false,
            left_out: 0,
            counts: Arc::default(),
            results: mpsc::channel(RESULTS),
        }
    }

    /// Whether a set may be stored under this name, which is the SHA-256 of a URL.
    #[must_use]
    pub fn is_document(name: &str) -> bool {
        HEXLOWER.decode(name.as_bytes()).is_ok_and(|hash| hash.len() == SHA256.output_len())
    }

    /// Returns a function that appends the metrics.
    pub fn render(&self) -> impl Fn(&mut String) + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move |text| counts.render(text)
    }

    /// Writes the keys into the policies among `changes` that name a URL, a `ConfigMap` or a `Secret`, and begins
    /// to fetch new URLs. A set that was not fetched yet has no keys. If the permitted origins or the keys in an
    /// object change, the affected policies are added to `changes`.
    pub fn fill(&mut self, changes: &mut Vec<ObjectChange>) {
        let (mut permits_others, mut names_others) = (false, false);
        let mut replaced = BTreeSet::new();
        for change in &*changes {
            let (key, policy) = match change {
                ObjectChange::Upsert(object @ Object::ConfigMap(map)) => {
                    let text = map.data.as_ref().and_then(|data| data.get(KEY_SET_KEY));
                    replaced.extend(self.replace(object.key(), text.cloned()));
                    continue;
                }
                ObjectChange::Upsert(object @ Object::Secret(secret)) => {
                    let bytes = secret.data.as_ref().and_then(|data| data.get(KEY_SET_KEY));
                    let text = bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned());
                    replaced.extend(self.replace(object.key(), text));
                    continue;
                }
                ObjectChange::Delete(key) if matches!(key.kind, Kind::ConfigMap | Kind::Secret) => {
                    replaced.extend(self.replace(key.clone(), None));
                    continue;
                }
                ObjectChange::Upsert(Object::Namespace(namespace)) => {
                    permits_others |= self.permit(namespace);
                    continue;
                }
                ObjectChange::Upsert(object @ Object::AuthorizationPolicy(policy)) => {
                    (object.key(), Some(&**policy).filter(|policy| names_keys(policy)))
                }
                ObjectChange::Delete(key) if key.kind == Kind::Namespace => {
                    if key.name == self.namespace {
                        permits_others |= self.fetcher.permit(Vec::new());
                    }
                    continue;
                }
                ObjectChange::Delete(key) if key.kind == Kind::AuthorizationPolicy => {
                    (key.clone(), None)
                }
                ObjectChange::Delete(_) | ObjectChange::Upsert(_) => continue,
            };
            names_others |= match policy {
                Some(policy) => {
                    self.policies.insert(key, policy.clone());
                    true
                }
                None => self.policies.remove(&key).is_some(),
            };
        }
        if permits_others {
            // All fetches end here. Those that are still permitted begin again at once, so that a set whose last fetch
            // failed is fetched without further delay.
            self.followed.values_mut().for_each(FollowedSet::end);
        }
        if permits_others || names_others {
            self.follow();
        }
        // The first changes contain all objects, except those of kinds that the API server cannot list yet.
        // Because of these, sets that replicas share are not removed at once.
        if let (false, Some(store)) = (std::mem::replace(&mut self.is_filled, true), &self.store) {
            let kept: BTreeSet<String> = self.followed.keys().map(|url| document(url)).collect();
            store.retain(|name| kept.contains(name));
        }
        let is_other = |policy: &&AuthorizationPolicy| {
            permits_others || key_objects(policy).any(|key| replaced.contains(&key))
        };
        let others = self.policies.values().filter(is_other).cloned();
        changes.extend(
            others.map(|one| ObjectChange::Upsert(Object::AuthorizationPolicy(Box::new(one)))),
        );
        for change in changes {
            if let ObjectChange::Upsert(Object::AuthorizationPolicy(policy)) = change {
                self.complete(policy);
            }
        }
    }

    /// Replaces the set that an object contains. Returns the object's key if the set has changed.
    fn replace(&mut self, key: ObjectKey, text: Option<String>) -> Option<ObjectKey> {
        let set = text.and_then(|text| match PublishedSet::read(text) {
            Ok(set) => Some(set),
            Err(error) => {
                // The error is not logged for a Secret, because it could contain other secrets by mistake.
                let error = (key.kind != Kind::Secret).then_some(error);
                tracing::warn!(object = %key, error, "its {KEY_SET_KEY} has no keys of tokens");
                None
            }
        });
        let before = match set {
            Some(set) => self.objects.insert(key.clone(), set),
            None => self.objects.remove(&key),
        };
        let now = self.objects.get(&key);
        if before.as_ref() == now {
            return None;
        }
        now.into_iter().for_each(|set| set.report(&key));
        self.count();
        Some(key)
    }

    /// Reads the permitted origins from the control plane's namespace. Returns whether they changed.
    fn permit(&self, namespace: &Namespace) -> bool {
        if namespace.metadata.name.as_deref() != Some(&self.namespace) {
            return false;
        }
        let annotations = namespace.metadata.annotations.as_ref();
        let value = annotations.and_then(|all| all.get(KEYS_FROM_ANNOTATION));
        let (mut origins, mut invalid): (Vec<Origin>, Vec<OriginError>) = (Vec::new(), Vec::new());
        for one in value.into_iter().flat_map(|value| keys_from(value)) {
            match one.parse() {
                Ok(origin) => origins.push(origin),
                Err(error) => invalid.push(error),
            }
        }
        let differs = self.fetcher.permit(origins);
        if differs {
            for error in invalid {
                tracing::warn!(%error, "an entry of {KEYS_FROM_ANNOTATION} is ignored");
            }
        }
        differs
    }

    /// Fetches the sets of these issuers early, because tokens name keys that the sets do not have. Only sets at
    /// URLs are fetched. A set is fetched at most once in [`LEAST_PAUSE`].
    pub fn refetch(&self, issuers: &BTreeSet<String>) {
        let of_policies = self.policies.values().flat_map(|policy| &policy.spec.tokens);
        let named = of_policies.filter(|one| issuers.contains(&one.issuer));
        let urls: BTreeSet<&str> = named.filter_map(|one| one.jwks_url.as_deref()).collect();
        let known = urls.into_iter().filter_map(|url| self.followed.get_key_value(url));
        for (url, followed) in known {
            if followed.task.is_some() {
                self.counts.refetches.fetch_add(1, Ordering::Relaxed);
                tracing::info!(
                    url,
                    "tokens name keys that are not in this set: it is fetched early"
                );
                followed.early.notify_one();
            }
        }
    }

    /// Waits until a set changes. Returns the policies that name it, with the new keys. Cancel safe: no change is
    /// lost if the future is dropped.
    pub async fn refreshed(&mut self) -> Vec<ObjectChange> {
        loop {
            // The channel never closes, because `self` holds a sender.
            let Some((url, result)) = self.results.1.recv().await else { continue };
            let Some(known) = self.followed.get_mut(&url) else { continue };
            let set = match result {
                Ok(set) => set,
                Err(error) => {
                    if std::mem::replace(&mut known.is_confirmed, false) {
                        self.store.iter().for_each(|store| store.doubt(&document(&url)));
                    }
                    if !std::mem::replace(&mut known.is_failing, true) {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        let cause = cause.unwrap_or_default();
                        let kept = known.set.is_some();
                        tracing::warn!(url, %error, cause, kept, "cannot fetch keys of tokens");
                    }
                    self.count();
                    continue;
                }
            };
            known.is_failing = false;
            let differs = known.set.as_ref() != Some(&set);
            let is_confirmed = std::mem::replace(&mut known.is_confirmed, true);
            if (differs || !is_confirmed)
                && let Some(store) = &self.store
            {
                store.write(&document(&url), set.text());
            }
            if differs {
                set.report(&url);
                known.set = Some(set);
                tracing::info!(url, "the keys of tokens have changed");
            }
            self.count();
            if differs {
                return self.with(&url);
            }
        }
    }

    /// The policies that name this URL, with the keys of its set.
    fn with(&self, url: &str) -> Vec<ObjectChange> {
        let naming = self.policies.values().filter(|policy| urls(policy).any(|one| one == url));
        let change = |policy: &AuthorizationPolicy| {
            let mut policy = policy.clone();
            self.complete(&mut policy);
            ObjectChange::Upsert(Object::AuthorizationPolicy(Box::new(policy)))
        };
        naming.map(change).collect()
    }

    fn complete(&self, policy: &mut AuthorizationPolicy) {
        let namespace = policy.metadata.namespace.as_str();
        for issuer in &mut policy.spec.tokens {
            if let Some(object) = object(namespace, issuer) {
                let set = self.objects.get(&object).map(|set| set.text().to_owned());
                if set.is_none() {
                    let policy = &policy.metadata.name;
                    tracing::warn!(
                        namespace,
                        policy,
                        %object,
                        "there are no keys of tokens: there is no such object with a {KEY_SET_KEY}"
                    );
                }
                issuer.jwks = set.unwrap_or_default();
            } else if let Some(url) = &issuer.jwks_url {
                let known = self.followed.get(url).filter(|_| self.fetcher.permits(url).is_ok());
                let set = known.and_then(|one| one.set.as_ref());
                issuer.jwks = set.map(|set| set.text().to_owned()).unwrap_or_default();
            }
        }
    }

    /// Follows exactly the URLs that policies name, and fetches those that are permitted.
    fn follow(&mut self) {
        let named: BTreeSet<&str> = self.policies.values().flat_map(urls).collect();
        self.followed.retain(|url, one| {
            let stays = named.contains(url.as_str());
            if !stays {
                one.end();
                self.store.iter().for_each(|store| store.forget(&document(url)));
            }
            stays
        });
        for url in named {
            if !self.followed.contains_key(url) {
                let one = FollowedSet {
                    set: self.store.as_ref().and_then(|store| stored(store, url)),
                    is_failing: false,
                    is_confirmed: false,
                    task: None,
                    early: Arc::default(),
                };
                self.followed.insert(url.to_owned(), one);
            }
        }
        self.begin_fetches();
        self.count();
    }

    /// Begins to fetch the URLs that are permitted and within the bounds, and ends the fetches of all others.
    fn begin_fetches(&mut self) {
        let wanted = self.wanted();
        for (url, one) in &mut self.followed {
            if !wanted.contains(url) {
                one.end();
                if std::mem::replace(&mut one.is_confirmed, false) {
                    self.store.iter().for_each(|store| store.doubt(&document(url)));
                }
            }
        }
        let fetched = self.followed.values().filter(|one| one.task.is_some());
        let mut places = MAX_URLS.saturating_sub(fetched.count());
        let mut left_out = 0;
        for (url, one) in &mut self.followed {
            if let Err(error) = self.fetcher.permits(url) {
                if !std::mem::replace(&mut one.is_failing, true) {
                    let kept = one.set.is_some();
                    tracing::warn!(url, %error, kept, "cannot fetch keys of tokens");
                }
            } else if one.task.is_none() && places > 0 && wanted.contains(url) {
                places -= 1;
                one.task =
                    Some(begin((&self.fetcher, self.refresh), (url, &one.early), &self.results.0));
            } else if one.task.is_none() {
                left_out += 1;
            }
        }
        if std::mem::replace(&mut self.left_out, left_out) < left_out {
            tracing::error!(
                left_out,
                "policies name more URLs of keys than can be fetched: {MAX_URLS}, and \
                 {MAX_URLS_OF_NAMESPACE} of one namespace"
            );
        }
    }

    /// The permitted URLs, at most [`MAX_URLS_OF_NAMESPACE`] of each namespace.
    fn wanted(&self) -> BTreeSet<String> {
        let mut of_namespaces: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (key, policy) in &self.policies {
            let own = of_namespaces.entry(&key.namespace).or_default();
            for url in urls(policy).filter(|url| self.fetcher.permits(url).is_ok()) {
                if own.len() < MAX_URLS_OF_NAMESPACE {
                    own.insert(url);
                }
            }
        }
        of_namespaces.into_values().flatten().map(str::to_owned).collect()
    }

    fn count(&self) {
        let number = |is: &dyn Fn(&FollowedSet) -> bool| {
            self.followed.values().filter(|one| is(one)).count()
        };
        let current = number(&|one| one.set.is_some() && !one.is_failing);
        let missing = number(&|one| one.set.is_none());
        let fetched = self.followed.values().filter_map(|one| one.set.as_ref());
        let left_out = fetched.chain(self.objects.values()).map(PublishedSet::left_out).sum();
        self.counts.left_out.store(left_out, Ordering::Relaxed);
        self.counts.current.store(current, Ordering::Relaxed);
        self.counts.missing.store(missing, Ordering::Relaxed);
        self.counts.stale.store(self.followed.len() - current - missing, Ordering::Relaxed);
    }
}

impl Drop for KeySets {
    fn drop(&mut self) {
        self.followed.values_mut().for_each(FollowedSet::end);
    }
}

impl Counts {
    fn render(&self, text: &mut String) {
        let help = "URLs of keys of tokens that policies name: current, stale if the last fetch failed, missing if none has \
                    succeeded.";
        let mut family = Family::gauge(text, "leno_control_key_sets", help);
        let all = [("current", &self.current), ("stale", &self.stale), ("missing", &self.missing)];
        for (state, count) in all {
            family.sample(&[("state", state)], count.load(Ordering::Relaxed));
        }
        let help = "Keys of these sets, and of those in ConfigMaps and Secrets, that are not used: what signs tokens is published \
                    with them.";
        Family::gauge(text, "leno_control_keys_left_out", help)
            .sample(&[], self.left_out.load(Ordering::Relaxed));
        let help = "Times that proxies reported tokens with unknown keys, for which a URL was to be fetched early.";
        Family::counter(text, "leno_control_key_refetches_total", help)
            .sample(&[], self.refetches.load(Ordering::Relaxed));
    }
}

/// Whether a policy names keys that are not written in the policy itself.
fn names_keys(policy: &AuthorizationPolicy) -> bool {
    urls(policy).next().is_some() || key_objects(policy).next().is_some()
}

/// The `ConfigMap`s and `Secret`s with the keys of a policy's issuers.
pub fn key_objects(policy: &AuthorizationPolicy) -> impl Iterator<Item = ObjectKey> {
    let namespace = &policy.metadata.namespace;
    policy.spec.tokens.iter().filter_map(move |issuer| object(namespace, issuer))
}

/// The object with the keys of an issuer, if the policy names one.
fn object(namespace: &str, issuer: &TokenIssuerSpec) -> Option<ObjectKey> {
    let config_map = issuer.jwks_config_map.as_ref().map(|name| (Kind::ConfigMap, name));
    let secret = issuer.jwks_secret.as_ref().map(|name| (Kind::Secret, name));
    let (kind, name) = config_map.or(secret)?;
    Some(ObjectKey { kind, namespace: namespace.to_owned(), name: name.clone() })
}

/// The name under which the set at a URL is stored.
fn document(url: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, url.as_bytes()).as_ref())
}

/// The stored set of a URL, unless it contains no usable keys.
fn stored(store: &DocumentStore, url: &str) -> Option<PublishedSet> {
    match PublishedSet::read(store.read(&document(url))?) {
        Ok(set) => {
            set.report(&url);
            Some(set)
        }
        Err(error) => {
            tracing::warn!(
                url,
                error,
                "what is stored of it holds no keys of tokens, and is left out"
            );
            None
        }
    }
}

fn urls(policy: &AuthorizationPolicy) -> impl Iterator<Item = &str> {
    policy.spec.tokens.iter().filter_map(|issuer| issuer.jwks_url.as_deref())
}

fn begin(
    (fetcher, refresh): (&Fetcher, Duration),
    (url, early): (&str, &Arc<Notify>),
    results: &mpsc::Sender<FetchedSet>,
) -> AbortHandle {
    let of = (url.to_owned(), Arc::clone(early));
    tokio::spawn(fetch((fetcher.clone(), refresh), of, results.clone())).abort_handle()
}

/// Fetches a set repeatedly, until the task is aborted.
async fn fetch(
    (fetcher, refresh): (Fetcher, Duration),
    (url, early): (String, Arc<Notify>),
    results: mpsc::Sender<FetchedSet>,
) {
    let mut wait = RETRY;
    loop {
        let result = fetcher.fetch(&url).await;
        let least = Instant::now() + LEAST_PAUSE;
        let pause = match &result {
            Ok(_) => {
                wait = RETRY;
                refresh
            }
            Err(_) => {
                let pause = wait;
                wait = refresh.min(wait * 2);
                pause
            }
        };
        if results.send((url.clone(), result)).await.is_err() {
            return;
        }
        let due = Instant::now() + pause;
        tokio::select! {
            () = sleep_until(due) => {}
            () = early.notified() => sleep_until(least.min(due)).await,
        }
    }
}

#[cfg(test)]
mod tests;
