//! Reads the objects of a cluster once, without watching.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use futures_util::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use leno_kube::api::ListParams;
use leno_kube::{Api, Client, Resource, is_status};
use leno_resources::{Kind, Object, ObjectKey};
use leno_types::{InstanceName, Owner};
use serde::de::DeserializeOwned;

use super::reduced::ReducedObject;
use super::{KindOperation, ObjectScope, SkippedObject, WATCHED, WatchedKind, api, pod};

/// Most pages of one list. They contain half a million objects of most kinds, which is more than an API server is
/// designed for. The bound is for a server whose list never ends.
const MAX_PAGES: usize = 1000;

/// The objects that were read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceObjects {
    /// The objects of the mesh, as [`super::KubernetesSource`] sends them.
    pub objects: Vec<Object>,
    /// Objects that are invalid. They are ignored, or something else is in effect in their place.
    pub unread: Vec<UnreadObject>,
    /// The objects that have created the pods.
    pub owners: Vec<(InstanceName, Owner)>,
}

/// An object that is invalid.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreadObject {
    /// Its key.
    pub key: ObjectKey,
    /// Why it is invalid.
    pub reason: String,
    /// For an authorization policy: what a control plane applies in its place if it has never read a valid version
    /// of it.
    pub in_its_place: Option<Box<Object>>,
}

/// Why the objects of a kind cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot list objects of kind {kind}")]
pub struct ReadError {
    /// The kind's name in Kubernetes.
    pub kind: &'static str,
    /// The API server's error, or the reason why it does not answer.
    pub source: leno_kube::Error,
}

/// Reads all objects of the mesh. With `namespace`, only those of that namespace, and the Namespace object itself.
/// Needs the right to `list` each kind that [`super::KubernetesSource`] watches. If the caller has no right to
/// read the Namespace object, the result does not contain it.
///
/// # Errors
/// If a kind cannot be read. It is not an error if the cluster does not have a kind.
pub async fn read(client: &Client, namespace: Option<&str>) -> Result<SourceObjects, ReadError> {
    let scope = namespace.map_or(ObjectScope::All, |name| ObjectScope::Namespace(name.to_owned()));
    let scope = &scope;
    let parts = WATCHED.into_iter().map(async |watched| {
        let read = of_kind(client.clone(), watched, scope).await;
        read.map_err(|source| ReadError { kind: watched.as_str(), source })
    });
    let mut sum = SourceObjects::default();
    for part in try_join_all(parts).await? {
        sum.objects.extend(part.objects);
        sum.unread.extend(part.unread);
        sum.owners.extend(part.owners);
    }
    Ok(sum)
}

async fn of_kind(
    client: Client,
    watched: WatchedKind,
    scope: &ObjectScope,
) -> Result<SourceObjects, leno_kube::Error> {
    match (watched, scope) {
        (WatchedKind::Core(leno_resources::Kind::Namespace), ObjectScope::Namespace(name)) => {
            let found = match Api::<Namespace>::all(client).get_opt(name).await {
                // Without the right to read it, the namespace's annotations are not taken into account.
                Err(error) if is_status(&error, 403) => None,
                found => found?,
            };
            let objects = found.map(|one| Object::Namespace(Box::new(one)));
            Ok(SourceObjects { objects: objects.into_iter().collect(), ..SourceObjects::default() })
        }
        (WatchedKind::Pods, _) => {
            let owners = Mutex::default();
            let make = |ReducedObject(given): ReducedObject<Pod>| {
                let metadata = &given.metadata;
                let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
                let instance =
                    InstanceName::new(namespace.unwrap_or_default(), name.unwrap_or_default());
                let mut owners: std::sync::MutexGuard<'_, Vec<_>> =
                    owners.lock().unwrap_or_else(PoisonError::into_inner);
                owners.extend(instance.ok().map(|instance| (instance, pod::owner(&given))));
                pod::workload(&given)
            };
            let read =
                list(vec![api::<ReducedObject<Pod>>(client, scope)], make, watched.page()).await?;
            let owners = owners.into_inner().unwrap_or_else(PoisonError::into_inner);
            Ok(SourceObjects { owners, ..read })
        }
        _ => watched.each(client, scope, Reader { page: watched.page() }).await,
    }
}

/// Reads all objects of a kind once, in pages of this size.
struct Reader {
    page: u32,
}

impl KindOperation for Reader {
    type Output = Result<SourceObjects, leno_kube::Error>;

    async fn run<K>(
        self,
        versions: Vec<Api<K>>,
        make: impl Fn(K) -> Result<Object, SkippedObject> + Send + Sync,
    ) -> Self::Output
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    {
        list(versions, make, self.page).await
    }
}

async fn list<K>(
    versions: Vec<Api<K>>,
    make: impl Fn(K) -> Result<Object, SkippedObject>,
    page: u32,
) -> Result<SourceObjects, leno_kube::Error>
where
    K: Clone + Debug + DeserializeOwned,
{
    let mut read = SourceObjects::default();
    for api in versions {
        let mut asked = ListParams::default().limit(page);
        let mut pages = 0;
        loop {
            let page = match api.list(&asked).await {
                Ok(page) => page,
                // Tries the next version. If no version exists, the cluster does not have the kind.
                Err(error) if is_status(&error, 404) => break,
                Err(error) => return Err(error),
            };
            let more = page.metadata.continue_.filter(|token| !token.is_empty());
            for given in page.items {
                match make(given) {
                    Ok(object) => read.objects.push(object),
                    Err(SkippedObject::Bad { key, reason, outline }) => {
                        let in_its_place =
                            outline.filter(|_| key.kind == Kind::AuthorizationPolicy);
                        read.unread.push(UnreadObject { key, reason, in_its_place });
                    }
                    Err(SkippedObject::Absent(_)) => {}
                }
            }
            match more {
                Some(token) => asked = asked.continue_token(&token),
                None => return Ok(read),
            }
            pages += 1;
            if pages == MAX_PAGES {
                let objects = read.objects.len();
                let why = format!("there are more than {objects} objects of the kind");
                return Err(leno_kube::Error::Service(why.into()));
            }
        }
    }
    Ok(read)
}
