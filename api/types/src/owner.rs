//! The object that created an instance.

use std::fmt;

/// The object that created a workload's instances, in their namespace: for example a `Deployment`,
/// or the pod itself if no other object created it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// Its kind in Kubernetes.
    pub kind: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Owner {
    /// In the notation of kubectl: `deploy/web`.
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
