//! What runs an instance.

use std::fmt;

/// The object that a workload's instances are made by, in their namespace: a `Deployment`, or the pod
/// itself where nothing makes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// Its kind, as Kubernetes writes it.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Owner {
    /// As people type it for kubectl: `deploy/web`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind.as_str() {
            "Deployment" => "deploy",
            "StatefulSet" => "sts",
            "DaemonSet" => "ds",
            "ReplicaSet" => "rs",
            "CronJob" => "cj",
            "Job" => "job",
            "Pod" => "pod",
            other => other,
        };
        write!(f, "{kind}/{}", self.name)
    }
}
