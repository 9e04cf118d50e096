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
}

/// Agent to supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "placement", rename_all = "lowercase")]
pub enum Placement {
    /// Have a pod served. Comes with one descriptor: the channel for orders to its broker. A pod that is served already
    /// goes on with the new broker.
    Serve(PlacedPod),
    /// Have it served no more.
    Release {
        /// The pod's uid.
        uid: String,
    },
}

/// Supervisor to agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "lowercase")]
pub enum PlacementReport {
    /// Sent for each pod when the two have met: it is served already. Comes with one descriptor: the channel for orders
    /// to its broker.
    Held(PlacedPod),
    /// All such pods have been sent.
    Complete,
    /// A process was told to serve a pod. Its listeners exist, so that what connects waits for it.
    Served {
        /// The pod's uid.
        uid: String,
    },
}
