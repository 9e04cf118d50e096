//! Keeps the mesh's certificate authority in a Secret that all replicas read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use leno_identity::{Authority, AuthorityState, OpenError, SignerPem, read_issuer};
use leno_kube::api::{ObjectMeta, PostParams};
use leno_kube::{Api, Client, Reflection, WatchReport, WatchSelection, is_status};
use leno_program::Family;
use leno_types::TrustDomain;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::reconcile::{Reconciler, run};

/// The name of the Secret. It is in the control plane's namespace.
pub const SECRET: &str = "leno-ca";

/// The field of the Secret with the authority's whole state.
const STATE: &str = "authority.json";
/// The fields of the Secret with the signing certificate and its key, as they will be after any rotation under
/// way. They are for replicas of an earlier release, which does not read or write the state.
const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca-key.pem";
/// The pause after the API server has not answered or has refused. Without an authority, the replica cannot do
/// anything else.
const PAUSE: Duration = Duration::from_secs(2);
/// Longest wait for one answer of the API server.
const ANSWER: Duration = Duration::from_secs(5);

/// Why the Secret cannot be used as an authority. Reading it again would not help.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The Secret exists, but a field is missing.
    #[error(
        "the Secret {namespace}/{SECRET} has no {field}: restore it, or delete the Secret to \
         create a new authority"
    )]
    Incomplete {
        /// The namespace of the Secret.
        namespace: String,
        /// The missing field.
        field: &'static str,
    },
    /// The content of the Secret is not an authority of this mesh.
    #[error("the Secret {namespace}/{SECRET} cannot be used")]
    Open {
        /// The namespace of the Secret.
        namespace: String,
        /// What is wrong with the content.
        #[source]
        source: OpenError,
    },
}

/// Follows the Secret, creates it again if it is deleted, and makes this replica sign with its content. A replica
/// that did not follow a Secret that was created again would sign with another authority than the rest, and half
/// of the mesh would not trust the other half.
pub struct AuthorityReconciler {
    secrets: Api<Secret>,
    namespace: String,
    authority: Arc<Authority>,
    /// Whether this replica signs with the state in the Secret; for metrics.
    current: Arc<AtomicBool>,
    /// The state in the Secret; `None` if its content is not a valid authority.
    found: Reflection<(), Option<AuthorityState>>,
    stored: watch::Sender<Option<Stored>>,
}

/// The Secret as it was observed last.
#[derive(Clone, Debug)]
struct Stored {
    version: String,
    state: AuthorityState,
    /// Whether the certificate and key for earlier releases were edited and so differ from the state. The edit has
    /// no effect.
    edited: bool,
}

/// The Secret, in which the leader stores the next state. All replicas, including the leader, sign with it once
/// they observe it.
pub struct AuthorityStore {
    secrets: Api<Secret>,
    /// How errors name the Secret, in place of a path.
    place: PathBuf,
    stored: watch::Receiver<Option<Stored>>,
}

/// Why the next state was not stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The next state is not a valid authority.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The API server refused.
    #[error("the Secret {SECRET} cannot be replaced")]
    Api(#[from] leno_kube::Error),
    /// The API server did not answer in time.
    #[error("the Secret {SECRET} cannot be replaced: no answer in {ANSWER:?}")]
    Late,
}

/// The result of opening a Secret that was read or created.
type Opened = Result<Authority, AuthorityError>;

/// Reads the authority from the Secret in a namespace. If there is no Secret, creates one, with a new root or with
/// the issuer in the directory `issuer`. If several replicas do so at once, all use the Secret of the first one.
/// While the API server does not answer or does not permit this, tries again without end.
///
/// # Errors
/// [`AuthorityError`] if the content of the Secret or the directory is not usable. Neither is changed.
pub async fn authority(
    client: &Client,
    namespace: &str,
    trust_domain: &TrustDomain,
    issuer: Option<&Path>,
) -> Result<(Arc<Authority>, AuthorityReconciler), AuthorityError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    loop {
        match attempt(&secrets, namespace, (trust_domain, issuer)).await {
            Ok(Some(opened)) => {
                let authority = Arc::new(opened?);
                let reconciler = AuthorityReconciler {
                    secrets,
                    namespace: namespace.to_owned(),
                    authority: Arc::clone(&authority),
                    current: Arc::new(AtomicBool::new(true)),
                    found: Reflection::default(),
                    stored: watch::Sender::new(None),
                };
                return Ok((authority, reconciler));
            }
            // Another replica created the Secret first. The next attempt reads it.
            Ok(None) => {}
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(namespace, secret = SECRET, error, "cannot read the authority yet");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Tries once to read the Secret, or to create it if it does not exist. `None` if another replica has created it
/// meanwhile.
async fn attempt(
    secrets: &Api<Secret>,
    namespace: &str,
    (trust_domain, issuer): (&TrustDomain, Option<&Path>),
) -> Result<Option<Opened>, leno_kube::Error> {
    let open = |source| AuthorityError::Open { namespace: namespace.to_owned(), source };
    if let Some(secret) = secrets.get_opt(SECRET).await? {
        let kept = place(namespace);
        let opened = state_of(&secret, namespace)
            .and_then(|state| Authority::from_state(&kept, state, trust_domain).map_err(open));
        return Ok(Some(opened));
    }
    let made = || {
        let signer = match issuer {
            Some(issuer) => read_issuer(issuer)?,
            None => Authority::new_root(trust_domain)?,
        };
        let kept = issuer.unwrap_or(Path::new(SECRET));
        Authority::from_state(kept, AuthorityState::stable(signer, now()), trust_domain)
    };
    let made = match made() {
        Ok(made) => made,
        Err(error) => return Ok(Some(Err(open(error)))),
    };
    match secrets.create(&PostParams::default(), &secret(made.trust().state())).await {
        Ok(_) => {
            tracing::info!(namespace, secret = SECRET, "a new authority was created");
            Ok(Some(Ok(made)))
        }
        Err(error) if is_status(&error, 409) => Ok(None),
        Err(error) => Err(error),
    }
}

impl AuthorityReconciler {
    /// Returns a function that appends, as Prometheus text, whether this replica signs with the state in the
    /// Secret.
    pub fn render(&self) -> impl Fn(&mut String) + Send + Sync + use<> {
        let current = Arc::clone(&self.current);
        move |text| {
            let help =
                "Whether the Secret contains the authority that certificates are signed with.";
            Family::gauge(text, "leno_control_authority_current", help)
                .sample(&[], u8::from(current.load(Ordering::Relaxed)));
        }
    }

    /// The store for the next state, which the leader writes.
    pub fn store(&self) -> AuthorityStore {
        let (secrets, stored) = (self.secrets.clone(), self.stored.subscribe());
        AuthorityStore { secrets, place: place(&self.namespace), stored }
    }

    /// Watches the Secret, signs with its content, and creates it again if it is deleted. Ends with the process.
    pub async fn run(self) {
        run(self).await;
    }

    /// Makes this replica sign with the state that was found, and records whether that was possible.
    fn follow(&self) {
        let Some(found) = self.found.values().get(&()) else { return };
        let trust = self.authority.trust();
        let same = match found {
            None => false,
            Some(found) if found == trust.state() => true,
            // The Secret was created again by a replica of an earlier release, which does not write the state.
            Some(found) if found.since_unix_s == 0 => {
                found.to.certificates == trust.state().to.certificates
            }
            Some(found) => match self.authority.apply(&place(&self.namespace), found.clone()) {
                Ok(()) => {
                    let phase = found.phase.as_str();
                    tracing::warn!(
                        phase,
                        "the authority's Secret has changed; using its new content"
                    );
                    true
                }
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(error, "the authority in the Secret cannot be used");
                    false
                }
            },
        };
        if !same && self.current.load(Ordering::Relaxed) {
            tracing::error!(
                namespace = self.namespace,
                secret = SECRET,
                "holds another authority than this replica signs with: restart all replicas"
            );
        }
        self.current.store(same, Ordering::Relaxed);
    }
}

impl AuthorityStore {
    /// Stores the next state, and returns whether it was stored. It is not stored if the Secret does not exist, or
    /// if it has changed since it was last observed; the watch will report that change.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn save(
        &self,
        next: &AuthorityState,
        trust_domain: &TrustDomain,
    ) -> Result<bool, StoreError> {
        // Checked before it is stored, because the next start must not read a state that cannot be used.
        Authority::from_state(&self.place, next.clone(), trust_domain)?;
        let Some(Stored { version, .. }) = self.stored.borrow().clone() else { return Ok(false) };
        let mut secret = secret(next);
        secret.metadata.resource_version = Some(version);
        let params = PostParams::default();
        let replaced = timeout(ANSWER, self.secrets.replace(SECRET, &params, &secret)).await;
        match replaced.map_err(|_elapsed| StoreError::Late)? {
            Ok(_) => Ok(true),
            Err(error) if is_status(&error, 409) || is_status(&error, 404) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the certificate and key that are kept for earlier releases were edited. The edit has no effect.
    #[must_use]
    pub fn has_ignored_edit(&self) -> bool {
        self.stored.borrow().as_ref().is_some_and(|stored| stored.edited)
    }

    /// The state that was stored last, as far as this replica has observed it.
    #[must_use]
    pub fn stored(&self) -> Option<AuthorityState> {
        self.stored.borrow().as_ref().map(|stored| stored.state.clone())
    }
}

impl Reconciler for AuthorityReconciler {
    type Observation = WatchReport<Secret>;

    fn watches(&self) -> BoxStream<'static, Self::Observation> {
        leno_kube::watch(self.secrets.clone(), WatchSelection::named(SECRET)).boxed()
    }

    fn observe(&mut self, report: Self::Observation) {
        match report {
            WatchReport::Event(event) => {
                let namespace = &self.namespace;
                let (mut version, mut edited) = (None, false);
                self.found.take(event, |secret| {
                    version.clone_from(&secret.metadata.resource_version);
                    let state = state_of(&secret, namespace).ok();
                    edited = state.as_ref().is_some_and(|state| is_edited(&secret, state));
                    ((), Some(state))
                });
                self.follow();
                let found = self.found.values().get(&()).cloned().flatten();
                if let (Some(version), Some(state)) = (version, found) {
                    if edited {
                        tracing::error!(
                            namespace = self.namespace,
                            secret = SECRET,
                            "{CERTIFICATE} or {KEY} was edited, which has no effect, because only \
                             {STATE} is used"
                        );
                    }
                    self.stored.send_replace(Some(Stored { version, state, edited }));
                }
            }
            WatchReport::Resumed => {}
            WatchReport::Failed(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "cannot watch the authority's Secret; retrying");
            }
        }
    }

    fn is_due(&self) -> bool {
        self.found.is_complete() && self.found.values().is_empty()
    }

    async fn reconcile(&mut self) -> bool {
        let namespace = self.namespace.as_str();
        let trust = self.authority.trust();
        match self.secrets.create(&PostParams::default(), &secret(trust.state())).await {
            Ok(_) => {
                tracing::warn!(
                    namespace,
                    secret = SECRET,
                    "the authority's Secret was deleted; restoring it"
                );
                self.found.insert((), Some(trust.state().clone()));
                self.follow();
                true
            }
            // Another replica has just created it, and the watch will report it.
            Err(error) if is_status(&error, 409) => false,
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "cannot restore the authority's Secret; retrying");
                false
            }
        }
    }
}

fn place(namespace: &str) -> PathBuf {
    PathBuf::from(format!("Secret {namespace}/{SECRET}"))
}

fn secret(state: &AuthorityState) -> Secret {
    let field = |name: &str, text: &[u8]| (name.to_owned(), ByteString(text.to_vec()));
    let data = [
        field(CERTIFICATE, state.to.certificates.as_bytes()),
        field(KEY, state.to.key.as_bytes()),
        field(STATE, &state.to_json()),
    ];
    let label = ("app.kubernetes.io/part-of".to_owned(), "leno".to_owned());
    Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            labels: Some([label].into()),
            ..ObjectMeta::default()
        },
        type_: Some("Opaque".to_owned()),
        data: Some(data.into()),
        ..Secret::default()
    }
}

fn state_of(secret: &Secret, namespace: &str) -> Result<AuthorityState, AuthorityError> {
    let bytes = |field: &str| secret.data.as_ref().and_then(|data| data.get(field));
    if let Some(json) = bytes(STATE) {
        let open = |source| AuthorityError::Open { namespace: namespace.to_owned(), source };
        return AuthorityState::from_json(&place(namespace), &json.0).map_err(open);
    }
    let text = |field: &'static str| {
        let text = bytes(field).and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        let missing = || AuthorityError::Incomplete { namespace: namespace.to_owned(), field };
        text.ok_or_else(missing)
    };
    let certificate = text(CERTIFICATE)?;
    let pair = SignerPem { roots: certificate.clone(), certificates: certificate, key: text(KEY)? };
    Ok(AuthorityState::stable(pair, 0))
}

/// Whether the certificate and key in a Secret differ from those of its state. If the Secret has no state, they
/// are the authority themselves.
fn is_edited(secret: &Secret, state: &AuthorityState) -> bool {
    let field =
        |name: &str| secret.data.as_ref().and_then(|data| Some(data.get(name)?.0.as_slice()));
    let is = |name, text: &str| field(name) == Some(text.as_bytes());
    field(STATE).is_some() && !(is(CERTIFICATE, &state.to.certificates) && is(KEY, &state.to.key))
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_comes_back_from_its_secret_and_a_part_of_one_does_not() {
        let made = Authority::new_root(&TrustDomain::default()).unwrap();
        let state = AuthorityState::stable(made.clone(), 7);
        let mut kept = secret(&state);
        assert_eq!(state_of(&kept, "leno-system").unwrap(), state);
        assert!(!is_edited(&kept, &state));
        for field in [CERTIFICATE, KEY] {
            let mut edited = kept.clone();
            edited.data.as_mut().unwrap().insert(field.to_owned(), ByteString(b"x".to_vec()));
            assert_eq!(state_of(&edited, "leno-system").unwrap(), state);
            assert!(is_edited(&edited, &state), "an edit of {field} alone is noticed");
        }
        // Turns the Secret into one that an earlier release would have written.
        kept.data.as_mut().unwrap().remove(STATE);
        let earlier = state_of(&kept, "leno-system").unwrap();
        assert_eq!((&earlier.to, earlier.since_unix_s), (&made, 0));
        assert!(!is_edited(&kept, &earlier), "the pair is all that it has");
        kept.data.as_mut().unwrap().remove(KEY);
        let error = state_of(&kept, "leno-system").unwrap_err().to_string();
        assert!(error.contains("leno-system/leno-ca has no ca-key.pem"), "{error}");
    }
}
