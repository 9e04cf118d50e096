//! Removes the proxy from a pod.

use crate::inject::{
    AGENT_ANNOTATIONS, DEFAULT_CONTAINER, PULL_SECRET, PULL_SECRETS, RECORD, each_container,
};
use crate::probes::{Probes, VARIABLE};
use crate::value::JsonValue;
use crate::{
    CONTAINER, IDENTITY_VOLUME, ROOTS, TOKEN_VOLUME, WORKLOAD_API_VOLUME, pre_stop, workload_api,
};

/// Why a proxy cannot be removed. The pod was not changed.
#[derive(Debug, thiserror::Error)]
pub enum UninjectError {
    /// The original probes cannot be read.
    #[error(
        "the variable {VARIABLE} of its proxy cannot be parsed, so its probes cannot be restored: \
         restore them by hand"
    )]
    Probes(#[source] serde_json::Error),
}

/// Undoes [`inject`](crate::inject()). Returns whether the pod was changed. A pod whose proxy was not injected,
/// and so has no record, is not changed.
///
/// # Errors
/// [`UninjectError`] if the fields that injection has written were changed since.
pub fn uninject(pod: &mut JsonValue) -> Result<bool, UninjectError> {
    let record = pod.at(&["metadata", "annotations", RECORD]).and_then(JsonValue::text);
    let Some(record) = record.map(str::to_owned) else { return Ok(false) };
    let made = |what: &str| record.split(',').any(|one| one == what);
    let mut bare = pod.clone();
    let Some(spec) = bare.get_mut("spec") else { return Ok(false) };
    let mut probes = probes(spec)?;
    for list in ["initContainers", "containers"] {
        without(spec, list, &[CONTAINER], made(list));
    }
    let volumes = [TOKEN_VOLUME, ROOTS, WORKLOAD_API_VOLUME, IDENTITY_VOLUME];
    without(spec, "volumes", &volumes, made("volumes"));
    let secrets = record.split(',').filter_map(|one| one.strip_prefix(PULL_SECRET));
    without(spec, PULL_SECRETS, &secrets.collect::<Vec<_>>(), made(PULL_SECRETS));
    let _: Result<(), std::convert::Infallible> = each_container(spec, |container| {
        probes.put_back(container);
        Ok(())
    });
    pre_stop::remove(spec, made);
    workload_api::remove(spec, made);

    if let Some(metadata) = bare.get_mut("metadata") {
        if let Some(annotations) = metadata.get_mut("annotations") {
            annotations.remove(RECORD);
            let ours = AGENT_ANNOTATIONS.into_iter();
            let ours = ours.chain([(DEFAULT_CONTAINER, "default-container")]);
            for (name, _) in ours.filter(|(_, what)| made(what)) {
                annotations.remove(name);
            }
            if made("annotations") && annotations.fields().is_empty() {
                metadata.remove("annotations");
            }
        }
        if made("metadata") && metadata.fields().is_empty() {
            bare.remove("metadata");
        }
    }
    *pod = bare;
    Ok(true)
}

/// The original probes, from the proxy's environment.
fn probes(spec: &JsonValue) -> Result<Probes, UninjectError> {
    let proxy = spec.containers().find(|one| one.name() == Some(CONTAINER));
    let variables = proxy.map_or(&[][..], |proxy| proxy.list("env"));
    let variable = variables.iter().find(|one| one.name() == Some(VARIABLE));
    match variable.and_then(|one| one.get("value")).and_then(JsonValue::text) {
        Some(text) => Probes::parse(text).map_err(UninjectError::Probes),
        None => Ok(Probes::default()),
    }
}

/// Removes the items with these names from a list. Removes the list itself if injection has added it.
fn without(spec: &mut JsonValue, field: &str, names: &[&str], made: bool) {
    let Some(JsonValue::List(items)) = spec.get_mut(field) else { return };
    let ours = |item: &JsonValue| item.name().is_some_and(|name| names.contains(&name));
    items.retain(|item| !ours(item));
    if made && items.is_empty() {
        spec.remove(field);
    }
}
