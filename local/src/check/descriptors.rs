//! Finds node proxies whose process is nearly out of file descriptors. When none is left, new instances are not
//! served, and new connections fail.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use leno_checks::{Check, CheckResult};
use leno_supervise::DescriptorLimit;

use crate::status::InstanceStatus;

/// The percentage of its descriptors from which a process counts as short of them: an instance that joins a node
/// proxy needs about fifty at once.
const SHORT_PERCENT: usize = 90;

/// The findings about the proxy processes of these instances.
pub(super) fn short_of(instances: &[InstanceStatus]) -> Vec<CheckResult> {
    let shared = instances.iter().filter_map(|instance| instance.proxy.as_ref());
    let groups = shared.filter_map(|process| Some((process.group.as_deref()?, process)));
    let groups: BTreeMap<_, _> = groups.collect();
    let pids = groups
        .into_iter()
        .flat_map(|(group, process)| process.pids().into_iter().map(move |pid| (group, pid)));
    // A process that has ended since the status was written is skipped.
    pids.filter_map(|(group, pid)| of_process(group, used(pid).ok()?)).collect()
}

fn of_process(group: &str, (open, most): (usize, usize)) -> Option<CheckResult> {
    let is_short = open.saturating_mul(100) >= most.saturating_mul(SHORT_PERCENT);
    let check = Check::new(
        format!("proxy of group {group}"),
        "Does the process have file descriptors left for its instances and their connections?",
    );
    let finding = || {
        let text = format!(
            "{open} of {most} file descriptors are open, so new instances may not be served"
        );
        check.bad(text).remedy(
            "start leno up with a higher limit (ulimit -Hn, LimitNOFILE), or let fewer instances \
             share the process with leno.dev/share",
        )
    };
    is_short.then(finding)
}

/// How many descriptors a process has open, and its limit.
fn used(pid: i32) -> io::Result<(usize, usize)> {
    let most = DescriptorLimit::of_process(pid)?.soft();
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    Ok((fs::read_dir(format!("/proc/{pid}/fd"))?.count(), most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_few_descriptors_left_is_found() {
        let pid = nix::unistd::getpid().as_raw();
        let (open, most) = used(pid).unwrap();
        assert!((1..most).contains(&open), "{open} of {most}");
        let found = of_process("node", (1020, 1024)).unwrap();
        assert!(found.text.starts_with("1020 of 1024 file descriptors are open"), "{found:?}");
        assert_eq!(of_process("node", (500, 1024)), None);
    }
}
