//! The page `/captures`: which pods of this node are captured, which are not, and why.
//!
//! The page names pods, which must not be revealed to every client that can reach the node's port. So only clients
//! on the node itself get it; `kubectl port-forward` connects from there.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_capture::{BackendReport, CaptureChoice, CaptureCounters, LeftOut, OpenWays};
use serde::Serialize;

use crate::keeper::{CapturedPod, FailedPod};
use crate::pod::Pod;

/// Most pods on one page. A kubelet runs 110 by default.
const MAX_SHOWN: usize = 1_024;
/// Longest reason, in characters. It may include several backends, each with the output of a command.
const MAX_REASON: usize = 2_000;

/// The content of `/captures`.
#[derive(Debug, Serialize)]
pub(crate) struct CapturesPage<'a> {
    pub(crate) node: &'a str,
    pub(crate) version: &'static str,
    /// Why the agent is not ready; `None` if it is ready.
    pub(crate) not_ready: Option<&'static str>,
    /// All backends, best first, each with whether this node can use it.
    pub(crate) backends: &'a [BackendReport],
    /// The pods that have a proxy and a network namespace of their own; those that are not captured come
    /// first.
    pub(crate) pods: Vec<CaptureEntry>,
    /// How many pods did not fit on the page.
    pub(crate) pods_left_out: usize,
}

/// One pod and the state of its capture.
#[derive(Debug, Serialize)]
pub(crate) struct CaptureEntry {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The capture that the pod's annotations request; `None` if the API server has not listed the pod.
    asks: Option<String>,
    state: State,
    backend: Option<&'static str>,
    /// What made the agent capture the pod, as in the metrics.
    origin: Option<&'static str>,
    /// When the pod was captured, in seconds since 1970; `None` if an earlier agent captured it and did not record
    /// that.
    since_unix_s: Option<u64>,
    passes: Option<LeftOut>,
    /// The ways around its capture that are open; `None` if it is not captured.
    pub(crate) open_ways: Option<OpenWays>,
    /// How the pod's connections were treated, from the kernel's counters; only filled for a page of one
    /// pod.
    pub(crate) connections: Option<CaptureCounters>,
    /// The last failure; `None` once the pod is captured.
    failure: Option<FailedCapture>,
}

/// The state of a pod's capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    /// The last attempt to capture it has failed.
    Failed,
    /// The CNI plugin has not reported the pod's network namespace, and no process of the pod runs by which the
    /// agent could find the namespace.
    Waiting,
    /// The pod is being captured or released.
    UnderWay,
    Captured,
    /// All its containers have ended, so there is nothing to capture.
    Ended,
}

#[derive(Debug, Serialize)]
struct FailedCapture {
    why: String,
    /// The reason, as in the metrics.
    reason: &'static str,
    times: u64,
    last_unix_s: u64,
    /// The time until the next attempt; `None` if the kubelet makes it, as for a pod whose sandbox was not created
    /// yet.
    next_s: Option<u64>,
}

/// The agent's data about pods, from the API server and from its own captures.
pub(crate) struct NodeCaptures {
    pub(crate) pods: Vec<Pod>,
    /// The captured pods, by uid. The value is `None` while a thread works on the pod.
    pub(crate) held: HashMap<String, Option<CapturedPod>>,
    pub(crate) failures: HashMap<String, FailedPod>,
    /// The time until the next attempt, by uid.
    pub(crate) next: HashMap<String, Duration>,
}

impl NodeCaptures {
    /// The pods that have a proxy, or only the pod `wanted`, which is given by namespace and name. Also returns
    /// how many pods were left out.
    pub(crate) fn captures(mut self, wanted: Option<(&str, &str)>) -> (Vec<CaptureEntry>, usize) {
        let pods = std::mem::take(&mut self.pods);
        let meshed = pods.iter().filter(|pod| pod.meshed);
        let mut all: Vec<CaptureEntry> = meshed.map(|pod| self.of(pod)).collect();
        // These pods are captured although the API server no longer lists them, because their processes still run.
        let rest = std::mem::take(&mut self.held);
        all.extend(rest.into_iter().filter_map(|(uid, held)| Some(captured(uid, held?))));
        all.retain(|one| wanted.is_none_or(|wanted| wanted == (&*one.namespace, &*one.name)));
        all.sort_by_cached_key(|one| (one.state, one.namespace.clone(), one.name.clone()));
        let left_out = all.len().saturating_sub(MAX_SHOWN);
        all.truncate(MAX_SHOWN);
        (all, left_out)
    }

    fn of(&mut self, pod: &Pod) -> CaptureEntry {
        // A static pod has one uid on the node and another at the API server, so it is found by name.
        let named =
            |held: &CapturedPod| (&held.namespace, &held.name) == (&pod.namespace, &pod.name);
        let by_name = || {
            let found = self.held.iter().find(|(_, held)| held.as_ref().is_some_and(named));
            found.map(|(uid, _)| uid.clone())
        };
        let uid = if self.held.contains_key(&pod.uid) { Some(pod.uid.clone()) } else { by_name() };
        let held = uid.as_ref().and_then(|uid| self.held.remove(uid));
        let failure = self.failures.remove(uid.as_ref().unwrap_or(&pod.uid));
        let state = match (&held, &failure) {
            (Some(Some(_)), _) => State::Captured,
            (Some(None), _) => State::UnderWay,
            (None, _) if pod.ended => State::Ended,
            (None, Some(_)) => State::Failed,
            (None, None) => State::Waiting,
        };
        let mut capture = match held.flatten() {
            Some(held) => captured(uid.unwrap_or_default(), held),
            None => CaptureEntry {
                namespace: pod.namespace.clone(),
                name: pod.name.clone(),
                uid: pod.uid.clone(),
                asks: None,
                state,
                backend: None,
                origin: None,
                since_unix_s: None,
                passes: None,
                open_ways: None,
                connections: None,
                failure: None,
            },
        };
        if state == State::Failed {
            let next = self.next.get(&pod.uid).copied();
            capture.failure = failure.map(|failure| failed(failure, next));
        }
        capture.asks = Some(match &pod.capture {
            None | Some(Ok(CaptureChoice::Auto)) => "auto".to_owned(),
            Some(Ok(CaptureChoice::Only(backend))) => backend.to_string(),
            Some(Err(unknown)) => unknown.to_string(),
        });
        capture
    }
}

fn captured(uid: String, held: CapturedPod) -> CaptureEntry {
    CaptureEntry {
        namespace: held.namespace,
        name: held.name,
        uid,
        asks: None,
        state: State::Captured,
        backend: Some(held.backend.name()),
        origin: Some(held.origin.name()),
        since_unix_s: held.since_unix_s,
        passes: Some(held.passes),
        open_ways: None,
        connections: None,
        failure: None,
    }
}

fn failed(failure: FailedPod, next: Option<Duration>) -> FailedCapture {
    let FailedPod { why, reason, times, last } = failure;
    FailedCapture {
        why: why.chars().take(MAX_REASON).collect(),
        reason: reason.name(),
        times,
        last_unix_s: unix_s(last),
        next_s: next.map(|next| next.as_secs()),
    }
}

/// Seconds since 1970; 0 if the clock is set to an earlier time.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use leno_capture::Backend;
    use serde_json::{Value, json};

    use super::*;
    use crate::metrics::{CaptureOrigin, FailureReason};

    fn pod(name: &str) -> Pod {
        Pod {
            namespace: "shop".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            workload: "web".into(),
            meshed: true,
            own_network: true,
            has_node_proxies: false,
            flows: None,
            flow_budget: None,
            ended: false,
            served: None,
            capture: None,
            datagrams: None,
            own_users: false,
            sysctls: false,
            account: "default".to_owned(),
            mode: None,
            share: None,
            promotion: None,
            namespace_promotion: None,
            probes: String::new(),
            group: None,
            withdrawn: false,
        }
    }

    fn held(name: &str) -> CapturedPod {
        CapturedPod {
            namespace: "shop".into(),
            name: name.into(),
            backend: Backend::Nftables,
            origin: CaptureOrigin::TakenOver,
            since_unix_s: Some(12),
            passes: LeftOut {
                inbound_ports: vec![15020],
                outbound_to: vec!["127.0.0.0/8".into()],
                user: 2102,
            },
        }
    }

    fn shown(known: NodeCaptures, wanted: Option<(&str, &str)>) -> Vec<Value> {
        let (all, left_out) = known.captures(wanted);
        assert_eq!(left_out, 0);
        all.iter().map(|one| serde_json::to_value(one).unwrap()).collect()
    }

    fn known() -> NodeCaptures {
        let names = ["captured", "failed", "late", "waiting", "ended", "busy", "file"];
        let mut pods: Vec<Pod> = names.into_iter().map(pod).collect();
        pods[4].ended = true;
        pods.push(Pod { meshed: false, ..pod("plain") });
        let failure = |times| FailedPod {
            why: "y".repeat(MAX_REASON + 1),
            reason: FailureReason::Unusable,
            times,
            last: UNIX_EPOCH + Duration::from_secs(7),
        };
        NodeCaptures {
            pods,
            held: HashMap::from([
                ("uid-captured".into(), Some(held("captured"))),
                ("uid-busy".into(), None),
                ("of the kubelet's".into(), Some(held("file"))),
                ("uid-deleted".into(), Some(held("deleted"))),
            ]),
            failures: HashMap::from([
                ("uid-failed".into(), failure(3)),
                ("uid-late".into(), failure(1)),
            ]),
            next: HashMap::from([("uid-failed".into(), Duration::from_secs(16))]),
        }
    }

    #[test]
    fn a_pod_is_captured_by_something_or_not_for_a_reason() {
        let all = shown(known(), None);
        let states: Vec<String> =
            all.iter().map(|one| format!("{} {}", one["name"], one["state"])).collect();
        let expected = [
            r#""failed" "failed""#,
            r#""late" "failed""#,
            r#""waiting" "waiting""#,
            r#""busy" "under_way""#,
            r#""captured" "captured""#,
            r#""deleted" "captured""#,
            r#""file" "captured""#,
            r#""ended" "ended""#,
        ];
        assert_eq!(states, expected);
        assert_eq!(all[0]["failure"]["times"], 3);
        assert_eq!(all[0]["failure"]["next_s"], 16);
        assert_eq!(all[0]["failure"]["reason"], "unusable");
        assert_eq!(all[0]["failure"]["why"].as_str().unwrap().len(), MAX_REASON);
        assert_eq!(all[1]["failure"]["next_s"], Value::Null, "the kubelet calls again");
        let one = shown(known(), Some(("shop", "captured")));
        assert_eq!(
            one,
            [
                json!({"namespace": "shop", "name": "captured", "uid": "uid-captured", "asks": "auto",
                "state": "captured", "backend": "nftables", "origin": "taken_over", "since_unix_s": 12,
                "passes": {"inbound_ports": [15020], "outbound_to": ["127.0.0.0/8"], "user": 2102},
                "open_ways": null, "connections": null, "failure": null})
            ]
        );
        assert!(shown(known(), Some(("shop", "plain"))).is_empty(), "it has no proxy");
    }

    #[test]
    fn a_page_has_an_end_and_says_what_is_beyond() {
        let pods = (0..=MAX_SHOWN).map(|number| pod(&format!("p{number}"))).collect();
        let none = || (HashMap::new(), HashMap::new(), HashMap::new());
        let (held, failures, next) = none();
        let (shown, left_out) = NodeCaptures { pods, held, failures, next }.captures(None);
        assert_eq!((shown.len(), left_out), (MAX_SHOWN, 1));
    }
}
