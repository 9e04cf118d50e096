//! Whether a namespace is there, for a word that is mistyped must not look like one where nothing is; and what
//! namespaces say of their pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use leno_resources::CAPTURE_ANNOTATION;
use leno_types::nearest;

use crate::Error;
use crate::objects::paged;

/// Most namespaces among which one is looked for that was meant.
const KNOWN: u32 = 500;

/// Checks that a namespace is there, as far as whoever asks may know.
///
/// # Errors
/// [`Error::NoNamespace`] where it is not, and where the API server does not answer.
pub(crate) async fn check(client: &Client, wanted: &str) -> Result<(), Error> {
    let all: Api<Namespace> = Api::all(client.clone());
    let found = all.get_opt(wanted).await.map_err(Error::api(format!("get Namespace {wanted}")));
    match found {
        Ok(Some(_)) => Ok(()),
        Ok(None) => {
            // It is only a hint, and the right to it may be missing.
            let known = all.list_metadata(&ListParams::default().limit(KNOWN)).await;
            let known = known.map(|list| list.items).unwrap_or_default();
            let known: Vec<String> =
                known.into_iter().filter_map(|one| one.metadata.name).collect();
            Err(none(wanted, known.iter().map(String::as_str)))
        }
        // Pods of a namespace may be listed without the right to see the namespace itself.
        Err(error) if error.is_forbidden() => Ok(()),
        Err(error) => Err(error),
    }
}

/// What namespaces say of how their pods are captured, by their names; a label counts before an annotation.
///
/// # Errors
/// Where they cannot be listed.
pub async fn captures(client: &Client) -> Result<BTreeMap<String, String>, Error> {
    let all: Api<Namespace> = Api::all(client.clone());
    let list = async |asked: &ListParams| all.list_metadata(asked).await;
    let found = paged(ListParams::default(), usize::MAX, list).await;
    let capture = |one: PartialObjectMeta<Namespace>| {
        let maps = [one.metadata.labels, one.metadata.annotations];
        let said = maps.into_iter().flatten().find_map(|mut map| map.remove(CAPTURE_ANNOTATION));
        one.metadata.name.zip(said)
    };
    Ok(found.map_err(Error::api("list namespaces"))?.into_iter().filter_map(capture).collect())
}

/// That there is none, with the one of `known` that may have been meant.
pub(crate) fn none<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let hint = match nearest(wanted, known) {
        Some(meant) => format!(": did you mean {meant}?"),
        None => ": kubectl get namespaces has those that there are".to_owned(),
    };
    Error::NoNamespace(wanted.to_owned(), hint)
}
