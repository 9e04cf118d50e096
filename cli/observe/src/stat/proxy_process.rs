//! Where proxies run: beside their workloads, or in processes of node mode.

use std::collections::BTreeMap;

use serde::Serialize;

/// Where the proxy of an instance runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyProcess {
    /// In node mode, which instances share the process: `workload`, `service-account`, `namespace` or `node`. `None`
    /// for a sidecar.
    share: Option<String>,
    /// The group of instances that share the process, if the group is known.
    group: Option<String>,
    /// Whether the process belongs to this instance alone, which it does while the instance is busy.
    promoted: bool,
}

/// Instances of a workload whose proxies run in the same way. Proxies that share a process are in the same report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// `sidecar` or `node`.
    pub mode: &'static str,
    /// In node mode, which instances share the process.
    pub share: Option<String>,
    /// In node mode, the group of instances that share the process; `None` if the group is not known.
    pub group: Option<String>,
    /// Whether the process belongs to this instance alone, which it does while the instance is busy.
    pub promoted: bool,
    /// The number of these instances.
    pub instances: usize,
}

impl ProxyProcess {
    /// A sidecar.
    #[must_use]
    pub fn sidecar() -> Self {
        Self { share: None, group: None, promoted: false }
    }

    /// A process of node mode of which only the kind of sharing is known.
    #[must_use]
    pub fn of_share(share: &str) -> Self {
        Self { share: Some(share.to_owned()), group: None, promoted: false }
    }

    /// The process of a group. The group's key begins with the kind of sharing: `namespace.shop`, `node+1`.
    #[must_use]
    pub fn of_group(group: &str, promoted: bool) -> Self {
        let share = group.split(['.', '+']).next().unwrap_or_default().to_owned();
        Self { share: Some(share), group: Some(group.to_owned()), promoted }
    }

    /// Whether it is a process of node mode.
    #[must_use]
    pub fn is_of_node(&self) -> bool {
        self.share.is_some()
    }
}

/// The reports on the proxies of a workload.
pub(super) fn reports(counted: BTreeMap<ProxyProcess, usize>) -> Vec<ProcessReport> {
    let report = |(process, instances): (ProxyProcess, usize)| {
        let mode = if process.is_of_node() { "node" } else { "sidecar" };
        let ProxyProcess { share, group, promoted } = process;
        ProcessReport { mode, share, group, promoted, instances }
    };
    counted.into_iter().map(report).collect()
}
