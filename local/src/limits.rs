//! Limits CPU and memory with control groups of version 2. Where the controllers belong to version 1, uses that.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use leno_resources::{MemoryQuantity, ResourceLimits};

use crate::error::{Attempt, Error, Result};

mod members;

use leno_supervise::Cgroup;
pub use members::MemberLimit;

/// The period of the CPU limit, in microseconds: the kernel's default.
const PERIOD_US: u64 = 100_000;

/// The limits of an instance's processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessLimits {
    /// Control groups of other hierarchies that the processes enter as well.
    pub groups: Vec<Cgroup>,
    memory: Option<(MemoryQuantity, PathBuf)>,
}

/// A resource that is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Controller {
    Cpu,
    Memory,
}

/// The hierarchy that has a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    /// The one in which the instance's own control group is.
    Unified,
    /// A separate hierarchy, mounted at this path.
    Alone(PathBuf),
}

/// Where the control groups of a machine are.
#[derive(Clone, Copy, Debug)]
pub struct CgroupMounts<'a> {
    /// The mount of version 2.
    pub root: &'a Path,
    /// The mounts, as `/proc/self/mounts` lists them.
    pub mounts: &'a str,
}

impl ProcessLimits {
    /// Limits the processes of `group`, which is below the machine's root. `record` is called with each group of
    /// another hierarchy before it is created.
    ///
    /// # Errors
    /// When the machine cannot enforce a limit; the text has the remedy.
    pub fn apply(
        limits: ResourceLimits,
        machine: CgroupMounts<'_>,
        group: &Cgroup,
        mut record: impl FnMut(&Path) -> Result<()>,
    ) -> Result<Self> {
        let mut limited = Self::default();
        let wanted =
            [limits.cpu.map(|_| Controller::Cpu), limits.memory.map(|_| Controller::Memory)];
        for controller in wanted.into_iter().flatten() {
            let hierarchy = controller.hierarchy(machine)?;
            let directory = match &hierarchy {
                Hierarchy::Unified => {
                    controller.delegate(machine.root, group.path())?;
                    group.path().to_owned()
                }
                Hierarchy::Alone(mount) => {
                    let below = group.path().strip_prefix(machine.root);
                    let below = below.expect("every group is below the root");
                    let group = mount.join(below);
                    record(&group)?;
                    limited.groups.push(Cgroup::create(group.clone())?);
                    group
                }
            };
            for (file, value, needed) in controller.settings(limits, &hierarchy) {
                let path = directory.join(file);
                match fs::write(&path, &value) {
                    // This file is missing if swap accounting is disabled.
                    Err(_) if !needed => {}
                    written => {
                        written
                            .attempt(|| format!("cannot write {value} to {}", path.display()))?;
                    }
                }
            }
            if let (Controller::Memory, Some(memory)) = (controller, limits.memory) {
                let file = match hierarchy {
                    Hierarchy::Unified => "memory.events",
                    Hierarchy::Alone(_) => "memory.oom_control",
                };
                limited.memory = Some((memory, directory.join(file)));
            }
        }
        Ok(limited)
    }

    /// How many processes the kernel has killed because they exceeded the memory limit.
    #[must_use]
    pub fn killed(&self) -> u64 {
        let Some((_, file)) = &self.memory else { return 0 };
        let text = fs::read_to_string(file).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or_default()
    }

    /// The memory limit.
    #[must_use]
    pub fn memory(&self) -> Option<MemoryQuantity> {
        self.memory.as_ref().map(|(memory, _)| *memory)
    }
}

impl Controller {
    const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    /// Finds the hierarchy that has this controller on this machine.
    fn hierarchy(self, machine: CgroupMounts<'_>) -> Result<Hierarchy> {
        let here = fs::read_to_string(machine.root.join("cgroup.controllers")).unwrap_or_default();
        if here.split_whitespace().any(|name| name == self.name()) {
            return Ok(Hierarchy::Unified);
        }
        let alone = machine.mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
            let has = options.split(',').any(|option| option == self.name());
            (kind == "cgroup" && has).then(|| PathBuf::from(at))
        });
        let name = self.name();
        alone.map(Hierarchy::Alone).ok_or_else(|| {
            Error::Refused(format!(
                "this machine cannot limit {name}: {} has no controller for it, and none is \
                 mounted elsewhere: in a container, mount the host's control groups; otherwise \
                 remove the limit",
                machine.root.display()
            ))
        })
    }

    /// Enables the controller in the groups from the root down to the parent of `group`.
    fn delegate(self, root: &Path, group: &Path) -> Result<()> {
        let mut parents: Vec<&Path> =
            group.ancestors().skip(1).take_while(|path| path.starts_with(root)).collect();
        parents.reverse();
        for parent in parents {
            let file = parent.join("cgroup.subtree_control");
            let now = fs::read_to_string(&file).unwrap_or_default();
            if now.split_whitespace().any(|name| name == self.name()) {
                continue;
            }
            match fs::write(&file, format!("+{}", self.name())) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    return Err(Error::Os {
                        what: format!(
                            "cannot limit {}: the control group {} contains processes itself: move \
                             them to a group below it, or remove the limit",
                            self.name(),
                            parent.display()
                        ),
                        source: error,
                    });
                }
                written => written.attempt(|| format!("cannot write {}", file.display()))?,
            }
        }
        Ok(())
    }

    /// The files to write in a control group, each with its value and whether it must exist.
    fn settings(
        self,
        limits: ResourceLimits,
        hierarchy: &Hierarchy,
    ) -> Vec<(&'static str, String, bool)> {
        let quota = limits.cpu.map_or(0, |cpu| u64::from(cpu.0) * PERIOD_US / 1000);
        let bytes = limits.memory.map_or(0, |memory| memory.0);
        match (self, hierarchy) {
            (Self::Cpu, Hierarchy::Unified) => {
                vec![("cpu.max", format!("{quota} {PERIOD_US}"), true)]
            }
            (Self::Cpu, Hierarchy::Alone(_)) => vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string(), true),
                ("cpu.cfs_quota_us", quota.to_string(), true),
            ],
            (Self::Memory, Hierarchy::Unified) => vec![
                ("memory.max", bytes.to_string(), true),
                // The limit must not be evaded through swap, and the kernel must kill the whole group at once.
                ("memory.swap.max", "0".to_owned(), false),
                ("memory.oom.group", "1".to_owned(), false),
            ],
            (Self::Memory, Hierarchy::Alone(_)) => vec![
                ("memory.limit_in_bytes", bytes.to_string(), true),
                ("memory.memsw.limit_in_bytes", bytes.to_string(), false),
            ],
        }
    }
}

/// The mounts that this process sees, in the format of `/proc/self/mounts`.
///
/// # Errors
/// When they cannot be read.
pub fn mounts() -> io::Result<String> {
    fs::read_to_string("/proc/self/mounts")
}

#[cfg(test)]
mod tests {
    use leno_resources::CpuQuantity;

    use super::*;

    const LIMITS: ResourceLimits =
        ResourceLimits { cpu: Some(CpuQuantity(500)), memory: Some(MemoryQuantity(64 << 20)) };

    /// A directory with plain files that looks like a cgroup hierarchy.
    fn tree(controllers: &str) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("cgroup.controllers"), controllers).unwrap();
        let group = root.path().join("leno/default/shop.web-0/app");
        fs::create_dir_all(&group).unwrap();
        (root, group)
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn version_2_is_limited_in_the_instances_own_group() {
        let (root, group) = tree("cpuset cpu io memory");
        let machine = CgroupMounts { root: root.path(), mounts: "" };
        let none = |_: &Path| panic!("no other group is made");
        let limited =
            ProcessLimits::apply(LIMITS, machine, &Cgroup::at(group.clone()), none).unwrap();
        assert_eq!(limited.groups, []);
        assert_eq!(read(&group.join("cpu.max")), "50000 100000");
        assert_eq!(read(&group.join("memory.max")), "67108864");
        // The kernel would have added both controllers. A plain file contains only the text that was written last.
        for parent in ["", "leno", "leno/default", "leno/default/shop.web-0"] {
            let control = root.path().join(parent).join("cgroup.subtree_control");
            assert_eq!(read(&control), "+memory", "{parent}");
        }
        fs::write(group.join("memory.events"), "low 0\noom 3\noom_kill 2\n").unwrap();
        assert_eq!((limited.killed(), limited.memory()), (2, Some(MemoryQuantity(64 << 20))));
    }

    #[test]
    fn version_1_is_limited_in_groups_of_the_same_name() {
        let (root, group) = tree("hugetlb");
        let alone = tempfile::tempdir().unwrap();
        let mount = |name: &str| alone.path().join(name);
        let mounts = format!(
            "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup {} cgroup rw,relatime,cpuacct,cpu 0 0\n\
             cgroup {} cgroup rw,memory 0 0\n",
            mount("cpu").display(),
            mount("memory").display()
        );
        let machine = CgroupMounts { root: root.path(), mounts: &mounts };
        let mut recorded = Vec::new();
        let record = |path: &Path| {
            recorded.push(path.to_owned());
            Ok(())
        };
        let limited = ProcessLimits::apply(LIMITS, machine, &Cgroup::at(group), record).unwrap();
        let below = |name: &str| mount(name).join("leno/default/shop.web-0/app");
        assert_eq!(recorded, [below("cpu"), below("memory")]);
        assert_eq!(limited.groups.len(), 2);
        assert_eq!(read(&below("cpu").join("cpu.cfs_quota_us")), "50000");
        assert_eq!(read(&below("memory").join("memory.limit_in_bytes")), "67108864");
    }

    #[test]
    fn a_machine_without_the_controller_says_what_to_do() {
        let (root, group) = tree("hugetlb");
        let machine = CgroupMounts { root: root.path(), mounts: "" };
        let refused =
            ProcessLimits::apply(LIMITS, machine, &Cgroup::at(group), |_| Ok(())).unwrap_err();
        assert!(refused.to_string().starts_with("this machine cannot limit cpu: "), "{refused}");
    }
}
