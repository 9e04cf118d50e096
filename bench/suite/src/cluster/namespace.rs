//! Deletes the namespaces of the suite.

use anyhow::{Result, bail, ensure};
use k8s_openapi::api::core::v1::Namespace;
use leno_kube::{Api, Client, ResourceExt as _};
use leno_operate::{Error, ObjectReference};

use super::names::MANAGED;

/// Deletes a namespace of the suite with everything in it, and waits until it is gone. Harmless if it does not exist,
/// or if another user has since created a namespace of the same name.
///
/// # Errors
/// If the namespace is not gone in time, with the obstacle in Kubernetes' words; or if it is not the suite's own.
pub(super) async fn delete(client: &Client, namespace: &str) -> Result<()> {
    let Some(there) = get(client, namespace).await? else { return Ok(()) };
    ensure!(
        there.labels().get(MANAGED.0).map(String::as_str) == Some(MANAGED.1),
        "namespace {namespace} does not belong to the bench (it has no label {}={}): it stays",
        MANAGED.0,
        MANAGED.1
    );
    delete_exactly(client, &there).await
}

/// The namespace of this name; `None` if there is none.
pub(super) async fn get(client: &Client, name: &str) -> Result<Option<Namespace>, Error> {
    let all: Api<Namespace> = Api::all(client.clone());
    all.get_opt(name).await.map_err(Error::api(format!("get Namespace {name}")))
}

/// Like [`delete`], but for exactly this namespace and not for a new one of the same name.
pub(super) async fn delete_exactly(client: &Client, there: &Namespace) -> Result<()> {
    let name = there.name_any();
    let one = ObjectReference {
        group: String::new(),
        version: "v1".to_owned(),
        kind: "Namespace".to_owned(),
        namespace: None,
        name: name.clone(),
    };
    match leno_operate::delete_exactly(client, &one, &there.uid().unwrap_or_default()).await {
        Err(error @ Error::Late(..)) => {
            let why = held_up(client, &name).await;
            bail!(
                "{error}: {}; remove it by hand",
                why.unwrap_or_else(|| "its status has no reason".into())
            )
        }
        other => Ok(other.map(drop)?),
    }
}

/// Why a namespace is not deleted yet, from its conditions.
async fn held_up(client: &Client, namespace: &str) -> Option<String> {
    let conditions = get(client, namespace).await.ok()??.status?.conditions?;
    let bad = conditions.into_iter().filter(|one| one.status == "True");
    let said: Vec<String> = bad.filter_map(|one| one.message).collect();
    (!said.is_empty()).then(|| said.join("; "))
}
