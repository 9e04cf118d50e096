//! Decides which workloads share the process of a node proxy.

use std::str::FromStr;

use leno_types::InstanceName;

/// Which instances share the process of a node proxy. This is the value of `leno.dev/share`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessSharing {
    /// Each instance has its own process.
    Workload,
    /// The instances of one service account share a process, so that no process has the keys of two identities.
    #[default]
    ServiceAccount,
    /// The instances of one namespace share a process, if they have this value.
    Namespace,
    /// All instances of the node share a process, if they have this value.
    Node,
}

impl FromStr for ProcessSharing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "workload" => Ok(Self::Workload),
            "service-account" => Ok(Self::ServiceAccount),
            "namespace" => Ok(Self::Namespace),
            "node" => Ok(Self::Node),
            _ => Err(format!("{text:?}: use workload, service-account, namespace or node")),
        }
    }
}

impl ProcessSharing {
    /// The name of the group to which an instance belongs.
    #[must_use]
    pub fn group(self, instance: &InstanceName, service_account: &str) -> String {
        let InstanceName { namespace, name, .. } = instance;
        match self {
            Self::Workload => format!("workload.{namespace}.{name}"),
            Self::ServiceAccount => format!("service-account.{namespace}.{service_account}"),
            Self::Namespace => format!("namespace.{namespace}"),
            Self::Node => "node".to_owned(),
        }
    }
}
