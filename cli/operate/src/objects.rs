//! Objects of any kind, as the chart's documents name them.

use std::time::{Duration, Instant};

use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    Preconditions, PropagationPolicy,
};
use kube::core::ObjectList;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// Longest wait for an object to go: namespaces empty within it.
const LIMIT: Duration = Duration::from_secs(180);
/// Longest wait for a kind that was just defined to be served.
const SERVED: Duration = Duration::from_secs(30);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(300);

/// Objects of one answer of the API server.
const PAGE: u32 = 500;

/// One object that a document names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The group of its kind; empty for those of Kubernetes' core.
    pub group: String,
    /// The version of that group.
    pub version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; none where it is the cluster's.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
}

/// The objects that a text of YAML documents names, in their order.
///
/// # Errors
/// Where the text is not YAML, or one of its documents names no object.
pub fn named(text: &str) -> Result<Vec<Named>, Error> {
    documents(text)?.iter().map(one).collect()
}

/// The documents of a text of YAML.
///
/// # Errors
/// Where it is not YAML.
pub fn documents(text: &str) -> Result<Vec<Value>, Error> {
    let all: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| Error::Document(error.to_string()))?;
    Ok(all.into_iter().filter(|one| !one.is_null()).collect())
}

/// Applies an object as `kubectl apply --server-side --force-conflicts` does, as `who`, and gives back what is
/// stored. A kind whose definition was applied just before is waited for.
///
/// # Errors
/// Where the document names no object, or the API server does not take it.
pub async fn apply(client: &Client, document: &Value, who: &str) -> Result<Value, Error> {
    let named = one(document)?;
    let api = named.api(client);
    let params = PatchParams::apply(who).force();
    let begin = Instant::now();
    loop {
        match api.patch(&named.name, &params, &Patch::Apply(document)).await {
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

/// Whether a kind is there in every cluster, so that there is nothing to wait for.
fn is_core(named: &Named) -> bool {
    named.group.is_empty() || !named.group.contains('.') || named.group.ends_with(".k8s.io")
}

/// All that a list has, asked for by pages: those of the page that reaches `most` are the last.
///
/// # Errors
/// Of the page that is not given.
pub async fn paged<K: Clone>(
    asked: ListParams,
    most: usize,
    list: impl AsyncFn(&ListParams) -> Result<ObjectList<K>, kube::Error>,
) -> Result<Vec<K>, kube::Error> {
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

/// Removes an object and waits until it is gone; whether it was there.
///
/// # Errors
/// Where the API server does not do it, or it does not go within three minutes.
pub async fn delete(client: &Client, one: &Named) -> Result<bool, Error> {
    remove(client, one, None).await
}

/// As [`delete`], and only the object of this UID: one that somebody else has made in its place stays.
///
/// # Errors
/// As [`delete`].
pub async fn delete_exactly(client: &Client, one: &Named, uid: &str) -> Result<bool, Error> {
    remove(client, one, Some(uid)).await
}

async fn remove(client: &Client, one: &Named, uid: Option<&str>) -> Result<bool, Error> {
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
        Err(kube::Error::Api(status)) if uid.is_some() && status.code == 409 => return Ok(false),
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
            return Err(Error::Late(format!("{} does not go", one.said()), LIMIT.as_secs()));
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// One object of a text of YAML documents, typed.
pub(crate) fn find<T: DeserializeOwned>(text: &str, kind: &str, name: &str) -> Option<T> {
    let wanted = |one: &Value| one["kind"] == kind && one["metadata"]["name"] == name;
    serde_json::from_value(documents(text).ok()?.into_iter().find(wanted)?).ok()
}

fn one(document: &Value) -> Result<Named, Error> {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let missing = || Error::Document(document.to_string());
    let api = text("/apiVersion").ok_or_else(missing)?;
    let (group, version) = api.split_once('/').unwrap_or(("", &api));
    Ok(Named {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: text("/kind").ok_or_else(missing)?,
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name").ok_or_else(missing)?,
    })
}

impl Named {
    /// The way to objects of its kind and namespace.
    #[must_use]
    pub fn api(&self, client: &Client) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(&self.group, &self.version, &self.kind);
        let resource = ApiResource::from_gvk(&kind);
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }

    /// As people name it.
    #[must_use]
    pub fn said(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// Whether an error says that there is no such thing.
#[must_use]
pub fn is_absent(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_installed_can_be_named() {
        let text = leno_charts::render(&leno_charts::Values::defaults(), "mesh").unwrap();
        let named = named(&text).unwrap();
        let said: Vec<String> = named.iter().map(Named::said).collect();
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
