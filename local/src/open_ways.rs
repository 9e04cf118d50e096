//! Finds ways by which an instance's traffic can bypass the capture.

use std::path::{Path, PathBuf};

use leno_capture::{Backend, CaptureTarget, OpenWays};
use leno_supervise::Cgroup;
use leno_types::ports::PROXY_UID;

use crate::proxy;
use crate::status::{InstanceStatus, MeshStatus};

/// The ways around the capture that the kernel shows to be open; `None` if the instance is not captured. Needs
/// root.
#[must_use]
pub fn open_ways(status: &MeshStatus, instance: &InstanceStatus) -> Option<OpenWays> {
    let backend: Backend = instance.capture.as_ref()?.parse().ok()?;
    let application = instance.surroundings.cgroup.clone();
    let pids = Cgroup::at(application.clone()).processes();
    let pids: Vec<u32> = pids.iter().filter_map(|pid| pid.as_raw().try_into().ok()).collect();
    let has_ipv6 = instance.addresses.iter().any(|address| address.is_ipv6());
    let gateway = status.ranges.workloads(has_ipv6).gateway();
    let datagrams = instance.datagrams.as_deref().map(str::parse).transpose().ok()?;
    let datagrams = datagrams.unwrap_or_default();
    let workload = CaptureTarget {
        name: instance.surroundings.netns.clone(),
        netns: Path::new("/run/netns").join(&instance.surroundings.netns),
        cgroup: application,
        // The proxy has a separate control group, beside the application's.
        proxy_cgroup: PathBuf::new(),
        proxy_process: None,
        fail_closed: true,
        excluded: proxy::never_captured(&gateway),
        datagrams,
        proxy_uid: PROXY_UID,
    };
    Some(leno_capture::open_ways(backend, &workload, &pids))
}
