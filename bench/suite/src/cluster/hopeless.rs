//! Pods that will not be ready, however long they are waited for: why, in Kubernetes' words.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use leno_operate::{statuses, unstartable};

use super::manifests::CONTAINER;

/// Why a container waits that has begun, or was about to, and ended: one of a mesh may do so until another part of it
/// is there, one of the bench's own never should.
const ENDING: [&str; 3] = ["CreateContainerError", "RunContainerError", "CrashLoopBackOff"];
/// Why a container of a mesh waits where a registry may have been away for a moment.
const FETCHING: [&str; 2] = ["ErrImagePull", "RegistryUnavailable"];
/// How long those of a mesh may end, or not be fetched, again and again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why a pod of the bench's own will not be ready.
pub(super) fn hopeless(pod: &Pod) -> Option<String> {
    waits_with(pod, |reason| ENDING.contains(&reason)).or_else(|| cannot_begin(pod))
}

/// How long pods of a mesh have been ending.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patience(Option<Instant>);

impl Patience {
    /// Why a mesh with these pods will not be ready: what can never begin is said at once, what ends again and
    /// again after a minute.
    pub(super) fn ends_with(&mut self, pods: &[Pod], now: Instant) -> Option<String> {
        let fetching = |why: &str| FETCHING.iter().any(|one| why.contains(&format!(": {one}: ")));
        let (fetched, never): (Vec<String>, Vec<String>) =
            pods.iter().filter_map(cannot_begin).partition(|why| fetching(why));
        if let Some(why) = never.into_iter().next() {
            return Some(why);
        }
        let ending =
            || pods.iter().find_map(|pod| waits_with(pod, |reason| ENDING.contains(&reason)));
        let Some(why) = fetched.into_iter().next().or_else(ending) else {
            self.0 = None;
            return None;
        };
        let since = *self.0.get_or_insert(now);
        (now.duration_since(since) >= PATIENCE).then_some(why)
    }
}

fn cannot_begin(pod: &Pod) -> Option<String> {
    let (_, waiting) = unstartable(pod)?;
    waits_with(pod, |reason| Some(reason) == waiting.reason.as_deref())
}

/// What is said of the first container of a pod that waits for such a reason.
fn waits_with(pod: &Pod, such: impl Fn(&str) -> bool) -> Option<String> {
    statuses(pod).find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().filter(|reason| such(reason))?;
        let (pod, name, image) = (pod.name_any(), &container.name, &container.image);
        let message = waiting.message.as_deref().unwrap_or("no message");
        let what = if name == CONTAINER {
            "; --image names one that the nodes can fetch or have, with leno as its entrypoint"
        } else {
            ""
        };
        Some(format!("container {name} of pod {pod}, image {image}: {reason}: {message}{what}"))
    })
}

/// What a pod waits for, in its own words.
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
            "spec": {"containers": [{"name": container, "image": "i"}]},
            "status": {
                "conditions": [{"type": "Ready", "status": "False", "message": "not ready"}],
                "containerStatuses": [{"name": container, "image": "i", "imageID": "", "ready": false,
                    "restartCount": 0,
                    "state": {"waiting": {"reason": reason, "message": "no such host"}}}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_that_never_will_be_ready_says_why_at_once() {
        let why = hopeless(&waiting(CONTAINER, "ErrImagePull")).unwrap();
        assert!(
            why.starts_with("container bench of pod s0, image i: ErrImagePull: no such host"),
            "{why}"
        );
        assert!(why.contains("--image"), "{why}");
        let proxy = hopeless(&waiting("leno-proxy", "CrashLoopBackOff")).unwrap();
        assert!(!proxy.contains("--image"), "{proxy}");
        let pod = waiting(CONTAINER, "ContainerCreating");
        assert_eq!((hopeless(&pod), is_ready(&pod)), (None, false));
        assert_eq!(waits_for(&pod).unwrap(), "pod s0: bench: ContainerCreating");
    }

    #[test]
    fn what_can_never_begin_is_said_at_once_and_what_ends_after_a_while() {
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
