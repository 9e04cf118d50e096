//! Captures a workload with kernel programs.

use leno_bpf::abi::DatagramCapture;
use leno_bpf::{Instance, InstanceOptions, InstanceTarget, PinRoot};
use leno_types::{Datagrams, ports};

use crate::captured::{CaptureCounters, CaptureTarget};
use crate::error::Error;

/// Attaches the programs.
pub(crate) fn capture(workload: &CaptureTarget) -> Result<Instance, Error> {
    let root = PinRoot::find()?;
    Ok(Instance::attach(&root, &target(workload), &options(workload))?)
}

/// Replaces the attached programs by those of this build, with new settings.
pub(crate) fn upgrade(instance: &Instance, workload: &CaptureTarget) -> Result<(), Error> {
    Ok(instance.upgrade(&target(workload), &options(workload))?)
}

/// The programs' counters.
pub(crate) fn counters(instance: &Instance) -> Result<CaptureCounters, Error> {
    Ok(instance.counters()?.iter().collect())
}

fn target(workload: &CaptureTarget) -> InstanceTarget<'_> {
    InstanceTarget {
        owner: &workload.name,
        cgroup: &workload.cgroup,
        proxy_cgroup: &workload.proxy_cgroup,
        proxy_process: workload.proxy_process.as_deref(),
        netns: &workload.netns,
    }
}

fn options(workload: &CaptureTarget) -> InstanceOptions {
    InstanceOptions {
        outbound_port: ports::OUTBOUND,
        inbound_port: ports::INBOUND,
        admin_port: ports::ADMIN,
        fail_closed: workload.fail_closed,
        excluded: workload.excluded.clone(),
        proxy_uid: workload.proxy_uid,
        datagrams: match workload.datagrams {
            Datagrams::Off => DatagramCapture::Pass,
            Datagrams::Enabled => DatagramCapture::Captured,
            Datagrams::All => DatagramCapture::WithDns,
        },
    }
}
