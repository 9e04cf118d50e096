//! What the agent of a Kubernetes node and the supervisor of its node proxies say to each other.

use crate::message::KubeletProbes;
use serde::{Deserialize, Serialize};

/// A pod that a node proxy serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What made it, as users know it.
    #[serde(default)]
    pub workload: Option<String>,
    /// Its uid, as the API server knows it.
    pub uid: String,
    /// Pods of one group share a process.
    pub group: String,
    /// Its probes.
    #[serde(default)]
    pub kubelet: KubeletProbes,
    /// Its datagrams of UDP are carried.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub datagrams: bool,
    /// How long it is busy before it gets a process of its own, in milliseconds, as it says itself; 0: it would get none. A supervisor
    /// follows it only where it is sooner than what else holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promote_after_ms: Option<u64>,
    /// The same as its namespace says it, which holds in place of the supervisor's settings; 0: it gets none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_promote_after_ms: Option<u64>,
}

/// Agent to supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "placement", rename_all = "lowercase")]
pub enum Placement {
    /// Have a pod served. Comes with one descriptor: the channel for orders to its broker. A pod that is served already
    /// goes on with the new broker.
    Serve {
        /// The pod.
        #[serde(flatten)]
        pod: PlacedPod,
        /// Another supervisor serves it until this one reports [`PlacementReport::Serving`].
        #[serde(default)]
        succeeds: bool,
    },
    /// Have it served no more.
    Release {
        /// The pod's uid.
        uid: String,
        /// Another supervisor serves it: what is under way may go on.
        #[serde(default)]
        succeeded: bool,
    },
    /// Whether another supervisor is there that was not asked to end, which is to take the pods over. Sent to one that has
    /// reported [`PlacementReport::Ending`], and each time that it changes.
    Successor {
        /// It is.
        is_there: bool,
    },
    /// What a later version sends.
    #[serde(other)]
    Unknown,
}

/// Supervisor to agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub enum PlacementReport {
    /// Sent for each pod when the two have met: the supervisor serves it already. Comes with one descriptor: the channel
    /// for orders to its broker.
    Held {
        /// The pod.
        #[serde(flatten)]
        pod: PlacedPod,
        /// A process accepts its connections.
        #[serde(default)]
        serving: bool,
    },
    /// The supervisor was asked to end: another one is to serve its pods. Sent before [`Self::Complete`] as well.
    Ending {
        /// It serves its pods until another one does, else it serves none any more.
        serves: bool,
    },
    /// All such pods have been sent.
    Complete {
        /// When the supervisor began, in milliseconds since the machine was started: of two, the later one is to serve
        /// the pods. Unlike the time of day, no program sets that clock.
        #[serde(default)]
        began_ms: u64,
    },
    /// A process was told to serve a pod. Its listeners exist, so that what connects waits for it.
    Served {
        /// The pod's uid.
        uid: String,
    },
    /// A process accepts the connections of a pod.
    Serving {
        /// The pod's uid.
        uid: String,
    },
    /// What a later version sends.
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_understands_an_earlier_version_and_what_a_later_one_sends_is_no_error() {
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
        let release = Placement::Release { uid: "1".to_owned(), succeeded: false };
        assert_eq!(placement(r#"{"placement":"release","uid":"1"}"#), release);
        assert_eq!(placement(r#"{"placement":"later","of":1}"#), Placement::Unknown);
    }
}
