//! Keeps documents that replicas have fetched (keys of tokens, and trust bundles of other trust domains) in
//! Secrets, for replicas that start later. Otherwise a control plane that starts while an issuer is unreachable
//! could not verify the issuer's tokens. The documents are not confidential. They are in Secrets and not in
//! `ConfigMap`s because fewer accounts may write Secrets, and a client that could change the documents would
//! decide which tokens and certificates are accepted.
//!
//! ```text
//!  each replica that starts ◄── Secret ◄── the replica that leads, what it has fetched
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use leno_keys::{DesiredDocuments, SharedDocuments};
use leno_kube::api::ListParams;
use leno_kube::{Api, Client, Reflection, WatchReport, WatchSelection, apply, is_status};
use leno_program::Family;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{interval, timeout};

use crate::counts;
use crate::reconcile::{Reconciler, while_leading};

/// The name of the Secret with key sets.
pub const KEYS: &str = "leno-keys";
/// The name of the Secret with trust bundles.
pub const BUNDLES: &str = "leno-bundles";

/// The field manager of these Secrets.
const FIELD_MANAGER: &str = "leno-controller";
/// Most bytes in one of the Secrets, including names. The API server accepts 1 MiB.
const MAX_BYTES: usize = 960 * 1024;
/// The pause after the API server has not answered.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(5);
/// How often the leader looks for stored documents that no configuration has wanted for a long time.
const SWEEP: Duration = Duration::from_mins(1);

/// The documents of a Secret, by name.
type Documents = BTreeMap<String, String>;

/// Keeps fetched documents in Secrets.
pub struct FetchedReconciler {
    secrets: Api<Secret>,
    /// The Secret with key sets, and the one with trust bundles.
    all: [FetchedSecret; 2],
    written: AtomicU64,
    failed: AtomicU64,
}

struct FetchedSecret {
    name: &'static str,
    /// The stored and the wanted documents, shared with the code that fetches them.
    documents: SharedDocuments,
    /// How many documents are stored, and for how many there is no room. Both are 0 while this replica does not
    /// lead.
    stored: AtomicUsize,
    left_out: AtomicUsize,
}

/// The stored documents, as observed.
struct Observed<'a> {
    own: &'a FetchedReconciler,
    secrets: [ObservedSecret; 2],
}

#[derive(Default)]
struct ObservedSecret {
    found: Reflection<(), Documents>,
    /// Names of fields that another client has written. Server-side apply does not remove these.
    foreign: BTreeSet<String>,
}

enum Observation {
    Secret(usize, Box<WatchReport<Secret>>),
    /// This replica has fetched a document.
    Fetched,
    /// It is time to look for stored documents that no configuration uses any more.
    Sweep,
}

impl FetchedReconciler {
    /// Reads the stored documents. While the API server does not answer, tries again without end.
    pub async fn open(client: Client, namespace: &str) -> Self {
        let secrets: Api<Secret> = Api::namespaced(client, namespace);
        let keys = FetchedSecret::open(&secrets, KEYS).await;
        let bundles = FetchedSecret::open(&secrets, BUNDLES).await;
        let [written, failed] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { secrets, all: [keys, bundles], written, failed }
    }

    /// The stored key sets.
    #[must_use]
    pub fn keys(&self) -> SharedDocuments {
        let [keys, _] = &self.all;
        keys.documents.clone()
    }

    /// The stored trust bundles.
    #[must_use]
    pub fn bundles(&self) -> SharedDocuments {
        let [_, bundles] = &self.all;
        bundles.documents.clone()
    }

    /// Watches the Secrets, and writes them while `leads` is true. Returns when the sender of `leads` is dropped.
    pub async fn run(&self, leads: watch::Receiver<bool>) {
        while_leading(leads, || Observed { own: self, secrets: Default::default() }).await;
    }

    /// Appends the counters and gauges, as Prometheus text.
    pub fn render(&self, text: &mut String) {
        let help = "Secrets of fetched keys and trust bundles written, by result.";
        let results = [("written", &self.written), ("failed", &self.failed)];
        counts::render(text, ("kept_writes_total", help), &results);
        let help = "Fetched sets of keys and trust bundles, as far as this replica leads: stored for the next start, or left \
                    out for want of room in the Secret.";
        let mut family = Family::gauge(text, "leno_control_kept_documents", help);
        for secret in &self.all {
            for (state, count) in [("stored", &secret.stored), ("left-out", &secret.left_out)] {
                let labels = [("secret", secret.name), ("state", state)];
                family.sample(&labels, count.load(Ordering::Relaxed));
            }
        }
    }
}

impl FetchedSecret {
    async fn open(secrets: &Api<Secret>, name: &'static str) -> Self {
        let stored = loop {
            match timeout(ANSWER, read(secrets, name)).await {
                Ok(Ok(stored)) => break stored,
                Ok(Err(error)) if is_status(&error, 403) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(
                        error,
                        name,
                        "cannot read the keys and bundles that were \
                         fetched before the start"
                    );
                    break Documents::new();
                }
                Ok(Err(error)) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(
                        error,
                        name,
                        "cannot read the keys and bundles that were \
                         fetched before yet"
                    );
                }
                Err(_elapsed) => {
                    tracing::warn!(
                        name,
                        "cannot read the keys and bundles that were fetched \
                         before yet: no answer"
                    );
                }
            }
            tokio::time::sleep(PAUSE).await;
        };
        tracing::info!(name, documents = stored.len(), "using what was fetched before the start");
        let [stored_count, left_out] = std::array::from_fn(|_| AtomicUsize::new(0));
        let documents = SharedDocuments::new(stored);
        Self { name, documents, stored: stored_count, left_out }
    }
}

/// The documents in a Secret; none if it does not exist. The Secret is read by a list request, because the control
/// plane only has the right to list it.
async fn read(secrets: &Api<Secret>, name: &str) -> Result<Documents, leno_kube::Error> {
    let selection = ListParams::default().fields(&format!("metadata.name={name}"));
    Ok(secrets.list(&selection).await?.items.into_iter().next().map(documents).unwrap_or_default())
}

/// The documents in a Secret. A value that is not text is ignored, because no control plane has written it.
fn documents(secret: Secret) -> Documents {
    let all = secret.data.unwrap_or_default().into_iter();
    all.filter_map(|(name, ByteString(text))| Some((name, String::from_utf8(text).ok()?))).collect()
}

/// Chooses the documents to store. Small documents come first, so that a large one does not displace others.
/// Documents that nothing wants at present come last, because a tenant can leave many of them behind. Also returns
/// for how many documents there is no room.
fn fit(
    wanted: &DesiredDocuments,
    (stored, unwanted): (&Documents, &BTreeSet<String>),
) -> (Documents, usize) {
    let text = |(name, wanted): (&String, &Option<String>)| {
        let text = wanted.as_ref().or_else(|| stored.get(name))?;
        let order = (unwanted.contains(name), name.len() + text.len());
        Some((order, name.clone(), text.clone()))
    };
    let mut all: Vec<((bool, usize), String, String)> = wanted.iter().filter_map(text).collect();
    all.sort_unstable();
    let (count, mut room) = (all.len(), MAX_BYTES);
    let fits = |((_, bytes), _, _): &((bool, usize), String, String)| match room.checked_sub(*bytes)
    {
        Some(rest) => {
            room = rest;
            true
        }
        None => false,
    };
    let fitting = all.into_iter().filter(fits).map(|(_, name, text)| (name, text));
    let fitting: Documents = fitting.collect();
    let left_out = count - fitting.len();
    (fitting, left_out)
}

impl Observed<'_> {
    /// The documents that the Secret should contain; `None` if it contains exactly these.
    fn due(&self, nth: usize) -> Option<Documents> {
        let (secret, observed) = (self.own.all.get(nth)?, self.secrets.get(nth)?);
        if !observed.found.is_complete() {
            return None;
        }
        let none = Documents::new();
        let found = observed.found.values().get(&()).unwrap_or(&none);
        let unwanted = secret.documents.unwanted();
        let (next, left_out) = fit(&secret.documents.wanted().borrow(), (found, &unwanted));
        let is_stored = |(name, text): &(&String, &String)| found.get(*name) == Some(*text);
        secret.stored.store(next.iter().filter(is_stored).count(), Ordering::Relaxed);
        if secret.left_out.swap(left_out, Ordering::Relaxed) < left_out {
            tracing::error!(
                secret = secret.name,
                left_out,
                "the Secret has no room for what was fetched, so a replica that starts has to \
                 fetch it again"
            );
        }
        let is_ours = |name: &String| next.contains_key(name) || !observed.foreign.contains(name);
        let differs = found.iter().filter(|(name, _)| is_ours(name)).ne(&next);
        differs.then_some(next)
    }

    /// Writes a Secret, and returns whether that succeeded.
    async fn write(&mut self, nth: usize, next: &Documents) -> bool {
        let (Some(of), Some(observed)) = (self.own.all.get(nth), self.secrets.get_mut(nth)) else {
            return false;
        };
        let data = next.iter().map(|(name, text)| (name, ByteString(text.clone().into_bytes())));
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": of.name, "labels": {"app.kubernetes.io/part-of": "leno"}},
            "data": data.collect::<BTreeMap<_, _>>(),
        });
        // Server-side apply creates the Secret if it does not exist.
        let written = apply(&self.own.secrets, FIELD_MANAGER, of.name, &secret);
        let failure = match timeout(ANSWER, written).await {
            Ok(Ok(secret)) => {
                let stored = documents(secret);
                let others = stored.keys().filter(|name| !next.contains_key(*name));
                observed.foreign = others.cloned().collect();
                observed.found.insert((), stored);
                self.own.written.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => "no answer".to_owned(),
        };
        self.own.failed.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(secret = of.name, failure, "cannot store what was fetched; retrying");
        false
    }
}

impl Reconciler for Observed<'_> {
    type Observation = Observation;

    fn watches(&self) -> BoxStream<'static, Observation> {
        let each = self.own.all.iter().enumerate().map(|(nth, secret)| {
            let stored =
                leno_kube::watch(self.own.secrets.clone(), WatchSelection::named(secret.name));
            let stored = stored.map(move |report| Observation::Secret(nth, Box::new(report)));
            let fetched = changes(secret.documents.wanted()).map(|()| Observation::Fetched);
            stream::select(stored, fetched).boxed()
        });
        let sweep = stream::unfold(interval(SWEEP), |mut times| async move {
            times.tick().await;
            Some((Observation::Sweep, times))
        });
        stream::select(stream::select_all(each), sweep).boxed()
    }

    fn observe(&mut self, observation: Observation) {
        let (nth, report) = match observation {
            Observation::Secret(nth, report) => (nth, *report),
            Observation::Fetched => return,
            Observation::Sweep => {
                self.own.all.iter().for_each(|secret| secret.documents.sweep());
                return;
            }
        };
        match (report, self.secrets.get_mut(nth)) {
            (WatchReport::Event(event), Some(observed)) => {
                observed.found.take(event, |secret| ((), Some(documents(secret))));
                let found = observed.found.values().get(&()).into_iter().flat_map(Documents::keys);
                let found = found.filter(|name| !observed.foreign.contains(*name));
                self.own.all.get(nth).iter().for_each(|own| own.documents.found(found.clone()));
            }
            (WatchReport::Failed(error), _) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "cannot watch the stored keys and bundles; retrying");
            }
            (WatchReport::Resumed | WatchReport::Event(_), _) => {}
        }
    }

    fn is_due(&self) -> bool {
        (0..self.secrets.len()).any(|nth| self.due(nth).is_some())
    }

    async fn reconcile(&mut self) -> bool {
        let mut all = true;
        for nth in 0..self.secrets.len() {
            if let Some(next) = self.due(nth) {
                all &= self.write(nth, &next).await;
            }
        }
        all
    }
}

impl Drop for Observed<'_> {
    /// Runs when this replica stops leading.
    fn drop(&mut self) {
        for secret in &self.own.all {
            secret.stored.store(0, Ordering::Relaxed);
            secret.left_out.store(0, Ordering::Relaxed);
        }
    }
}

/// Yields an item for each change.
fn changes(wanted: watch::Receiver<DesiredDocuments>) -> BoxStream<'static, ()> {
    stream::unfold(wanted, |mut wanted| async move {
        // The sender lives as long as the process, so this ends only with it.
        wanted.changed().await.ok().map(|()| ((), wanted))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(pairs: &[(&str, usize)]) -> Documents {
        pairs.iter().map(|(name, bytes)| ((*name).to_owned(), "x".repeat(*bytes))).collect()
    }

    fn wanted(documents: Documents) -> DesiredDocuments {
        documents.into_iter().map(|(name, text)| (name, Some(text))).collect()
    }

    #[test]
    fn a_large_document_takes_no_room_of_small_ones() {
        let none = BTreeSet::new();
        let all = named(&[("a", MAX_BYTES - 9), ("b", 4), ("c", 3)]);
        let (fitting, left_out) = fit(&wanted(all), (&Documents::new(), &none));
        assert_eq!((fitting, left_out), (named(&[("b", 4), ("c", 3)]), 1));
        let exact = named(&[("a", MAX_BYTES - 5), ("c", 3)]);
        assert_eq!(fit(&wanted(exact.clone()), (&Documents::new(), &none)), (exact, 0));
        // A stored document that is wanted but that this replica has not fetched is kept. A document that is not
        // wanted is dropped.
        let claimed = [("a".to_owned(), None), ("d".to_owned(), None)].into();
        let stored = named(&[("a", 1), ("b", 1)]);
        assert_eq!(fit(&claimed, (&stored, &none)), (named(&[("a", 1)]), 0));
    }

    #[test]
    fn what_nothing_wants_any_more_takes_no_room_of_what_is_wanted() {
        let all = named(&[("a", MAX_BYTES - 9), ("b", 4), ("c", 3), ("d", 4)]);
        let unwanted = ["b", "c", "d"].map(str::to_owned).into();
        let (fitting, left_out) = fit(&wanted(all), (&Documents::new(), &unwanted));
        assert_eq!((fitting, left_out), (named(&[("a", MAX_BYTES - 9), ("c", 3)]), 2));
    }
}
