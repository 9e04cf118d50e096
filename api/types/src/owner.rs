//! The object that created an instance.

use std::fmt;

/// The object that created a workload's instances, in their namespace: for example a `Deployment`,
/// or the pod itself if no other object created it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The kind of the object in Kubernetes.
    pub kind: String,
    /// The name of the object.
    pub name: String,
}

/// The label in which a Deployment stores the version of its pods. The name of their ReplicaSet ends with the label's
/// value.
pub const TEMPLATE_HASH_LABEL: &str = "pod-template-hash";
/// How many digits the number of minutes since 1970 has, from 1989 to 2160.
const MINUTES: usize = 8;

impl Owner {
    /// The object that created a pod, as users know it: the Deployment instead of its ReplicaSet, the
    /// CronJob instead of its Job. Both are derived from the name of the pod's owner and the pod's
    /// [`TEMPLATE_HASH_LABEL`], because reading the ReplicaSet or Job would need further rights.
    #[must_use]
    pub fn of_pod(kind: &str, name: &str, template_hash: Option<&str>) -> Self {
        let derived = match kind {
            "ReplicaSet" => template_hash
                .and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'))
                .map(|name| ("Deployment", name)),
            "Job" => name
                .rsplit_once('-')
                .filter(|(_, time)| is_time(time))
                .map(|(name, _)| ("CronJob", name)),
            _ => None,
        };
        let (kind, name) = derived.unwrap_or((kind, name));
        Self { kind: kind.to_owned(), name: name.to_owned() }
    }
}

/// Whether the end of a Job's name is the minute for which a CronJob created it.
fn is_time(text: &str) -> bool {
    text.len() == MINUTES && text.bytes().all(|byte| byte.is_ascii_digit())
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
