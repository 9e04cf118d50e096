//! The mesh's authority, kept in a Secret that all replicas read.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use leno_identity::{Authority, AuthorityState, OpenError, SignerPem};
use leno_kube::api::{ObjectMeta, PostParams};
use leno_kube::{Api, Client, Reflection, Report, Selection, is_status};
use leno_program::Family;
use leno_types::TrustDomain;

use crate::reconcile::{Reconciler, run};

/// The Secret's name; its namespace is the control plane's.
pub const SECRET: &str = "leno-ca";

/// The Secret's fields, called as the files of an authority in a directory are.
const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca-key.pem";
/// Pause after the API server did not answer or refused: without an authority there is nothing to do.
const PAUSE: Duration = Duration::from_secs(2);

/// Why the Secret gives no authority. Asking again does not help.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// It is there, and something is missing in it.
    #[error(
        "the Secret {namespace}/{SECRET} has no {field}; restore it, or remove the Secret to begin a new authority"
    )]
    Incomplete {
        /// Where it is.
        namespace: String,
        /// What it lacks.
        field: &'static str,
    },
    /// What is in it is no authority of the mesh.
    #[error("the Secret {namespace}/{SECRET} cannot be used")]
    Open {
        /// Where it is.
        namespace: String,
        /// What is wrong with it.
        #[source]
        source: OpenError,
    },
}

/// Keeps the Secret: a replica that starts without it would sign with another authority, and half of the mesh would
/// not know the other half.
pub struct AuthorityReconciler {
    secrets: Api<Secret>,
    namespace: String,
    pair: SignerPem,
    current: Arc<AtomicBool>,
    /// The certificate in the Secret; `None` if it holds no pair.
    found: Reflection<(), Option<String>>,
}

/// What a Secret that was read or made gives.
type Opened = Result<(Authority, SignerPem), AuthorityError>;

/// The authority in the Secret of a namespace, made and put there where there is none. Of replicas
/// that do so at once the first one's holds for all. An API server that does not answer, or does not
/// permit it yet, is asked again for ever.
///
/// # Errors
/// [`AuthorityError`] where the Secret holds something else. It is not changed.
pub async fn authority(
    client: &Client,
    namespace: &str,
    trust_domain: &TrustDomain,
) -> Result<(Authority, AuthorityReconciler), AuthorityError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    loop {
        match attempt(&secrets, namespace, trust_domain).await {
            Ok(Some(opened)) => {
                let (authority, pair) = opened?;
                let (namespace, current) = (namespace.to_owned(), Arc::new(AtomicBool::new(true)));
                let found = Reflection::default();
                let reconciler = AuthorityReconciler { secrets, namespace, pair, current, found };
                return Ok((authority, reconciler));
            }
            // Another replica was first: what it made is to be read.
            Ok(None) => {}
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(
                    namespace,
                    secret = SECRET,
                    error,
                    "the authority cannot be read yet"
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// One attempt; none where another replica was faster.
async fn attempt(
    secrets: &Api<Secret>,
    namespace: &str,
    trust_domain: &TrustDomain,
) -> Result<Option<Opened>, leno_kube::Error> {
    let open = |source| AuthorityError::Open { namespace: namespace.to_owned(), source };
    if let Some(secret) = secrets.get_opt(SECRET).await? {
        let kept = PathBuf::from(format!("Secret {namespace}/{SECRET}"));
        let opened = pair(&secret, namespace).and_then(|pair| {
            let state = AuthorityState::stable(pair.clone(), now());
            let authority = Authority::from_state(&kept, state, trust_domain).map_err(open)?;
            Ok((authority, pair))
        });
        return Ok(Some(opened));
    }
    let made = || {
        let pair = Authority::new_root(trust_domain)?;
        let state = AuthorityState::stable(pair.clone(), now());
        Ok((Authority::from_state(&PathBuf::from(SECRET), state, trust_domain)?, pair))
    };
    let (made, pair) = match made() {
        Ok(made) => made,
        Err(error) => return Ok(Some(Err(open(error)))),
    };
    match secrets.create(&PostParams::default(), &secret(pair.clone())).await {
        Ok(_) => {
            tracing::info!(namespace, secret = SECRET, "a new authority was made");
            Ok(Some(Ok((made, pair))))
        }
        Err(error) if is_status(&error, 409) => Ok(None),
        Err(error) => Err(error),
    }
}

impl AuthorityReconciler {
    /// What appends, as Prometheus text, whether the Secret holds what this replica signs with.
    pub fn render(&self) -> impl Fn(&mut String) + Send + Sync + use<> {
        let current = Arc::clone(&self.current);
        move |text| {
            let help =
                "Whether the Secret contains the authority that certificates are signed with.";
            Family::gauge(text, "leno_control_authority_current", help)
                .sample(&[], u8::from(current.load(Ordering::Relaxed)));
        }
    }

    /// Watches the Secret, and creates it again if it is deleted, until the process ends.
    pub async fn run(self) {
        run(self).await;
    }

    /// Reports whether the Secret holds what this replica signs with.
    fn compare(&self) {
        let Some(found) = self.found.values().get(&()) else { return };
        let same = found.as_ref() == Some(&self.pair.certificates);
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

impl Reconciler for AuthorityReconciler {
    type Observation = Report<Secret>;

    fn watches(&self) -> BoxStream<'static, Self::Observation> {
        leno_kube::watch(self.secrets.clone(), Selection::named(SECRET)).boxed()
    }

    fn observe(&mut self, report: Self::Observation) {
        match report {
            Report::Event(event) => {
                let namespace = &self.namespace;
                self.found.take(event, |secret| {
                    let found = pair(&secret, namespace).ok().map(|found| found.certificates);
                    ((), Some(found))
                });
                self.compare();
            }
            Report::Resumed => {}
            Report::Failed(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "the authority's Secret cannot be followed; trying again");
            }
        }
    }

    fn is_due(&self) -> bool {
        self.found.is_complete() && self.found.values().is_empty()
    }

    async fn reconcile(&mut self) -> bool {
        let namespace = self.namespace.as_str();
        match self.secrets.create(&PostParams::default(), &secret(self.pair.clone())).await {
            Ok(_) => {
                tracing::warn!(
                    namespace,
                    secret = SECRET,
                    "the authority was gone and is put back"
                );
                self.found.insert((), Some(self.pair.certificates.clone()));
                self.compare();
                true
            }
            // Another replica was first, and the watch is about to report it.
            Err(error) if is_status(&error, 409) => false,
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "the authority's Secret cannot be put back; trying again");
                false
            }
        }
    }
}

fn secret(pair: SignerPem) -> Secret {
    let field = |name: &str, text: String| (name.to_owned(), ByteString(text.into_bytes()));
    let data = [field(CERTIFICATE, pair.certificates), field(KEY, pair.key)];
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

fn pair(secret: &Secret, namespace: &str) -> Result<SignerPem, AuthorityError> {
    let text = |field: &'static str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(field));
        let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        let missing = || AuthorityError::Incomplete { namespace: namespace.to_owned(), field };
        text.ok_or_else(missing)
    };
    let certificate = text(CERTIFICATE)?;
    Ok(SignerPem { roots: certificate.clone(), certificates: certificate, key: text(KEY)? })
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_comes_back_from_its_secret_and_a_part_of_one_does_not() {
        let made = Authority::new_root(&TrustDomain::default()).unwrap();
        let mut kept = secret(made.clone());
        let read = pair(&kept, "leno-system").unwrap();
        assert_eq!(read, made);
        kept.data.as_mut().unwrap().remove(KEY);
        let error = pair(&kept, "leno-system").unwrap_err().to_string();
        assert!(error.contains("leno-system/leno-ca has no ca-key.pem"), "{error}");
    }
}
