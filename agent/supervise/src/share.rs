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
            _ => Err(format!(
                "{text:?} is not a share: use workload, service-account, namespace or \
                 node"
            )),
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

/// Separates the name of a group from its number. No name of a namespace, service account or pod contains it, so no key is also
/// the name of another group.
const NUMBERED: char = '+';

/// The key of the group with this name and number. A process serves a bounded number of members, so several groups may have the
/// same name.
#[must_use]
pub fn group_key(name: &str, number: u32) -> String {
    if number == 0 { name.to_owned() } else { format!("{name}{NUMBERED}{number}") }
}

/// Whether a group with this key has this name.
#[must_use]
pub fn is_key_of(key: &str, name: &str) -> bool {
    key.split(NUMBERED).next() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: pods of two identities shared a process.
    #[test]
    fn no_two_names_of_groups_have_a_key_in_common() {
        let instance = InstanceName::new("n", "web-0").unwrap();
        let [web, other] = ["web", "web.1"]
            .map(|account| ProcessSharing::ServiceAccount.group(&instance, account));
        for number in 0..3 {
            let key = group_key(&web, number);
            assert!(is_key_of(&key, &web) && !is_key_of(&key, &other), "{key}");
            assert!((0..3).all(|number| group_key(&other, number) != key), "{key}");
            assert!(!is_key_of(&group_key(&other, number), &web));
        }
    }
}
