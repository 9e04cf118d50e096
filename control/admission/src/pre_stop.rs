//! A `preStop` hook for the containers of an application. The hook delays the end of a container until all proxies
//! have been informed that the pod is ending.
//!
//! Without the hook, the kubelet would signal containers as soon as their pod is deleted. At that time the control
//! plane is informed as well, and proxies would still send requests to the pod. A hook that sleeps runs in the
//! kubelet, and needs no process in the container (KEP-3960).

use crate::settings::{ContainerShape, InjectionSettings};
use crate::value::JsonValue;

/// The prefix of an entry in the record of an injection: the hook was added to the container with the name that
/// follows.
const RECORDED: &str = "pre-stop=";
/// As [`RECORDED`], for a container to which the map `lifecycle` was added as well.
const RECORDED_WITH_MAP: &str = "lifecycle=";
/// Kubernetes' own default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_S: i64 = 30;

/// Adds the hook to containers without one, and returns the entries for the record. Adds no hook if it would use
/// up the pod's grace period, which includes the time of the hooks.
pub(crate) fn add(spec: &mut JsonValue, settings: &InjectionSettings) -> Vec<String> {
    let seconds = settings.pre_stop_sleep;
    let grace = spec.get("terminationGracePeriodSeconds").and_then(JsonValue::number);
    let fits = i64::from(seconds) < grace.unwrap_or(DEFAULT_GRACE_S);
    // If the proxy is an ordinary container, it ends at the same time as the others, so the hook would not help.
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

/// Removes the hooks that injection has added, according to its record.
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
