//! The mesh's authority, kept in a Secret that all replicas read.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use leno_identity::{Authority, OpenError, RootPair};
use leno_kube::api::{ObjectMeta, PostParams};
use leno_kube::{Api, Client, is_status};
use leno_types::TrustDomain;

/// The Secret's name; its namespace is the control plane's.
pub const SECRET: &str = "leno-ca";

/// The Secret's fields, called as the files of an authority in a directory are.
const CERTIFICATE: &str = "ca.pem";
const KEY: &str = "ca-key.pem";
/// Pause after the API server did not answer or refused: without an authority there is nothing to do.
const PAUSE: Duration = Duration::from_secs(2);
/// How often the Secret is looked at again.
const LOOK: Duration = Duration::from_secs(10);

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

/// Sees to it that the Secret holds what this replica signs with: a replica that starts without the
/// Secret would sign with something else, and half of the mesh would not know the other half.
pub struct Keeper {
    secrets: Api<Secret>,
    namespace: String,
    pair: RootPair,
    current: Arc<AtomicBool>,
}

/// What a Secret that was read or made gives.
type Opened = Result<(Authority, RootPair), AuthorityError>;

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
) -> Result<(Authority, Keeper), AuthorityError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    loop {
        match attempt(&secrets, namespace, trust_domain).await {
            Ok(Some(opened)) => {
                let (authority, pair) = opened?;
                let (namespace, current) = (namespace.to_owned(), Arc::new(AtomicBool::new(true)));
                return Ok((authority, Keeper { secrets, namespace, pair, current }));
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
            let authority = Authority::from_pair(&kept, &pair, trust_domain).map_err(open)?;
            Ok((authority, pair))
        });
        return Ok(Some(opened));
    }
    let (made, pair) = match Authority::generate(trust_domain) {
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

impl Keeper {
    /// What appends, as Prometheus text, whether the Secret holds what this replica signs with.
    pub fn render(&self) -> impl Fn(&mut String) + Send + Sync + use<> {
        let current = Arc::clone(&self.current);
        move |text| {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "# HELP leno_control_authority_current Whether the Secret contains the authority that certificates are signed with.\n\
                 # TYPE leno_control_authority_current gauge\n\
                 leno_control_authority_current {}\n",
                u8::from(current.load(Ordering::Relaxed))
            );
        }
    }

    /// Looks at the Secret from time to time, for ever; puts it back where it is gone.
    pub async fn run(self) {
        loop {
            tokio::time::sleep(LOOK).await;
            match self.look().await {
                Ok(current) => self.current.store(current, Ordering::Relaxed),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::debug!(error, "the authority's Secret cannot be looked at");
                }
            }
        }
    }

    async fn look(&self) -> Result<bool, leno_kube::Error> {
        let namespace = self.namespace.as_str();
        let Some(found) = self.secrets.get_opt(SECRET).await? else {
            self.secrets.create(&PostParams::default(), &secret(self.pair.clone())).await?;
            tracing::warn!(namespace, secret = SECRET, "the authority was gone and is put back");
            return Ok(true);
        };
        let same = pair(&found, namespace)
            .is_ok_and(|found| found.certificate_pem == self.pair.certificate_pem);
        if !same && self.current.load(Ordering::Relaxed) {
            tracing::error!(
                namespace,
                secret = SECRET,
                "holds another authority than this replica signs with: restart all replicas"
            );
        }
        Ok(same)
    }
}

fn secret(pair: RootPair) -> Secret {
    let field = |name: &str, text: String| (name.to_owned(), ByteString(text.into_bytes()));
    let data = [field(CERTIFICATE, pair.certificate_pem), field(KEY, pair.key_pem)];
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

fn pair(secret: &Secret, namespace: &str) -> Result<RootPair, AuthorityError> {
    let text = |field: &'static str| {
        let bytes = secret.data.as_ref().and_then(|data| data.get(field));
        let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
        let missing = || AuthorityError::Incomplete { namespace: namespace.to_owned(), field };
        text.ok_or_else(missing)
    };
    Ok(RootPair { certificate_pem: text(CERTIFICATE)?, key_pem: text(KEY)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_comes_back_from_its_secret_and_a_part_of_one_does_not() {
        let (_, made) = Authority::generate(&TrustDomain::default()).unwrap();
        let mut kept = secret(made.clone());
        let read = pair(&kept, "leno-system").unwrap();
        assert_eq!((read.certificate_pem, read.key_pem), (made.certificate_pem, made.key_pem));
        kept.data.as_mut().unwrap().remove(KEY);
        let error = pair(&kept, "leno-system").unwrap_err().to_string();
        assert!(error.contains("leno-system/leno-ca has no ca-key.pem"), "{error}");
    }
}
