//! Adds to a pod what its containers need to use the SPIFFE Workload API that its proxy serves.

use crate::WORKLOAD_API_VOLUME;
use crate::inject::each_container;
use crate::value::JsonValue;

/// The annotation that makes a pod's proxy serve the Workload API.
pub(crate) use leno_resources::WORKLOAD_API_ANNOTATION as ANNOTATION;
/// The valid values of the annotation.
pub(crate) const VALUES: [&str; 2] = [ENABLED, "disabled"];
pub(crate) const ENABLED: &str = "enabled";
/// The mount point of the socket's folder in all containers.
pub(crate) const FOLDER: &str = "/run/leno/workload-api";
/// The name of the socket in that folder.
pub(crate) const SOCKET: &str = "api.sock";
/// The environment variable in which SPIFFE clients find the address of the API.
const VARIABLE: &str = "SPIFFE_ENDPOINT_SOCKET";

/// The prefix of an entry in the record of an injection: the folder was mounted in the container with the name
/// that follows.
const MOUNTED: &str = "workload-api=";
/// As [`MOUNTED`], for a container to which the variable was added.
const TOLD: &str = "workload-api-socket=";
/// As [`MOUNTED`], for a container to which one of these lists was added.
const LISTS: [(&str, &str); 2] =
    [("volumeMounts", "workload-api-mounts="), ("env", "workload-api-env=")];

/// Whether the annotation of a pod makes its proxy serve the API.
///
/// # Errors
/// Why the value is invalid.
pub(crate) fn is_enabled(value: &JsonValue) -> Result<bool, String> {
    match value.text().filter(|text| VALUES.contains(text)) {
        Some(text) => Ok(text == ENABLED),
        None => Err(format!("{} is not one of {}", crate::inject::said(value), VALUES.join(", "))),
    }
}

/// Whether the pod has the annotation, which takes precedence over that of its namespace.
pub(crate) fn is_said_by(pod: &JsonValue) -> bool {
    pod.at(&["metadata", "annotations", ANNOTATION]).is_some()
}

/// The volume that contains the socket. It is in memory, because a socket needs no space.
pub(crate) fn volume() -> JsonValue {
    let source = JsonValue::from([("medium", "Memory".into())]);
    [("name", WORKLOAD_API_VOLUME.into()), ("emptyDir", source)].into()
}

/// The mount with which the proxy creates the socket in that volume.
pub(crate) fn proxy_mount() -> JsonValue {
    [("name", WORKLOAD_API_VOLUME.into()), ("mountPath", FOLDER.into())].into()
}

/// Adds the folder and the variable to each container that lacks them, and returns the entries for the record. A
/// mount or variable that a container already has is kept.
pub(crate) fn add(spec: &mut JsonValue) -> Vec<String> {
    let mut recorded = Vec::new();
    let _: Result<(), std::convert::Infallible> = each_container(spec, |container| {
        let name = container.name().unwrap_or_default().to_owned();
        let mount: JsonValue = [
            ("name", WORKLOAD_API_VOLUME.into()),
            ("mountPath", FOLDER.into()),
            ("readOnly", true.into()),
        ]
        .into();
        let address = format!("unix://{FOLDER}/{SOCKET}");
        let variable: JsonValue = [("name", VARIABLE.into()), ("value", address.into())].into();
        let additions = [(mount, WORKLOAD_API_VOLUME, MOUNTED), (variable, VARIABLE, TOLD)];
        for ((list, made), (added, of_name, what)) in LISTS.into_iter().zip(additions) {
            if container.list(list).iter().any(|one| one.name() == Some(of_name)) {
                continue;
            }
            let (items, new) = container.list_in(list);
            items.push(added);
            recorded.push(what.to_owned() + &name);
            if new {
                recorded.push(made.to_owned() + &name);
            }
        }
        Ok(())
    });
    recorded
}

/// Removes from the containers what injection has added, according to its record.
pub(crate) fn remove(spec: &mut JsonValue, made: impl Fn(&str) -> bool) {
    let _: Result<(), std::convert::Infallible> = each_container(spec, |container| {
        let name = container.name().unwrap_or_default().to_owned();
        for ((list, new), (of_name, what)) in
            LISTS.into_iter().zip([(WORKLOAD_API_VOLUME, MOUNTED), (VARIABLE, TOLD)])
        {
            if !made(&(what.to_owned() + &name)) {
                continue;
            }
            if let Some(JsonValue::List(items)) = container.get_mut(list) {
                items.retain(|one| one.name() != Some(of_name));
                if items.is_empty() && made(&(new.to_owned() + &name)) {
                    container.remove(list);
                }
            }
        }
        Ok(())
    });
}
