//! The messages between the agent of a Kubernetes node and the supervisor of its node proxies.

use crate::message::KubeletProbes;
use serde::{Deserialize, Serialize};

/// A pod that a node proxy should serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The workload that has created the pod, as users refer to it.
    #[serde(default)]
    pub workload: Option<String>,
    /// Its uid in Kubernetes.
    pub uid: String,
    /// The name of its group. Pods of one group share a process.
    pub group: String,
    /// Its HTTP probes.
    #[serde(default)]
    pub kubelet: KubeletProbes,
    /// Whether the proxy carries its UDP datagrams.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub datagrams: bool,
    /// How long the pod may be busy before it gets its own process, in milliseconds, according to its own
    /// annotation; 0 if the annotation turns this off. A supervisor uses it only if it is shorter than the time
    /// that would apply otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote_after_ms: Option<u64>,
    /// The same time according to the annotation of its namespace, which replaces the setting of the supervisor; 0
    /// turns it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_promote_after_ms: Option<u64>,
}

impl PlacedPod {
    /// Copies the settings that may change while the pod is served: its group, and when it is promoted. Returns whether
    /// any of them has changed.
    pub fn follow(&mut self, now: &Self) -> bool {
        let times = |pod: &Self| (pod.promote_after_ms, pod.namespace_promote_after_ms);
        if self.group == now.group && times(self) == times(now) {
            return false;
        }
        self.group.clone_from(&now.group);
        (self.promote_after_ms, self.namespace_promote_after_ms) = times(now);
        true
    }
}

/// An order of the agent to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "placement", rename_all = "lowercase")]
pub enum Placement {
    /// Serve a pod. The message has one descriptor: the channel for orders to the pod's broker. If the pod is
    /// already served, it continues with the new broker.
    Serve {
        /// The pod.
        #[serde(flatten)]
        pod: PlacedPod,
        /// Whether another supervisor serves the pod until this one reports [`PlacementReport::Serving`].
        #[serde(default)]
        succeeds: bool,
    },
    /// The settings of a pod that is served have changed: its group, or when it is promoted. If the group has changed,
    /// the pod moves to it, and its present process serves it until then. A supervisor of an earlier version ignores
    /// this order.
    Change {
        /// The pod, as it is now.
        #[serde(flatten)]
        pod: PlacedPod,
    },
    /// Stop serving a pod.
    Release {
        /// The pod's uid.
        uid: String,
        /// Whether another supervisor serves it, so that open streams may continue.
        #[serde(default)]
        succeeded: bool,
    },
    /// Whether there is another supervisor that was not asked to end and will take over the pods. This is sent to
    /// a supervisor that has reported [`PlacementReport::Ending`], and again each time that the value changes.
    Successor {
        /// Whether there is such a supervisor.
        is_there: bool,
    },
    /// Stands for an order of a later version.
    #[serde(other)]
    Unknown,
}

/// A report of the supervisor to the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub enum PlacementReport {
    /// The supervisor already serves this pod. This is sent for each such pod after connecting. The message has
    /// one descriptor: the channel for orders to the pod's broker.
    Held {
        /// The pod.
        #[serde(flatten)]
        pod: PlacedPod,
        /// Whether a process accepts its connections.
        #[serde(default)]
        serving: bool,
    },
    /// The supervisor was asked to end, so another one should serve its pods. This may also be sent before
    /// [`Self::Complete`].
    Ending {
        /// Whether it serves its pods until another one does; otherwise it serves none.
        serves: bool,
    },
    /// All pods were reported with [`Self::Held`].
    Complete {
        /// When the supervisor started, in milliseconds since the machine was booted. Of two supervisors, the
        /// later one should serve the pods. Unlike the time of day, this clock cannot be set.
        #[serde(default)]
        began_ms: u64,
    },
    /// A process was ordered to serve a pod. Its listeners exist, so connections to the pod wait for the process.
    Served {
        /// The pod's uid.
        uid: String,
    },
    /// A process accepts the connections of a pod.
    Serving {
        /// The pod's uid.
        uid: String,
    },
    /// The broker of a pod receives no messages, so it should be replaced.
    BrokerHangs {
        /// The pod's uid.
        uid: String,
    },
    /// Stands for a report of a later version.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_understands_an_earlier_version_and_ignores_unknown_messages_of_a_later_one() {
        let pod = r#""namespace":"shop","name":"web-0","uid":"1","group":"web""#;
        let report = |text: &str| serde_json::from_str::<PlacementReport>(text).unwrap();
        let PlacementReport::Held { serving, .. } =
            report(&format!(r#"{{"report":"held",{pod}}}"#))
        else {
            panic!()
        };
        assert!(!serving);
        let complete = PlacementReport::Complete { began_ms: 0 };
        assert_eq!(report(r#"{"report":"complete"}"#), complete);
        assert_eq!(report(r#"{"report":"later","of":1}"#), PlacementReport::Unknown);

        let placement = |text: &str| serde_json::from_str::<Placement>(text).unwrap();
        let serve = placement(&format!(r#"{{"placement":"serve",{pod}}}"#));
        let Placement::Serve { pod: served, succeeds: false } = serve else { panic!("{serve:?}") };
        assert_eq!((served.promote_after_ms, served.namespace_promote_after_ms), (None, None));
        let change = placement(&format!(r#"{{"placement":"change",{pod}}}"#));
        assert_eq!(change, Placement::Change { pod: served });
        let release = Placement::Release { uid: "1".to_owned(), succeeded: false };
        assert_eq!(placement(r#"{"placement":"release","uid":"1"}"#), release);
        assert_eq!(placement(r#"{"placement":"later","of":1}"#), Placement::Unknown);
    }
}
