//! Follows the bundle endpoint of another trust domain (SPIFFE Federation, sections 4 and 5).
//!
//! ```text
//!  the last bundle, stored or given ──► how the server is verified ──► fetch ──► bundle ──► Authority
//!              ▲                                                               │
//!              └─────────────── stored, for the next fetch and start ◄─────────┘
//! ```

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail, ensure};
use aws_lc_rs::digest::{SHA256, digest};
use leno_identity::Authority;
use leno_keys::{BundleEndpoint, DocumentStore, EndpointServer, WebAuthorities};
use leno_program::Family;
use leno_spiffe::Bundle;
use leno_types::TrustDomain;
use serde_json::{Map, Value};
use tokio::time::sleep;

use super::{parsed, text};
use crate::workload_bundles;

/// The default interval of fetching a bundle (SPIFFE Federation, section 4.1).
const REFRESH: Duration = Duration::from_mins(5);
/// The bounds of the interval that a bundle may set. With a day, removing a root would take too long.
const REFRESH_BOUNDS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_hours(1));
/// The first wait after a failure. It doubles up to [`LONGEST_RETRY`], and is never longer than the normal interval.
const RETRY: Duration = Duration::from_secs(1);
/// The longest wait after a failure.
const LONGEST_RETRY: Duration = Duration::from_mins(1);

/// The longest name of a stored document, in bytes. It is the limit of a Secret's keys.
const MAX_NAME: usize = 253;

/// The source of a trust domain's bundle, as `URL[;spiffe-id=ID][;bundle=FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BundleLocation {
    url: String,
    /// The SPIFFE ID by which the server is verified; `None` if it is verified by its name.
    server: Option<EndpointId>,
}

/// The SPIFFE ID by which a server is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EndpointId {
    id: String,
    domain: TrustDomain,
    /// The bundle with which the server is verified on the first fetch. It is needed if the server's ID is in the
    /// trust domain whose bundle the server provides.
    bundle: Option<PathBuf>,
}

impl FromStr for BundleLocation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(';');
        let url = parts.next().unwrap_or_default().to_owned();
        BundleEndpoint::new(&url).map_err(|error| format!("{url:?}: {error}"))?;
        let (mut id, mut bundle) = (None, None);
        for part in parts {
            match part.split_once('=') {
                Some(("spiffe-id", value)) => id = Some(value.to_owned()),
                Some(("bundle", file)) => bundle = Some(PathBuf::from(file)),
                _ => return Err(format!("{part:?} is neither spiffe-id=ID nor bundle=FILE")),
            }
        }
        let Some(id) = id else {
            return match bundle {
                None => Ok(Self { url, server: None }),
                Some(_) => {
                    Err("bundle=FILE is only for servers with a SPIFFE ID: add spiffe-id=ID"
                        .to_owned())
                }
            };
        };
        let form = || format!("{id:?} is not spiffe://TRUST-DOMAIN/PATH");
        let (domain, _path) =
            id.strip_prefix("spiffe://").and_then(|rest| rest.split_once('/')).ok_or_else(form)?;
        let domain = TrustDomain::new(domain).map_err(|error| format!("{id:?}: {error}"))?;
        Ok(Self { url, server: Some(EndpointId { id, domain, bundle }) })
    }
}

impl BundleLocation {
    /// The file with the bundle for the first fetch, which the operator has given.
    pub(super) fn given(&self) -> Option<&Path> {
        self.server.as_ref()?.bundle.as_deref()
    }

    /// Checks that the endpoint's server can be verified. `is_known` is whether the control plane has the bundle
    /// of a trust domain.
    pub(super) fn check(
        &self,
        of: &TrustDomain,
        is_known: impl Fn(&TrustDomain) -> bool,
    ) -> anyhow::Result<()> {
        let Some(EndpointId { id, domain, bundle }) = &self.server else { return Ok(()) };
        if domain == of {
            ensure!(
                bundle.is_some(),
                "{id} needs ;bundle=FILE with a bundle of {of}, which verifies its first \
                 certificate"
            );
        } else {
            ensure!(is_known(domain), "{id} cannot be verified: {domain} is not federated");
            ensure!(
                bundle.is_none(),
                "{id} is verified by the bundle of {domain}: remove ;bundle=FILE"
            );
        }
        Ok(())
    }
}

/// Follows the bundle endpoint of one trust domain.
pub(super) struct BundleFollower {
    domain: TrustDomain,
    endpoint: BundleEndpoint,
    /// The SPIFFE ID by which the server is verified; `None` if it is verified by its name, with `authorities`.
    server: Option<EndpointId>,
    authority: Arc<Authority>,
    authorities: Arc<WebAuthorities>,
    /// Where the last bundle is stored.
    store: DocumentStore,
    /// The bundle that is in use.
    held: Option<Bundle>,
    /// Whether `held` was read from the store, and no fetch has returned a bundle since. Its sequence number is then
    /// not compared with that of a fetched bundle, because no endpoint vouches for the content of the store.
    is_of_store: bool,
    /// Whether the last fetch returned the bundle in `held`, so that the store has it, too, together with `given`. A
    /// failed fetch resets this; the next fetch that succeeds then stores its bundle again.
    is_confirmed: bool,
    /// The hash of the text of the file that the operator has given (or of the error of reading it), when the file was
    /// last used.
    given: Option<String>,
    counts: Arc<FetchCounts>,
}

/// Counts the results of fetches.
#[derive(Debug, Default)]
pub(super) struct FetchCounts {
    fetched: AtomicU64,
    failed: AtomicU64,
    last_unix_s: AtomicU64,
}

impl BundleFollower {
    /// Uses the stored or given bundle, if there is one. Does not fetch yet.
    pub(super) fn new(
        (domain, BundleLocation { url, server }): (TrustDomain, BundleLocation),
        (authority, authorities): (Arc<Authority>, Arc<WebAuthorities>),
        store: DocumentStore,
    ) -> anyhow::Result<Self> {
        let endpoint = BundleEndpoint::new(&url)?;
        let (held, given, counts) = (None, None, Arc::default());
        let mut follower = Self {
            domain,
            endpoint,
            server,
            authority,
            authorities,
            store,
            held,
            is_of_store: false,
            is_confirmed: false,
            given,
            counts,
        };
        follower.take_stored();
        Ok(follower)
    }

    /// The trust domain, and the counters of its fetches.
    pub(super) fn counts(&self) -> (TrustDomain, Arc<FetchCounts>) {
        (self.domain.clone(), Arc::clone(&self.counts))
    }

    /// Fetches the bundle repeatedly, without end.
    pub(super) async fn run(mut self) -> Infallible {
        let (mut said, mut retry) = (String::new(), RETRY);
        loop {
            self.take_given();
            let next = self.held.as_ref().and_then(|bundle| bundle.refresh_hint);
            let next = next.unwrap_or(REFRESH).clamp(REFRESH_BOUNDS.0, REFRESH_BOUNDS.1);
            match self.fetch().await {
                Ok(refresh) => {
                    (said, retry) = (String::new(), RETRY);
                    self.counts.fetched.fetch_add(1, Ordering::Relaxed);
                    self.counts.last_unix_s.store(now_unix_s(), Ordering::Relaxed);
                    sleep(refresh).await;
                }
                Err(error) => {
                    if std::mem::replace(&mut self.is_confirmed, false) {
                        self.store.doubt(&document(&self.domain));
                    }
                    self.counts.failed.fetch_add(1, Ordering::Relaxed);
                    let error = format!("{error:#}");
                    if error != said {
                        let (domain, held) = (&self.domain, self.held.is_some());
                        tracing::error!(%domain, error, held, "cannot fetch a trust bundle; the last \
                                                               one stays in effect, if there is one");
                        said = error;
                    }
                    let wait = retry.min(next);
                    retry = (retry * 2).min(LONGEST_RETRY);
                    sleep(wait).await;
                }
            }
        }
    }

    /// Fetches and uses the bundle; returns the time until the next fetch.
    async fn fetch(&mut self) -> anyhow::Result<Duration> {
        let roots;
        let server = match &self.server {
            None => EndpointServer::Named(&self.authorities),
            Some(EndpointId { id, domain, .. }) => {
                roots = self.roots_of(domain)?;
                EndpointServer::Identified { id, roots_der: &roots }
            }
        };
        let bundle = self.endpoint.fetch(server).await?;
        workload_bundles::check(&bundle.roots_der)?;
        let held = self.held.as_ref().filter(|_| !self.is_of_store);
        let held = held.and_then(|held| held.sequence);
        if let (Some(sequence), Some(held)) = (bundle.sequence, held)
            && sequence < held
        {
            bail!(
                "the endpoint has an older bundle, of sequence {sequence}, than the one of {held}"
            );
        }
        let refresh = bundle.refresh_hint.unwrap_or(REFRESH);
        let is_other = self.held.as_ref() != Some(&bundle);
        if is_other || !self.is_confirmed {
            self.keep(&bundle);
        }
        (self.is_confirmed, self.is_of_store) = (true, false);
        if is_other {
            tracing::info!(domain = %self.domain, roots = bundle.roots_der.len(), "trust bundle fetched");
            self.hold(bundle);
        }
        Ok(refresh.clamp(REFRESH_BOUNDS.0, REFRESH_BOUNDS.1))
    }

    /// The roots for verifying the endpoint's server.
    fn roots_of(&self, domain: &TrustDomain) -> anyhow::Result<Vec<Vec<u8>>> {
        let trust = self.authority.trust();
        if domain == self.authority.trust_domain() {
            return Ok(trust.bundle_der());
        }
        let roots = trust.federated_der().get(domain).cloned();
        roots.with_context(|| format!("there is no trust bundle of {domain} yet"))
    }

    fn hold(&mut self, bundle: Bundle) {
        self.authority.federate(&self.domain, bundle.roots_der.clone());
        self.held = Some(bundle);
    }

    /// Uses the bundle of the last run, unless the operator has changed the given bundle since.
    fn take_stored(&mut self) {
        if let Some(stored) = self.store.read(&document(&self.domain)) {
            match StoredBundle::read(&stored) {
                Ok(StoredBundle { bundle, given }) => {
                    let now = self.given_file().and_then(|file| Some(hash(&text(file).ok()?)));
                    if now.is_none() || now == given {
                        self.given = now;
                        self.is_of_store = true;
                        self.hold(bundle);
                    }
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(domain = %self.domain, error, "the stored trust bundle is not used");
                }
            }
        }
        self.take_given();
    }

    /// Uses the bundle that the operator has given, if its file was changed. This repairs an endpoint whose key
    /// has changed while its bundle could not be fetched.
    fn take_given(&mut self) {
        // The operator may remove the file after the first fetch.
        let Some(file) = self.given_file().filter(|file| file.exists()) else { return };
        let read = text(file);
        // A file that cannot be read counts as changed only once, so its error is logged once.
        let given =
            Some(read.as_ref().map_or_else(|error| hash(&error.to_string()), |text| hash(text)));
        if given == self.given {
            return;
        }
        match read.and_then(|text| parsed(&text, file)) {
            Ok(bundle) => {
                tracing::info!(domain = %self.domain, file = %file.display(), "the configured trust bundle is used");
                self.is_of_store = false;
                self.hold(bundle);
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(domain = %self.domain, error, "the configured trust bundle is not used");
            }
        }
        self.given = given;
        // What is in the store belongs to the earlier given bundle, so the bundle must be confirmed and stored
        // again.
        self.is_confirmed = false;
    }

    fn given_file(&self) -> Option<&Path> {
        self.server.as_ref()?.bundle.as_deref()
    }

    fn keep(&self, bundle: &Bundle) {
        match StoredBundle::write(bundle, self.given.as_deref()) {
            Ok(text) => self.store.write(&document(&self.domain), &text),
            Err(error) => {
                let error = format!("{error:#}");
                tracing::warn!(domain = %self.domain, error, "cannot store a trust bundle for the next start");
            }
        }
    }
}

/// A stored bundle: a bundle in SPIFFE's format with an additional JSON member.
struct StoredBundle {
    bundle: Bundle,
    /// The hash of the given bundle that this one has replaced.
    given: Option<String>,
}

impl StoredBundle {
    /// The name of the additional member, which contains that hash.
    const GIVEN: &str = "leno_given_sha256";

    fn read(text: &str) -> anyhow::Result<Self> {
        let all: Map<String, Value> = serde_json::from_str(text)?;
        let given = all.get(Self::GIVEN).and_then(Value::as_str).map(str::to_owned);
        Ok(Self { bundle: parsed(text, Path::new("what is stored"))?, given })
    }

    fn write(bundle: &Bundle, given: Option<&str>) -> anyhow::Result<String> {
        let mut all: Map<String, Value> = serde_json::from_str(&bundle.to_json()?)?;
        if let Some(given) = given {
            all.insert(Self::GIVEN.to_owned(), given.into());
        }
        Ok(Value::Object(all).to_string())
    }
}

/// The name under which the bundle of a trust domain is stored. For a name that exceeds the 253 bytes of a
/// Secret's key, a hash of it is used.
pub(super) fn document(domain: &TrustDomain) -> String {
    let name = format!("{domain}.json");
    if name.len() <= MAX_NAME { name } else { format!("{}.json", hash(domain.as_str())) }
}

fn hash(text: &str) -> String {
    let hash = digest(&SHA256, text.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Appends the counters of all followers as Prometheus text.
pub(super) fn render(all: &[(TrustDomain, Arc<FetchCounts>)], text: &mut String) {
    let help = "Fetches of trust bundles of other trust domains, by result.";
    let mut family = Family::counter(text, "leno_control_bundle_fetches_total", help);
    for (domain, counts) in all {
        for (result, count) in [("fetched", &counts.fetched), ("failed", &counts.failed)] {
            let labels = [("trust_domain", domain.as_str()), ("result", result)];
            family.sample(&labels, count.load(Ordering::Relaxed));
        }
    }
    let help = "When the trust bundle of another trust domain was fetched last; 0 if it was not.";
    let mut family = Family::gauge(text, "leno_control_bundle_fetched_timestamp_seconds", help);
    for (domain, counts) in all {
        let last = counts.last_unix_s.load(Ordering::Relaxed);
        family.sample(&[("trust_domain", domain.as_str())], last);
    }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_each_document_has_room_in_a_secret() {
        let of = |bytes: usize| document(&TrustDomain::new(&"a".repeat(bytes)).unwrap());
        assert_eq!(of(248), "a".repeat(248) + ".json");
        assert_eq!((of(249).len(), of(255).len()), (69, 69));
        assert_ne!(of(249), of(250));
    }
}
