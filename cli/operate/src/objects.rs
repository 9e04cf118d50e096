//! Objects of any kind, as the chart's documents name them.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// One object that a document names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

/// The objects of a text of YAML documents, in their order.
pub(crate) fn named(text: &str) -> Result<Vec<Named>, Error> {
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(text).map_err(|error| Error::Document(error.to_string()))?;
    documents.iter().filter(|one| !one.is_null()).map(one).collect()
}

/// One object of a text of YAML documents, typed.
pub(crate) fn find<T: DeserializeOwned>(text: &str, kind: &str, name: &str) -> Option<T> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).ok()?;
    let wanted = |one: &Value| one["kind"] == kind && one["metadata"]["name"] == name;
    serde_json::from_value(documents.into_iter().find(wanted)?).ok()
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
    pub(crate) fn api(&self, client: &Client) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk(&self.group, &self.version, &self.kind);
        let resource = ApiResource::from_gvk(&kind);
        match &self.namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        }
    }

    /// As people name it.
    pub(crate) fn said(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// Whether an error says that there is no such thing.
pub(crate) fn is_absent(error: &kube::Error) -> bool {
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
