//! A `preStop` hook for the containers of an application, by which all proxies know of a pod's end before the application does.
//!
//! The kubelet signals containers when it learns that their pod was deleted, which is when the control plane learns it.
//! A hook that sleeps runs in the kubelet, and takes no process in the container (KEP-3960).

use crate::settings::{ContainerShape, InjectionSettings};
use crate::value::JsonValue;

/// In the record of an injection, before the name of a container that has the hook from it.
const RECORDED: &str = "pre-stop=";
/// The same for a container whose map `lifecycle` was made for it.
const RECORDED_WITH_MAP: &str = "lifecycle=";
/// Kubernetes' own default of `terminationGracePeriodSeconds`.
const DEFAULT_GRACE_S: i64 = 30;

/// Adds the hook to containers without one, and returns what uninjection has to know. The pod's grace period, in which
/// hooks run, has to be longer.
pub(crate) fn add(spec: &mut JsonValue, settings: &InjectionSettings) -> Vec<String> {
    let seconds = settings.pre_stop_sleep;
    let grace = spec.get("terminationGracePeriodSeconds").and_then(JsonValue::number);
    let fits = i64::from(seconds) < grace.unwrap_or(DEFAULT_GRACE_S);
    // An ordinary container has no order of ends in which the hook would help.
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

/// Removes the hooks that injection has made, as its record says.
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
