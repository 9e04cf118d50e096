//! Where proxies run: beside their workloads, or in processes of node mode.

use std::collections::BTreeMap;

use serde::Serialize;

/// Where the proxy of an instance runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyProcess {
    /// In node mode, which instances share the process: `workload`, `service-account`, `namespace` or `node`. `None`: it is
    /// a sidecar.
    share: Option<String>,
    /// The group of instances that share it, where that is known.
    group: Option<String>,
    /// It is the instance's own for as long as that is busy.
    promoted: bool,
}

/// The instances of a workload whose proxies run in one way, and where they are shared in one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProcessReport {
    /// `sidecar` or `node`.
    pub mode: &'static str,
    /// In node mode, which instances share the process.
    pub share: Option<String>,
    /// In node mode, the group of instances that share it; `None` where that is not known.
    pub group: Option<String>,
    /// It is the instance's own for as long as that is busy.
    pub promoted: bool,
    /// How many instances there are.
    pub instances: usize,
}

impl ProxyProcess {
    /// That of a sidecar.
    #[must_use]
    pub fn sidecar() -> Self {
        Self { share: None, group: None, promoted: false }
    }

    /// One of node mode, of which only the share is known.
    #[must_use]
    pub fn of_share(share: &str) -> Self {
        Self { share: Some(share.to_owned()), group: None, promoted: false }
    }

    /// The one of a group, whose name begins with its share: `namespace.shop`.
    #[must_use]
    pub fn of_group(group: &str, promoted: bool) -> Self {
        let share = group.split('.').next().unwrap_or_default().to_owned();
        Self { share: Some(share), group: Some(group.to_owned()), promoted }
    }

    /// Whether it is one of node mode.
    #[must_use]
    pub fn is_of_node(&self) -> bool {
        self.share.is_some()
    }
}

/// What is reported of the proxies of a workload.
pub(super) fn reports(counted: BTreeMap<ProxyProcess, usize>) -> Vec<ProcessReport> {
    let report = |(process, instances): (ProxyProcess, usize)| {
        let mode = if process.is_of_node() { "node" } else { "sidecar" };
        let ProxyProcess { share, group, promoted } = process;
        ProcessReport { mode, share, group, promoted, instances }
    };
    counted.into_iter().map(report).collect()
}
