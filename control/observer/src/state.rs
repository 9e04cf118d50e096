//! Derives the state of a cluster's mesh from its pods.

use std::collections::{BTreeMap, BTreeSet};

use leno_dashboard::api::{ControlPlane, MeshState, Unready};
use leno_observe::stat::MeshGrowth;

use crate::scrape::NamedPod;

/// How long after its creation a pod that is not ready still counts as starting, and not as faulty.
const STARTS_MS: u64 = 60_000;

/// The state of the mesh according to its pods. `namespace` is the control plane's.
pub(crate) fn state(pods: &[NamedPod], namespace: &str, now_ms: u64) -> MeshState {
    let meshed = || pods.iter().filter(|(_, pod)| pod.meshed && !pod.ending);
    let is_controller =
        |(_, pod): &&NamedPod| pod.is_controller && pod.namespace == namespace && !pod.ending;
    let control_plane = match pods.iter().filter(is_controller).any(|(_, pod)| pod.ready) {
        true => ControlPlane::Running,
        false if meshed().next().is_none() => ControlPlane::NotNeeded,
        false => ControlPlane::Away,
    };
    let mut instances: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for (workload, pod) in meshed() {
        *instances.entry((&pod.namespace, workload)).or_default() += 1;
    }
    let unready = |named: &NamedPod| {
        let (workload, pod) = named;
        let reason = match pod.trouble.is_empty() {
            true => "not ready".to_owned(),
            false => pod.trouble.clone(),
        };
        Unready {
            namespace: pod.namespace.clone(),
            workload: workload.to_string(),
            instance: pod.name.clone(),
            reason,
            of: instances.get(&(&*pod.namespace, &**workload)).copied().unwrap_or(1),
            starting: is_starting(named, now_ms),
        }
    };
    MeshState {
        control_plane,
        unready: meshed().filter(|(_, pod)| !pod.ready).map(unready).collect(),
        ..MeshState::default()
    }
}

/// The proxies that did not answer although their pods are ready.
pub(crate) fn silent(growth: &MeshGrowth, pods: &[NamedPod]) -> Vec<String> {
    let ready = pods.iter().filter(|(_, pod)| pod.ready && !pod.ending);
    let ready: BTreeSet<(&str, &str)> =
        ready.map(|(_, pod)| (&*pod.namespace, &*pod.name)).collect();
    let is_ready = |line: &&String| {
        let name = line.split_once(':').map_or(&***line, |(name, _)| name);
        name.split_once('/').is_some_and(|name| ready.contains(&name))
    };
    growth.silent.iter().filter(is_ready).cloned().collect()
}

/// Whether a pod takes no traffic only because it was just created.
fn is_starting((_, pod): &NamedPod, now_ms: u64) -> bool {
    let made_ms = u64::try_from(pod.created_s).unwrap_or_default() * 1000;
    !pod.has_failed && made_ms.saturating_add(STARTS_MS) > now_ms
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::pods::ObservedPod;
    use crate::pods::tests::{in_mesh, pod};

    fn named(pods: Vec<ObservedPod>) -> Vec<NamedPod> {
        pods.into_iter().map(|pod| (pod.owner.name.as_str().into(), in_mesh(pod))).collect()
    }

    #[test]
    fn a_workload_is_as_ready_as_its_pods() {
        let ready = |ready: &str| json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
        let mut young = pod("web-7d9-c", ready("False"));
        young.created_s = 1_000;
        let mut gone = pod("web-7d9-d", ready("False"));
        gone.ending = true;
        let pods =
            vec![pod("web-7d9-a", ready("True")), pod("web-7d9-b", ready("False")), young, gone];
        let seen = state(&named(pods.clone()), "leno-system", 1_010_000);
        let rows: Vec<_> =
            seen.unready.iter().map(|one| (&*one.instance, one.of, one.starting)).collect();
        assert_eq!(rows, [("web-7d9-b", 3, false), ("web-7d9-c", 3, true)]);
        assert_eq!(seen.control_plane, ControlPlane::Away);
        let mut controller = pod("leno-controller-a", ready("True"));
        (controller.is_controller, controller.sidecar) = (true, false);
        let with = |namespace: &str| {
            let mut pods = pods.clone();
            controller.clone_into(pods.last_mut().unwrap());
            pods.last_mut().unwrap().namespace = namespace.to_owned();
            state(&named(pods), "leno-system", 0).control_plane
        };
        assert_eq!(with("leno-system"), ControlPlane::Running);
        assert_eq!(with("shop"), ControlPlane::Away, "a pod with that label elsewhere is none");
        assert_eq!(state(&[], "leno-system", 0).control_plane, ControlPlane::NotNeeded);
    }

    #[test]
    fn a_proxy_that_starts_is_not_silent() {
        let ready = |ready: &str| json!({"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]});
        let pods = named(vec![pod("web-a", ready("True")), pod("web-b", ready("False"))]);
        let silent_lines = ["shop/web-a: timed out", "shop/web-b: timed out", "shop/web-c: gone"];
        let growth =
            MeshGrowth { silent: silent_lines.map(str::to_owned).into(), ..MeshGrowth::default() };
        assert_eq!(silent(&growth, &pods), ["shop/web-a: timed out"]);
    }
}
