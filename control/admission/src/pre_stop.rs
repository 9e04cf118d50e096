//! A `preStop` hook for the containers of an application. It delays their end until all proxies know that the pod is
//! ending.
//!
//! The kubelet signals containers as soon as it learns that their pod was deleted, which is also when the control plane
//! learns it. A hook that sleeps runs in the kubelet, and needs no process in the container (KEP-3960).

use crate::settings::{ContainerShape, InjectionSettings};
use crate::value::JsonValue;

/// Prefix, in the record of an injection, of the name of a container to which the hook was added.
const RECORDED: &str = "pre-stop=";
/// The same for a container to which the map `lifecycle` was added as well.
const RECORDED_WITH_MAP: &str = "lifecycle=";
/// Kubernetes' own default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_S: i64 = 30;

/// Adds the hook to containers without one, and returns the entries for the record. The pod's grace period includes the
/// hooks, so it must be longer.
pub(crate) fn add(spec: &mut JsonValue, settings: &InjectionSettings) -> Vec<String> {
    let seconds = settings.pre_stop_sleep;
    let grace = spec.get("terminationGracePeriodSeconds").and_then(JsonValue::number);
    let fits = i64::from(seconds) < grace.unwrap_or(DEFAULT_GRACE_S);
    // Ordinary containers end in no order, so the hook would not help.
    if seconds == 0 || !fits || settings.shape == ContainerShape::Container {
        return Vec::new();
    }
    let mut recorded = Vec::new();
    let Some(JsonValue::List(containers)) = spec.get_mut("containers") else { return recorded };
    for container in containers {
        let name = container.name().unwrap_or_default().to_owned();
        let hook = || JsonValue::from([("sleep", JsonValue::from([("seconds", seconds.into())]))]);
        match container.get_mut("lifecycle") {
            None => {
                container.set("lifecycle", JsonValue::from([("preStop", hook())]));
                recorded.push(RECORDED_WITH_MAP.to_owned() + &name);
            }
            Some(lifecycle @ JsonValue::Map(_)) if lifecycle.get("preStop").is_none() => {
                lifecycle.set("preStop", hook());
                recorded.push(RECORDED.to_owned() + &name);
            }
            Some(_) => {}
        }
    }
    recorded
}

/// Removes the hooks that injection has added, by its record.
pub(crate) fn remove(spec: &mut JsonValue, made: impl Fn(&str) -> bool) {
    let Some(JsonValue::List(containers)) = spec.get_mut("containers") else { return };
    for container in containers {
        let name = container.name().unwrap_or_default().to_owned();
        if made(&(RECORDED_WITH_MAP.to_owned() + &name)) {
            container.remove("lifecycle");
        } else if made(&(RECORDED.to_owned() + &name))
            && let Some(lifecycle) = container.get_mut("lifecycle")
        {
            lifecycle.remove("preStop");
        }
    }
}
