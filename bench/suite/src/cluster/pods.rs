//! What is read from the API server's description of pods: containers, images and nodes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::names::CONTAINER;
use super::roles::running;

/// The running containers of a pod, including native sidecars, with their images.
pub(super) fn containers(pod: &Pod) -> impl Iterator<Item = (String, String)> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| {
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|one| one.restart_policy.as_deref() == Some("Always"));
        let all = spec.containers.iter().chain(sidecars);
        all.map(|one| (one.name.clone(), one.image.clone().unwrap_or_default()))
    })
}

/// The ID of the image that the node runs for a pod of the bench.
pub(super) fn image_id(pod: &Pod) -> Option<String> {
    let mut all = leno_operate::statuses(pod);
    let own = all.find(|status| status.name == CONTAINER)?;
    (!own.image_id.is_empty()).then(|| own.image_id.clone())
}

/// The nodes of these pods of a control plane: first those to watch, then those that cannot be watched because the node
/// is not Ready or the pod is being deleted. A pod without running containers uses no resources and is skipped.
pub(super) fn nodes_of(
    pods: &[Pod],
    ready: &BTreeSet<String>,
) -> (BTreeSet<String>, BTreeSet<String>) {
    let runs = |pod: &&Pod| running(pod).next().is_some();
    let (mut watched, mut others) = (BTreeSet::new(), BTreeSet::new());
    for pod in pods.iter().filter(runs) {
        let Some(node) = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()) else {
            continue;
        };
        let stays = pod.metadata.deletion_timestamp.is_none() && ready.contains(&node);
        if stays { &mut watched } else { &mut others }.insert(node);
    }
    (watched, others)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_control_plane_is_watched_on_ready_nodes() {
        let pod = |node: &str, state: &str, goes: bool| -> Pod {
            let mut pod = json!({"metadata": {"name": "istiod"}, "spec": {"nodeName": node, "containers": []},
                "status": {"containerStatuses": [{"name": "discovery", "image": "", "imageID": "",
                    "ready": true, "restartCount": 0, "state": {state: {}}}]}});
            if goes {
                pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
            }
            if state == "terminated" {
                pod["status"]["containerStatuses"][0]["state"][state] = json!({"exitCode": 0});
            }
            serde_json::from_value(pod).unwrap()
        };
        let pods = [
            pod("n1", "running", false),
            pod("n2", "terminated", false),
            pod("n3", "waiting", false),
            pod("n4", "running", true),
            pod("dead", "running", false),
            pod("dead2", "running", true),
        ];
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let ready: BTreeSet<String> = set(&["n1", "n2", "n3", "n4"]);
        assert_eq!(nodes_of(&pods, &ready), (set(&["n1"]), set(&["dead", "dead2", "n4"])));
    }

    #[test]
    fn native_sidecars_run_and_init_containers_do_not() {
        let pod: Pod = serde_json::from_value(json!({"spec": {
            "containers": [{"name": "bench", "image": "a"}],
            "initContainers": [{"name": "init", "image": "b"},
                {"name": "leno-proxy", "image": "c", "restartPolicy": "Always"}],
        }}))
        .unwrap();
        let names: Vec<String> = containers(&pod).map(|(name, _)| name).collect();
        assert_eq!(names, ["bench", "leno-proxy"]);
    }

    #[test]
    fn the_image_of_a_pod_is_the_one_on_its_node() {
        let of = |id: &str| -> Pod {
            let status = |name: &str, id: &str| json!({"name": name, "image": "a:1", "imageID": id, "ready": true, "restartCount": 0});
            let all = [status("leno-proxy", "b@sha256:2"), status(CONTAINER, id)];
            serde_json::from_value(json!({"status": {"containerStatuses": all}})).unwrap()
        };
        assert_eq!(image_id(&of("a@sha256:1")).as_deref(), Some("a@sha256:1"));
        assert_eq!(image_id(&of("")), None, "it is not known yet");
    }
}
