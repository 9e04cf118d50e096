//! Detects pods that can never become ready, and gives the reason in Kubernetes' words.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ContainerStateWaiting, ContainerStatus, Pod};
use leno_kube::ResourceExt as _;
use leno_operate::{statuses, unstartable};
use regex::Regex;

use super::names::CONTAINER;
use crate::pod_program::POD;

/// States of a waiting container that ended while or after it started. A mesh's container may end until another part of
/// the mesh runs; a container of the bench never should.
const ENDING: [&str; 3] = ["CreateContainerError", "RunContainerError", "CrashLoopBackOff"];
/// States of a waiting container of a mesh for which a temporary failure of the registry may be the cause.
const FETCHING: [&str; 2] = ["ErrImagePull", "RegistryUnavailable"];
/// How many characters of a container's output are shown, from its end.
const LAST: usize = 500;
/// How long containers of a mesh may repeatedly end, or fail to get their image.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a pod of the bench can never become ready.
pub(super) fn permanent_failure(pod: &Pod) -> Option<String> {
    let stuck = || unstartable(pod).map(|(container, waiting)| said(pod, container, waiting));
    refused(pod).or_else(|| ends(pod)).or_else(stuck)
}

/// Why a kubelet has rejected or evicted a pod. Such a pod has no containers whose states would
/// name the reason.
fn refused(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref().filter(|one| one.phase.as_deref() == Some("Failed"))?;
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("unknown");
    let reason = status.reason.as_deref().unwrap_or("Failed");
    let message = status.message.as_deref().unwrap_or("no message");
    let name = pod.name_any();
    Some(format!("pod {name} on node {node}: {reason}: {message}; make room on node {node}"))
}

/// Since when containers of a mesh have repeatedly ended; `None` if they do not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience(Option<Instant>);

impl Patience {
    /// Why a mesh with these pods will not become ready. A container that can never start is reported at once. A
    /// container that ends repeatedly is reported after a minute.
    pub(super) fn ends_with(&mut self, pods: &[Pod], now: Instant) -> Option<String> {
        let stuck: Vec<_> = pods.iter().filter_map(|pod| Some((pod, unstartable(pod)?))).collect();
        let is_fetched = |waiting: &ContainerStateWaiting| {
            waiting.reason.as_deref().is_some_and(|reason| FETCHING.contains(&reason))
        };
        let first = |fetched: bool| {
            let mut such = stuck.iter().filter(|(_, (_, waiting))| is_fetched(waiting) == fetched);
            such.next().map(|(pod, (container, waiting))| said(pod, container, waiting))
        };
        if let Some(why) = first(false) {
            return Some(why);
        }
        let ending = || pods.iter().find_map(ends);
        let Some(why) = first(true).or_else(ending) else {
            self.0 = None;
            return None;
        };
        let since = *self.0.get_or_insert(now);
        (now.duration_since(since) >= PATIENCE).then_some(why)
    }
}

/// The message about the first container of a pod that ends repeatedly.
fn ends(pod: &Pod) -> Option<String> {
    statuses(pod).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        ENDING.contains(&reason).then(|| said(pod, container, waiting))
    })
}

fn said(of: &Pod, container: &ContainerStatus, waiting: &ContainerStateWaiting) -> String {
    let (pod, name, image) = (of.name_any(), &container.name, &container.image);
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let message = waiting.message.as_deref().unwrap_or("no message");
    let (ended, what) = (ended(container), what_names(of, name));
    format!("container {name} of pod {pod}, image {image}: {reason}: {message}{ended}{what}")
}

/// The last output of a container that ended, if it is known.
fn ended(container: &ContainerStatus) -> String {
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let Some(last) = last else { return String::new() };
    let text = plain(last.message.as_deref().unwrap_or_default());
    let from = text.char_indices().rev().nth(LAST - 1).map_or(0, |(at, _)| at);
    let words = if text.is_empty() { "nothing" } else { &text[from..] };
    format!("; it ended with code {}, and said: {words}", last.exit_code)
}

/// Removes line breaks and colours from a text.
fn plain(text: &str) -> String {
    // A control sequence (ECMA-48, 5.4) ends with the first character of this range.
    let sequences = Regex::new(r"\x1b\[[^@-~]*[@-~]?").expect("a test uses it");
    let text = sequences.replace_all(text, "");
    let words = text.split(|c: char| c.is_control() || c.is_whitespace());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Which option sets the image of a container of the bench.
fn what_names(pod: &Pod, container: &str) -> &'static str {
    if container != CONTAINER {
        return "";
    }
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let arguments = containers.filter(|one| one.name == container).flat_map(|one| &one.args);
    let arguments: Vec<&str> = arguments.flatten().map(String::as_str).collect();
    // A pod with other arguments belongs to the real application.
    if matches!(arguments[..], [POD] | ["serve", "--listen", ..]) {
        "; --image names one that the nodes can fetch or have, with leno-bench as its entrypoint"
    } else {
        "; the file of --application names it, and what it is told"
    }
}

/// What a pod is waiting for, in Kubernetes' words.
pub(super) fn waits_for(pod: &Pod) -> Option<String> {
    let name = pod.name_any();
    let waiting = statuses(pod).find_map(|one| {
        let reason = one.state.as_ref()?.waiting.as_ref()?.reason.clone()?;
        Some(format!("{}: {reason}", one.name))
    });
    let condition = || {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().find(|one| one.status == "False")?.message.clone()
    };
    Some(format!("pod {name}: {}", waiting.or_else(condition)?))
}

#[cfg(test)]
mod tests {
    use leno_operate::is_ready;
    use serde_json::json;

    use super::*;

    fn waiting(container: &str, reason: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "s0"},
            "spec": {"containers": [{"name": container, "image": "i", "args": ["serve", "--listen"]}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "False", "message": "not ready"}],
                "containerStatuses": [{"name": container, "image": "i", "imageID": "", "ready": false,
                    "restartCount": 0,
                    "state": {"waiting": {"reason": reason, "message": "no such host"}}}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_permanent_failure_of_a_pod_is_reported_at_once() {
        let why = permanent_failure(&waiting(CONTAINER, "ErrImagePull")).unwrap();
        assert!(
            why.starts_with("container bench of pod s0, image i: ErrImagePull: no such host"),
            "{why}"
        );
        assert!(why.contains("--image"), "{why}");
        let proxy = permanent_failure(&waiting("leno-proxy", "CrashLoopBackOff")).unwrap();
        assert!(!proxy.contains("--image"), "{proxy}");
        let mut real = waiting(CONTAINER, "CrashLoopBackOff");
        real.spec.as_mut().unwrap().containers[0].args = None;
        let last = json!({"terminated": {"exitCode": 2, "message": format!("{}no such file\n", "é".repeat(600))}});
        let status = &mut real.status.as_mut().unwrap().container_statuses.as_mut().unwrap()[0];
        status.last_state = serde_json::from_value(last).unwrap();
        let why = permanent_failure(&real).unwrap();
        let said =
            format!("; it ended with code 2, and said: {}no such file; the file", "é".repeat(488));
        assert!(why.contains(&said) && !why.contains("--image"), "{why}");
        let pod = waiting(CONTAINER, "ContainerCreating");
        assert_eq!((permanent_failure(&pod), is_ready(&pod)), (None, false));
        assert_eq!(waits_for(&pod).unwrap(), "pod s0: bench: ContainerCreating");
    }

    #[test]
    fn the_last_output_is_one_line_without_colours() {
        let said = "\u{1b}[1;31mError\u{1b}[0m: no db\n\tat A.b(A.java:1)\r\n\tat é\u{7}\n\u{1b}";
        assert_eq!(plain(said), "Error: no db at A.b(A.java:1) at é");
        assert_eq!((plain("\n"), plain("\u{1b}[31")), (String::new(), String::new()));
    }

    #[test]
    fn a_pod_that_its_kubelet_refused_is_reported_with_the_remedy() {
        let pod = |phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "watch-0"},
                "spec": {"nodeName": "n1", "containers": []},
                "status": {"phase": phase, "reason": "OutOfpods", "message": "Node didn't have enough resource: pods"},
            }))
            .unwrap()
        };
        let why = permanent_failure(&pod("Failed")).unwrap();
        let wanted = "pod watch-0 on node n1: OutOfpods: Node didn't have enough resource: pods; make room on node n1";
        assert_eq!(why, wanted);
        assert_eq!(permanent_failure(&pod("Pending")), None);
    }

    #[test]
    fn a_container_that_cannot_start_is_reported_at_once_and_one_that_keeps_ending_later() {
        let mut patience = Patience::default();
        let begin = Instant::now();
        let mut look = |reason: &str, after: Duration| {
            patience.ends_with(&[waiting("agent", reason)], begin + after)
        };
        for reason in [
            "ErrImageNeverPull",
            "ImagePullBackOff",
            "InvalidImageName",
            "CreateContainerConfigError",
        ] {
            let why = look(reason, Duration::ZERO).unwrap();
            assert!(why.starts_with("container agent of pod s0, image i: "), "{why}");
            assert!(why.contains(reason) && why.contains("no such host"), "{why}");
        }
        assert_eq!(look("CrashLoopBackOff", Duration::ZERO), None);
        assert_eq!(look("ContainerCreating", PATIENCE), None, "it begins once more");
        assert_eq!(look("CrashLoopBackOff", PATIENCE), None);
        assert_eq!(look("ErrImagePull", PATIENCE * 3 / 2), None, "it goes on");
        assert!(look("CrashLoopBackOff", PATIENCE * 2).is_some());
    }
}
