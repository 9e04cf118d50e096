//! Reads, applies and deletes objects of any kind, identified as in the chart's documents.

use std::time::{Duration, Instant};

use leno_kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Preconditions,
    PropagationPolicy,
};
use leno_kube::core::ObjectList;
use leno_kube::{Api, Client, is_status};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// Longest wait for the deletion of an object. Even deleting a namespace with its contents takes less.
const LIMIT: Duration = Duration::from_secs(180);
/// Longest wait until the API server serves a newly defined kind.
const SERVED: Duration = Duration::from_secs(30);
/// Pause between two queries.
const LOOK: Duration = Duration::from_millis(300);

/// Objects per page of a list.
const PAGE: u32 = 500;

/// The identity of an object in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectReference {
    /// The API group of its kind; empty for Kubernetes' core group.
    pub group: String,
    /// The version of that API group.
    pub version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; `None` for a cluster-scoped object.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// The objects that a text of YAML documents names, in order.
///
/// # Errors
/// The text is not YAML, or one of its documents names no object.
pub fn named(text: &str) -> Result<Vec<ObjectReference>, Error> {
    documents(text)?.iter().map(one).collect()
}

/// The documents of a YAML text.
///
/// # Errors
/// The text is not YAML.
pub fn documents(text: &str) -> Result<Vec<Value>, Error> {
    let all: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| Error::Document(error.to_string()))?;
    Ok(all.into_iter().filter(|one| !one.is_null()).collect())
}

/// Applies an object like `kubectl apply --server-side --force-conflicts`, with the field manager `who`; returns
/// the stored object. If the object's kind was defined only just before, waits until the API server serves the
/// kind.
///
/// # Errors
/// The document names no object, or the API server rejects it.
pub async fn apply(client: &Client, document: &Value, who: &str) -> Result<Value, Error> {
    let named = one(document)?;
    let api = named.api(client);
    let begin = Instant::now();
    loop {
        match leno_kube::apply(&api, who, &named.name, document).await {
            Ok(stored) => {
                return serde_json::to_value(stored)
                    .map_err(|error| Error::Document(error.to_string()));
            }
            Err(error) if is_absent(&error) && !is_core(&named) && begin.elapsed() < SERVED => {
                tokio::time::sleep(LOOK).await;
            }
            Err(error) => return Err(Error::api(format!("apply {}", named.said()))(error)),
        }
    }
}

/// Whether the kind exists in every cluster, so that waiting for it is pointless.
fn is_core(named: &ObjectReference) -> bool {
    named.group.is_empty() || !named.group.contains('.') || named.group.ends_with(".k8s.io")
}

/// Reads a list page by page, up to and including the page that reaches `most` items.
///
/// # Errors
/// A page cannot be read.
pub async fn paged<K: Clone>(
    asked: ListParams,
    most: usize,
    list: impl AsyncFn(&ListParams) -> Result<ObjectList<K>, leno_kube::Error>,
) -> Result<Vec<K>, leno_kube::Error> {
    let mut asked = asked.limit(PAGE);
    let mut found = Vec::new();
    loop {
        let page = list(&asked).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) if found.len() < most => asked = asked.continue_token(&token),
            _ => return Ok(found),
        }
    }
}

/// Deletes an object and waits until it is gone; returns whether it existed.
///
/// # Errors
/// The API server rejects the request, or the object is not gone within three minutes.
pub async fn delete(client: &Client, one: &ObjectReference) -> Result<bool, Error> {
    remove(client, one, None).await
}

/// Like [`delete`], but deletes only the object with this UID. An object that was created in its place stays.
///
/// # Errors
/// The errors of [`delete`].
pub async fn delete_exactly(
    client: &Client,
    one: &ObjectReference,
    uid: &str,
) -> Result<bool, Error> {
    remove(client, one, Some(uid)).await
}

async fn remove(client: &Client, one: &ObjectReference, uid: Option<&str>) -> Result<bool, Error> {
    let api = one.api(client);
    let only = |uid: &str| Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let background = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        preconditions: uid.map(only),
        ..DeleteParams::default()
    };
    match api.delete(&one.name, &background).await {
        Ok(_) => {}
        Err(error) if is_absent(&error) => return Ok(false),
        Err(error) if uid.is_some() && is_status(&error, 409) => return Ok(false),
        Err(error) => return Err(Error::api(format!("delete {}", one.said()))(error)),
    }
    let begin = Instant::now();
    loop {
        let there = api.get_opt(&one.name).await;
        let there = there.map_err(Error::api(format!("get {}", one.said())))?;
        let is_another =
            |there: DynamicObject| uid.is_some() && there.metadata.uid.as_deref() != uid;
        if there.is_none_or(is_another) {
            return Ok(true);
        }
        if begin.elapsed() > LIMIT {
            return Err(Error::Late(format!("{} was not removed", one.said()), LIMIT.as_secs()));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The first object with this kind and name in a text of YAML documents, decoded.
pub(crate) fn find<T: DeserializeOwned>(text: &str, kind: &str, name: &str) -> Option<T> {
    let wanted = |one: &Value| one["kind"] == kind && one["metadata"]["name"] == name;
    serde_json::from_value(documents(text).ok()?.into_iter().find(wanted)?).ok()
}

fn one(document: &Value) -> Result<ObjectReference, Error> {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let missing = || Error::Document(document.to_string());
    let api = text("/apiVersion").ok_or_else(missing)?;
    let (group, version) = api.split_once('/').unwrap_or(("", &api));
    Ok(ObjectReference {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: text("/kind").ok_or_else(missing)?,
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name").ok_or_else(missing)?,
    })
}

impl ObjectReference {
    /// The API client for objects of the same kind and namespace.
    #[must_use]
    pub fn api(&self, client: &Client) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(&self.group, &self.version, &self.kind);
        let resource = ApiResource::from_gvk(&kind);
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }

    /// The name of the object in messages.
    #[must_use]
    pub fn said(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// Whether an error means that the object does not exist.
#[must_use]
pub fn is_absent(error: &leno_kube::Error) -> bool {
    is_status(error, 404)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_installed_can_be_named() {
        let text = leno_charts::render(&leno_charts::Values::defaults(), "mesh").unwrap();
        let named = named(&text).unwrap();
        let said: Vec<String> = named.iter().map(ObjectReference::said).collect();
        assert_eq!(said[0], "Namespace mesh");
        for wanted in [
            "Deployment mesh/leno-controller",
            "ClusterRole leno-controller",
            "CustomResourceDefinition trafficpolicies.leno.dev",
        ] {
            assert!(said.iter().any(|one| one == wanted), "{wanted}: {said:?}");
        }
        let agent: k8s_openapi::api::apps::v1::DaemonSet =
            find(&text, "DaemonSet", "leno-agent").unwrap();
        assert!(agent.spec.unwrap().template.spec.is_some());
    }
}
