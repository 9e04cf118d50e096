//! The memory limit of a node proxy, which depends on its number of members.
//!
//! The buffers of the process have a budget already, which bounds what each member may use. The kernel's limit
//! covers everything else in the process as well, so that a bug cannot use up the memory of the machine.

use std::fs;
use std::path::{Path, PathBuf};

use leno_resources::{MemoryQuantity, ResourceLimits};
use leno_supervise::Cgroup;

use super::{CgroupMounts, Controller, Hierarchy, ProcessLimits};
use crate::error::Result;

/// The memory of a process without members: the program, and the threads and tables that it always has.
const BASE: u64 = 128 << 20;
/// The memory of each member besides its buffers: discovery, TLS sessions, stacks, counters, and the kernel's
/// buffers of idle sockets.
const OF_MEMBER: u64 = 32 << 20;
/// Each member adds one of this many parts of the budget to the limit: it may use an eighth of the budget for
/// buffers, and the allocator may hold the same amount again.
const BUDGET_PARTS: u64 = 4;
/// All members together add at most this many budgets to the limit.
const BUDGETS: u64 = 2;
/// The largest default budget of a proxy (`leno-proxy --memory-budget`). On smaller machines, the default is one
/// of `SHARE_OF_MACHINE` parts of the machine's memory.
const MAX_BUDGET: u64 = 1 << 30;
const SHARE_OF_MACHINE: u64 = 8;
/// In cgroup version 1, "no limit" reads as the largest number of pages. Values above this count as no limit.
const NO_LIMIT: u64 = 1 << 60;

/// The memory limit of one process.
#[derive(Debug)]
pub struct MemberLimit {
    limited: ProcessLimits,
    budget: u64,
    limit: PathBuf,
    usage: PathBuf,
    /// The file of the limit that includes swap, in version 1. That limit must not be below the limit of memory.
    with_swap: Option<PathBuf>,
}

impl MemberLimit {
    /// Limits the processes of `group`, which was created for them. `None` if the machine itself has a limit, as
    /// in a container: then only the budgets bound the memory. `record` is called with each group of another
    /// hierarchy before it is created.
    ///
    /// # Errors
    /// When the machine cannot limit memory; the text has the remedy.
    pub fn apply(
        machine: CgroupMounts<'_>,
        group: &Cgroup,
        record: impl FnMut(&Path) -> Result<()>,
    ) -> Result<Option<Self>> {
        let (root, [limit, usage]) = match Controller::Memory.hierarchy(machine)? {
            Hierarchy::Unified => (machine.root.to_owned(), ["memory.max", "memory.current"]),
            Hierarchy::Alone(mount) => (mount, ["memory.limit_in_bytes", "memory.usage_in_bytes"]),
        };
        if number(&root.join(limit)).is_some_and(|limit| limit < NO_LIMIT) {
            return Ok(None);
        }
        let Some(budget) = fs::read_to_string("/proc/meminfo").ok().and_then(|text| budget(&text))
        else {
            return Ok(None);
        };
        let memory = Some(MemoryQuantity(wanted(budget, 1)));
        let limits = ResourceLimits { memory, ..ResourceLimits::default() };
        let limited = ProcessLimits::apply(limits, machine, group, record)?;
        let of_memory = limited.groups.first().unwrap_or(group).path().to_owned();
        let (limit, usage) = (of_memory.join(limit), of_memory.join(usage));
        let with_swap = Some(of_memory.join("memory.memsw.limit_in_bytes"));
        let with_swap = with_swap.filter(|file| file.exists());
        Ok(Some(Self { limited, budget, limit, usage, with_swap }))
    }

    /// The control groups of other hierarchies that the process must enter as well.
    #[must_use]
    pub fn groups(&self) -> &[Cgroup] {
        &self.limited.groups
    }

    /// The budget for the buffers of the process, in bytes. It is the proxy's default on a machine without this
    /// limit.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// How many times the kernel has killed the process because it exceeded the limit.
    #[must_use]
    pub fn killed(&self) -> u64 {
        self.limited.killed()
    }

    /// The present limit as text, in MiB.
    #[must_use]
    pub fn now(&self) -> String {
        let bytes = number(&self.limit).unwrap_or_default();
        format!("{} MiB", bytes >> 20)
    }

    /// Sets the limit for this number of members. The limit is never set below the present use, because the kernel
    /// would kill the process.
    pub fn follow(&self, members: usize) {
        let members = u64::try_from(members.max(1)).unwrap_or(u64::MAX);
        let used = number(&self.usage).unwrap_or_default();
        let bytes = wanted(self.budget, members).max(used.saturating_add(used / 4));
        let with_swap = || {
            if let Some(file) = &self.with_swap {
                // This limit must not be below the memory limit: it must be written after the memory limit if that
                // shrinks, and before it if that grows. So it is written both before and after, and the kernel
                // refuses one of the two.
                let _refused = fs::write(file, bytes.to_string());
            }
        };
        with_swap();
        let written = fs::write(&self.limit, bytes.to_string());
        with_swap();
        if let Err(error) = written {
            tracing::warn!(%error, file = %self.limit.display(), "the memory limit of a node proxy cannot \
                                                                  be changed and stays as it was");
        }
    }
}

/// The limit for this many members.
fn wanted(budget: u64, members: u64) -> u64 {
    let buffers = (budget / BUDGET_PARTS).saturating_mul(members).min(budget * BUDGETS);
    BASE.saturating_add(OF_MEMBER.saturating_mul(members)).saturating_add(buffers)
}

/// The default budget of a proxy's buffers on this machine.
fn budget(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
    Some((machine / SHARE_OF_MACHINE).min(MAX_BUDGET))
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_limit_grows_with_the_members_up_to_twice_the_budget_of_their_buffers() {
        assert_eq!(wanted(GIB, 1), (128 + 32 + 256) << 20);
        assert_eq!(wanted(GIB, 8), (128 + 8 * 32 + 2048) << 20);
        assert_eq!(wanted(GIB, 64), (128 + 64 * 32 + 2048) << 20);
    }

    #[test]
    fn the_limit_follows_but_stays_above_what_is_used() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "cpu memory").unwrap();
        let group = root.path().join("leno/default/groups/node.1");
        fs::create_dir_all(&group).unwrap();
        let machine = CgroupMounts { root: root.path(), mounts: "" };
        let none = |_: &Path| panic!("no other group is made");
        let limit = MemberLimit::apply(machine, &Cgroup::at(group.clone()), none).unwrap().unwrap();
        let now = || number(&group.join("memory.max")).unwrap();
        let one = now();
        assert_eq!(one, wanted(limit.budget(), 1));
        limit.follow(5);
        assert_eq!(now(), wanted(limit.budget(), 5));
        fs::write(group.join("memory.current"), (4 * GIB).to_string()).unwrap();
        limit.follow(1);
        assert_eq!(now(), 5 * GIB);
        fs::write(group.join("memory.current"), "4096").unwrap();
        limit.follow(0);
        assert_eq!(now(), one);
    }

    #[test]
    fn a_machine_that_is_a_container_with_a_limit_keeps_that_alone() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), "memory").unwrap();
        fs::write(root.path().join("memory.max"), "1073741824\n").unwrap();
        let machine = CgroupMounts { root: root.path(), mounts: "" };
        let group = Cgroup::at(root.path().join("leno/default/groups/node.1"));
        assert!(MemberLimit::apply(machine, &group, |_| Ok(())).unwrap().is_none());
    }
}
