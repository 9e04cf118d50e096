//! The sets that policies name, and what becomes of policies when a set changes.

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

/// How long after a fetch the next one is: issuers publish keys long before they sign with them.
const REFRESH: Duration = Duration::from_secs(30);
/// The shortest time from one fetch of a URL to the next: clients decide how often tokens name unknown keys.
const LEAST_PAUSE: Duration = Duration::from_secs(5);
/// The first wait after a fetch that failed; it doubles up to [`REFRESH`].
const RETRY: Duration = Duration::from_secs(2);
/// Most URLs that are fetched. Each tenant can write policies with other ones.
const MAX_URLS: usize = 256;
/// Most URLs that are fetched for the policies of one namespace, so that no tenant takes the places of others.
const MAX_URLS_OF_NAMESPACE: usize = 32;
/// Most results of fetches that wait to be taken in.
const RESULTS: usize = 16;

/// What a fetch of a URL has found.
type FetchedSet = (String, Result<PublishedSet, FetchError>);

/// The sets of keys that authorization policies name by URL, by `ConfigMap` or by `Secret`.
pub struct KeySets {
    /// The namespace of the control plane, which says what is permitted.
    namespace: String,
    fetcher: Fetcher,
    /// How long after a fetch the next one is.
    refresh: Duration,
    store: Option<DocumentStore>,
    /// The policies that name one of these, as they were read.
    policies: BTreeMap<ObjectKey, AuthorizationPolicy>,
    /// The sets in `ConfigMap`s and `Secret`s.
    objects: BTreeMap<ObjectKey, PublishedSet>,
    followed: BTreeMap<String, FollowedSet>,
    /// Whether all policies were there once.
    is_filled: bool,
    /// How many permitted URLs are not fetched, for want of places.
    left_out: usize,
    counts: Arc<Counts>,
    results: (mpsc::Sender<FetchedSet>, mpsc::Receiver<FetchedSet>),
}

/// A URL that policies name.
struct FollowedSet {
    /// The last good set.
    set: Option<PublishedSet>,
    /// Whether the last fetch failed, or none is permitted.
    is_failing: bool,
    /// Whether the last fetch has found the set, so that it is stored.
    is_confirmed: bool,
    /// What fetches it; `None` where its origin is not permitted, or no place is left.
    task: Option<AbortHandle>,
    /// Has the task fetch it before the next time that it would.
    early: Arc<Notify>,
}

impl FollowedSet {
    fn end(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// How many sets there are.
#[derive(Debug, Default)]
struct Counts {
    current: AtomicUsize,
    stale: AtomicUsize,
    missing: AtomicUsize,
    /// Keys that are not used, since what signs tokens is published with them.
    left_out: AtomicUsize,
    /// Times that a set was asked for since a token named a key that it does not have.
    refetches: AtomicU64,
}

impl KeySets {
    /// No sets yet. `namespace`: that of the control plane, whose annotation permits origins. `store`: where the last
    /// good sets are kept for the next start. `authorities`: those by which servers of https are authenticated.
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

    /// Whether a set is stored under this name: the SHA-256 of its URL.
    #[must_use]
    pub fn is_document(name: &str) -> bool {
        HEXLOWER.decode(name.as_bytes()).is_ok_and(|hash| hash.len() == SHA256.output_len())
    }

    /// What appends the metrics.
    pub fn render(&self) -> impl Fn(&mut String) + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move |text| counts.render(text)
    }

    /// Writes the keys into policies that name a URL, a `ConfigMap` or a `Secret`, and begins to fetch what is new. A set that
    /// has not been fetched yet has no keys. Where other origins are permitted now, or an object has other keys, the
    /// policies that this is for are added.
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
            // What has failed is fetched again at once.
            self.followed.values_mut().for_each(FollowedSet::end);
        }
        if permits_others || names_others {
            self.follow();
        }
        // The first changes are all objects; in a cluster without those of kinds that cannot be read yet, so that what replicas
        // share is not removed at once.
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

    /// Takes the set of an object, if it has one. Returns the key of the object if it had another one.
    fn replace(&mut self, key: ObjectKey, text: Option<String>) -> Option<ObjectKey> {
        let set = text.and_then(|text| match PublishedSet::read(text) {
            Ok(set) => Some(set),
            Err(error) => {
                // What is in a Secret by mistake is for no log.
                let error = (key.kind != Kind::Secret).then_some(error);
                tracing::warn!(object = %key, error, "its {KEY_SET_KEY} holds no keys of tokens");
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

    /// Takes the origins of the control plane's namespace. Returns whether they are other ones.
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
                tracing::warn!(%error, "left out of {KEYS_FROM_ANNOTATION}");
            }
        }
        differs
    }

    /// Fetches the sets of these issuers soon, where a URL names them: tokens name keys that the sets do not have. A set is
    /// fetched once in [`LEAST_PAUSE`] at most.
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

    /// Waits until a set is another one; the policies that name it, with the new keys. Cancelling it loses nothing.
    pub async fn refreshed(&mut self) -> Vec<ObjectChange> {
        loop {
            // One sender is here, so that there is always a next one.
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
                        tracing::warn!(url, %error, cause, kept, "keys of tokens cannot be fetched");
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
                tracing::info!(url, "other keys of tokens are in effect");
            }
            self.count();
            if differs {
                return self.with(&url);
            }
        }
    }

    /// The policies that name a URL, with its keys.
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

    /// Begins to fetch what is permitted and has a place, and ends the fetches of what is not permitted.
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
                    tracing::warn!(url, %error, kept, "keys of tokens cannot be fetched");
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
                "policies name more URLs of keys than are fetched: {MAX_URLS}, and {MAX_URLS_OF_NAMESPACE} of one \
                 namespace"
            );
        }
    }

    /// The permitted URLs, of each namespace as many as have places.
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

/// Whether a policy names keys that are elsewhere.
fn names_keys(policy: &AuthorizationPolicy) -> bool {
    urls(policy).next().is_some() || key_objects(policy).next().is_some()
}

/// The objects with the keys of a policy's issuers: `ConfigMap`s and `Secret`s.
pub fn key_objects(policy: &AuthorizationPolicy) -> impl Iterator<Item = ObjectKey> {
    let namespace = &policy.metadata.namespace;
    policy.spec.tokens.iter().filter_map(move |issuer| object(namespace, issuer))
}

/// The object with the keys of an issuer.
fn object(namespace: &str, issuer: &TokenIssuerSpec) -> Option<ObjectKey> {
    let config_map = issuer.jwks_config_map.as_ref().map(|name| (Kind::ConfigMap, name));
    let secret = issuer.jwks_secret.as_ref().map(|name| (Kind::Secret, name));
    let (kind, name) = config_map.or(secret)?;
    Some(ObjectKey { kind, namespace: namespace.to_owned(), name: name.clone() })
}

/// The name under which the set of a URL is stored.
fn document(url: &str) -> String {
    HEXLOWER.encode(digest(&SHA256, url.as_bytes()).as_ref())
}

/// The set of a URL that was stored last, unless it holds no keys of tokens.
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

/// Fetches a set again and again, until the task is aborted.
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
