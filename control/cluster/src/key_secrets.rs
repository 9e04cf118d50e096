//! Follows Secrets with keys of tokens. Each is named by a policy of the same namespace. By default the control
//! plane may read none of them; a Role in the namespace must grant it the right to read this one Secret.
//!
//! ```text
//!  policies ──► note ──► a watch of each Secret ──► its keys ──► changes, before the first policies and whenever they change
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use leno_index::ObjectChange;
use leno_keys::key_objects;
use leno_kube::{Api, Client, Event, WatchError, WatchReport, WatchSelection, is_refused, watch};
use leno_program::Family;
use leno_resources::{AuthorizationPolicy, Kind, Object, ObjectKey, only_keys};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

/// Most Secrets that are followed. Each needs a separate watch.
const MAX_SECRETS: usize = 256;
/// Most Secrets of one namespace that are followed, so that one tenant cannot use up all slots.
const MAX_OF_NAMESPACE: usize = 32;
/// How long the first policies wait for the Secrets that they name. Proxies still have the keys of the control
/// plane's last run, which they must not lose even for a moment.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// The longest wait between requests for a Secret. Each Secret that the control plane may not read costs one
/// refused request in this time.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// How long the keys of a Secret stay valid after the API server has begun to refuse it. An API server that is
/// starting may refuse requests that it otherwise permits.
const REFUSED: Duration = Duration::from_mins(1);
/// Most answers of watches that wait in the channel.
const ANSWERS: usize = 64;

/// Follows the Secrets that policies name.
pub struct KeySecrets {
    client: Client,
    /// The Secrets that each policy names.
    policies: BTreeMap<ObjectKey, BTreeSet<ObjectKey>>,
    followed: BTreeMap<ObjectKey, FollowedSecret>,
    counts: Arc<Counts>,
    /// The channel in which the tasks of the watches report.
    answers: (mpsc::Sender<SecretAnswer>, mpsc::Receiver<SecretAnswer>),
}

struct FollowedSecret {
    task: AbortHandle,
    state: SecretState,
    /// Since when the API server refuses to show the Secret.
    refused: Option<Instant>,
    /// Whether the Secret's keys were passed on and are still valid.
    is_held: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SecretState {
    /// The API server has not answered yet.
    Unknown,
    /// The API server answers, whether the Secret exists or not.
    Followed,
    /// The Secret cannot be read.
    Unread,
}

#[derive(Default)]
struct Counts {
    followed: AtomicUsize,
    unread: AtomicUsize,
    left_out: AtomicUsize,
}

struct SecretAnswer {
    secret: ObjectKey,
    found: SecretEvent,
}

/// What a watch found.
enum SecretEvent {
    /// The Secret with nothing but its keys, or that the Secret does not exist.
    Change(Box<ObjectChange>),
    /// Nothing changed.
    Same,
    /// The Secret cannot be read; `is_refused` is whether the control plane has no right to read it.
    Failure { is_refused: bool },
}

impl KeySecrets {
    /// Creates this without any Secret to follow.
    #[must_use]
    pub fn new(client: Client) -> Self {
        let (policies, followed) = (BTreeMap::new(), BTreeMap::new());
        Self { client, policies, followed, counts: Arc::default(), answers: mpsc::channel(ANSWERS) }
    }

    /// Returns a function that appends the metrics.
    pub fn render(&self) -> impl Fn(&mut String) + Send + Sync + 'static {
        let counts = Arc::clone(&self.counts);
        move |text| counts.render(text)
    }

    /// Follows the Secrets that policies in `changes` name, and stops following those that no policy names any
    /// more. The keys of the latter are no longer valid: the returned changes remove them, and must be applied
    /// together with `changes`.
    #[must_use]
    pub fn note(&mut self, changes: &[ObjectChange]) -> Vec<ObjectChange> {
        let mut differs = false;
        for change in changes {
            let (key, secrets) = match change {
                ObjectChange::Upsert(object @ Object::AuthorizationPolicy(policy)) => {
                    (object.key(), secrets(policy))
                }
                ObjectChange::Delete(key) if key.kind == Kind::AuthorizationPolicy => {
                    (key.clone(), BTreeSet::new())
                }
                ObjectChange::Upsert(_) | ObjectChange::Delete(_) => continue,
            };
            let before = match secrets.is_empty() {
                true => self.policies.remove(&key),
                false => self.policies.insert(key, secrets.clone()),
            };
            differs |= before.unwrap_or_default() != secrets;
        }
        if differs { self.follow() } else { Vec::new() }
    }

    /// Waits until the API server has answered for each Secret, but at most for [`FIRST_ANSWER`]. Returns the
    /// Secrets that exist.
    pub async fn first(&mut self) -> Vec<ObjectChange> {
        let latest = Instant::now() + FIRST_ANSWER;
        let mut changes = Vec::new();
        while self.followed.values().any(|one| one.state == SecretState::Unknown) {
            let Ok(Some(answer)) = timeout_at(latest, self.answers.1.recv()).await else {
                tracing::warn!("not all Secrets with keys of tokens were read before the policies");
                break;
            };
            changes.extend(self.take(answer));
        }
        changes
    }

    /// Waits until a Secret changes. Cancel safe: no change is lost if the future is dropped.
    pub async fn changed(&mut self) -> Vec<ObjectChange> {
        loop {
            // The channel never closes, because `self` holds a sender.
            let Some(answer) = self.answers.1.recv().await else { continue };
            if let Some(change) = self.take(answer) {
                return vec![change];
            }
        }
    }

    fn take(&mut self, SecretAnswer { secret, found }: SecretAnswer) -> Option<ObjectChange> {
        // The answer may be about a Secret that no policy names any more.
        let one = self.followed.get_mut(&secret)?;
        let change = match found {
            SecretEvent::Failure { is_refused } => {
                one.state = SecretState::Unread;
                // If the API server does not answer at all, the last keys stay valid without a time limit.
                one.refused = is_refused.then(|| one.refused.unwrap_or_else(Instant::now));
                let has_ended = one.refused.is_some_and(|since| since.elapsed() >= REFUSED);
                has_ended.then_some(ObjectChange::Delete(secret))
            }
            found => {
                (one.state, one.refused) = (SecretState::Followed, None);
                match found {
                    SecretEvent::Change(change) => Some(*change),
                    SecretEvent::Same | SecretEvent::Failure { .. } => None,
                }
            }
        };
        // That the keys are no longer valid is reported only once.
        let was_held = one.is_held;
        let change = change.filter(|change| was_held || matches!(change, ObjectChange::Upsert(_)));
        if let Some(change) = &change {
            one.is_held = matches!(change, ObjectChange::Upsert(_));
        }
        self.count();
        change
    }

    /// Follows exactly the Secrets that policies name, as far as there are free slots. Returns the changes that
    /// remove the keys of other Secrets.
    fn follow(&mut self) -> Vec<ObjectChange> {
        let named: BTreeSet<&ObjectKey> = self.policies.values().flatten().collect();
        let wanted = with_places(&named);
        let left_out = named.len() - wanted.len();
        if self.counts.left_out.swap(left_out, Ordering::Relaxed) < left_out {
            tracing::error!(
                left_out,
                "policies name more Secrets of keys than can be watched: {MAX_SECRETS}, and \
                 {MAX_OF_NAMESPACE} of one namespace"
            );
        }
        let gone = self.followed.extract_if(.., |secret, _| !wanted.contains(secret));
        let ended = gone.filter_map(|(secret, one)| {
            one.task.abort();
            one.is_held.then_some(ObjectChange::Delete(secret))
        });
        let ended = ended.collect();
        for secret in wanted {
            let (client, answers) = (self.client.clone(), self.answers.0.clone());
            self.followed.entry(secret).or_insert_with_key(|secret| {
                let task = tokio::spawn(follow(client, secret.clone(), answers)).abort_handle();
                FollowedSecret { task, state: SecretState::Unknown, refused: None, is_held: false }
            });
        }
        self.count();
        ended
    }

    fn count(&self) {
        let number = |state| {
            self.followed.values().filter(|one: &&FollowedSecret| one.state == state).count()
        };
        self.counts.followed.store(number(SecretState::Followed), Ordering::Relaxed);
        self.counts.unread.store(number(SecretState::Unread), Ordering::Relaxed);
    }
}

impl Drop for KeySecrets {
    fn drop(&mut self) {
        self.followed.values().for_each(|one| one.task.abort());
    }
}

impl Counts {
    fn render(&self, text: &mut String) {
        let help = "Secrets of keys of tokens that policies name: followed, unread where the API server does not let the \
                    control plane read them, left out for want of places.";
        let mut family = Family::gauge(text, "leno_control_key_secrets", help);
        let states =
            [("followed", &self.followed), ("unread", &self.unread), ("left-out", &self.left_out)];
        for (state, count) in states {
            family.sample(&[("state", state)], count.load(Ordering::Relaxed));
        }
    }
}

/// The Secrets that are followed if policies name more than the bounds permit. The first Secret of each namespace comes
/// before the second Secret of any.
fn with_places(named: &BTreeSet<&ObjectKey>) -> BTreeSet<ObjectKey> {
    let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all: Vec<(usize, &ObjectKey)> = Vec::new();
    for secret in named {
        let own = taken.entry(&secret.namespace).or_default();
        all.push((*own, secret));
        *own += 1;
    }
    all.sort_unstable();
    let own = all.into_iter().filter(|(nth, _)| *nth < MAX_OF_NAMESPACE);
    own.take(MAX_SECRETS).map(|(_, secret)| secret.clone()).collect()
}

/// Watches one Secret until the task is aborted.
async fn follow(client: Client, secret: ObjectKey, answers: mpsc::Sender<SecretAnswer>) {
    let secrets: Api<Secret> = Api::namespaced(client, &secret.namespace);
    let selection =
        WatchSelection { longest_wait: LONGEST_WAIT, ..WatchSelection::named(&secret.name) };
    let mut reports = watch(secrets, selection).boxed();
    let mut said = String::new();
    // Whether the list that is being read contains the Secret.
    let mut is_listed = false;
    while let Some(report) = reports.next().await {
        let found = match report {
            WatchReport::Event(Event::Init) => {
                is_listed = false;
                continue;
            }
            WatchReport::Event(Event::InitApply(object) | Event::Apply(object)) => {
                is_listed = true;
                SecretEvent::Change(Box::new(upsert(object)))
            }
            WatchReport::Event(Event::InitDone) if is_listed => continue,
            WatchReport::Event(Event::InitDone | Event::Delete(_)) => {
                SecretEvent::Change(Box::new(ObjectChange::Delete(secret.clone())))
            }
            WatchReport::Resumed => SecretEvent::Same,
            WatchReport::Failed(error) => failure(&secret, &error, &mut said),
        };
        if !matches!(found, SecretEvent::Failure { .. }) {
            said.clear();
        }
        let answer = SecretAnswer { secret: secret.clone(), found };
        if answers.send(answer).await.is_err() {
            return;
        }
    }
}

/// Logs why a Secret cannot be read, but the same reason only once.
fn failure(secret: &ObjectKey, error: &WatchError, said: &mut String) -> SecretEvent {
    let text = error.to_string();
    if text != *said {
        tracing::warn!(
            %secret,
            error = text,
            "cannot read the keys of tokens in it: grant the control plane list and watch on it \
             with a Role of its namespace"
        );
        *said = text;
    }
    SecretEvent::Failure { is_refused: is_refused(error) }
}

fn upsert(mut secret: Secret) -> ObjectChange {
    only_keys(&mut secret);
    ObjectChange::Upsert(Object::Secret(Box::new(secret)))
}

/// The Secrets that a policy names.
fn secrets(policy: &AuthorizationPolicy) -> BTreeSet<ObjectKey> {
    key_objects(policy).filter(|key| key.kind == Kind::Secret).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(namespace: &str, name: &str, secrets: &[String]) -> ObjectChange {
        let tokens =
            secrets.iter().map(|name| format!("{{issuer: i, audiences: [a], jwksSecret: {name}}}"));
        let tokens: Vec<String> = tokens.collect();
        let text = format!(
            "apiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{selector: {{}}, tokens: [{}], rules: [{{}}]}}\n",
            tokens.join(", ")
        );
        let mut documents = leno_resources::parse("p.yaml", &text).unwrap();
        ObjectChange::Upsert(documents.objects.remove(0).value)
    }

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("k{number}")).collect()
    }

    /// Follows Secrets with a client that reaches no API server.
    fn key_secrets() -> KeySecrets {
        KeySecrets::new(leno_kube::connect_to("http://127.0.0.1:1".parse().unwrap()).unwrap())
    }

    fn of(secrets: &KeySecrets, namespace: &str) -> usize {
        secrets.followed.keys().filter(|key| key.namespace == namespace).count()
    }

    fn left_out(secrets: &KeySecrets) -> usize {
        secrets.counts.left_out.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn a_tenant_with_many_secrets_takes_no_places_of_others() {
        let mut secrets = key_secrets();
        // A policy has at most 8 issuers, so several policies are needed.
        let of_crowd = |nth: usize| {
            let of_policy = move |(part, names): (usize, &[String])| {
                policy(&format!("crowd-{nth:02}"), &format!("p{part}"), names)
            };
            names(40).chunks(8).enumerate().map(of_policy).collect::<Vec<_>>()
        };
        let crowds: Vec<ObjectChange> = (0..20).flat_map(of_crowd).collect();
        assert_eq!(secrets.note(&crowds[..5]), []);
        assert_eq!((of(&secrets, "crowd-00"), left_out(&secrets)), (MAX_OF_NAMESPACE, 8));
        assert_eq!(secrets.note(&crowds), []);
        assert_eq!(secrets.followed.len(), MAX_SECRETS);
        assert_eq!(secrets.note(&[policy("shop", "p", &names(3))]), []);
        assert_eq!((of(&secrets, "shop"), secrets.followed.len()), (3, MAX_SECRETS));
        let deleted = crowds.iter().map(|change| match change {
            ObjectChange::Upsert(object) => ObjectChange::Delete(object.key()),
            ObjectChange::Delete(_) => unreachable!(),
        });
        assert_eq!(secrets.note(&deleted.collect::<Vec<_>>()), [], "none of them was read");
        assert_eq!((secrets.followed.len(), left_out(&secrets)), (3, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn keys_end_where_the_right_to_read_them_was_withdrawn_and_not_with_the_api_server() {
        let mut secrets = key_secrets();
        let secret = follow_one(&mut secrets);
        let mut answer = |found| secrets.take(SecretAnswer { secret: secret.clone(), found });
        let failure = |is_refused| SecretEvent::Failure { is_refused };
        assert!(
            answer(SecretEvent::Change(Box::new(ObjectChange::Delete(secret.clone())))).is_none()
        );
        assert!(answer(read(&secret)).is_some());
        assert!(answer(failure(false)).is_none());
        tokio::time::advance(REFUSED * 2).await;
        assert!(answer(failure(false)).is_none(), "the API server is away");
        assert!(answer(failure(true)).is_none());
        tokio::time::advance(REFUSED / 2).await;
        assert!(answer(SecretEvent::Same).is_none());
        assert!(answer(failure(true)).is_none());
        tokio::time::advance(REFUSED / 2).await;
        assert!(answer(failure(true)).is_none());
        tokio::time::advance(REFUSED / 2).await;
        assert!(answer(failure(false)).is_none(), "the API server is away again");
        assert!(answer(failure(true)).is_none());
        tokio::time::advance(REFUSED).await;
        assert_eq!(answer(failure(true)), Some(ObjectChange::Delete(secret.clone())));
        assert!(answer(failure(true)).is_none(), "they end once");
        assert!(answer(read(&secret)).is_some());
    }

    #[tokio::test]
    async fn the_keys_of_a_secret_that_is_not_followed_any_more_end() {
        let mut secrets = key_secrets();
        let secret = follow_one(&mut secrets);
        let found = read(&secret);
        assert!(secrets.take(SecretAnswer { secret: secret.clone(), found }).is_some());
        assert_eq!(secrets.note(&[policy("shop", "p", &names(2))]), [], "it is named as before");
        let other = ["other".to_owned()];
        assert_eq!(secrets.note(&[policy("shop", "p", &other)]), [ObjectChange::Delete(secret)]);
        assert_eq!(secrets.note(&[policy("shop", "p", &[])]), [], "that one was not read");
    }

    /// Makes a policy name one Secret, for which no watch answers.
    fn follow_one(secrets: &mut KeySecrets) -> ObjectKey {
        assert_eq!(secrets.note(&[policy("shop", "p", &names(1))]), []);
        let (secret, one) = secrets.followed.first_key_value().unwrap();
        one.task.abort();
        secret.clone()
    }

    fn read(secret: &ObjectKey) -> SecretEvent {
        let mut object = Secret::default();
        object.metadata.name = Some(secret.name.clone());
        object.metadata.namespace = Some(secret.namespace.clone());
        SecretEvent::Change(Box::new(upsert(object)))
    }
}
