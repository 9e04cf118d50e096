//! How much memory this process may use, according to its cgroups and the machine.

use std::fs;
use std::path::{Path, PathBuf};

use leno_transport::budget::MIN_BUDGET;

/// The limit of the cgroup is divided by this (a half) to get the memory for buffers. The rest is for code, TLS
/// sessions, discovery, and the kernel's socket buffers, which count towards the limit, too.
const SHARE_OF_LIMIT: u64 = 2;
/// If no cgroup sets a limit, the machine's memory is divided by this (an eighth), because other programs need memory,
/// too.
const SHARE_OF_MACHINE: u64 = 8;
/// The largest default: 1 GiB, which is enough for 16,000 bulk streams with clients that do not read.
const MAX_DEFAULT: u64 = 1 << 30;
/// In cgroup version 1, the largest number of pages means that there is no limit. All values above this are treated in
/// the same way.
const NO_LIMIT: u64 = 1 << 60;
/// How many levels of cgroups are examined upwards. No container runtime creates deeper trees.
const MAX_DEPTH: usize = 32;

/// Parses a size, which is a number of bytes, or a number with `Ki`, `Mi` or `Gi`.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let factor: usize = match unit {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        _ => return Err(format!("{unit:?} is not a unit: use Ki, Mi or Gi, or none for bytes")),
    };
    let size = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(factor));
    match size {
        Some(size) if size >= MIN_BUDGET => Ok(size),
        Some(_) => Err(format!("a proxy needs at least {} MiB", MIN_BUDGET >> 20)),
        None => Err("not a size: write for example 64Mi".to_owned()),
    }
}

/// The memory budget for buffers and connections if none is configured. A cgroup's limit that is not below the
/// machine's memory does not count.
pub(crate) fn default_budget() -> usize {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let limit = limit(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"), read_number);
    let budget = match (limit, machine(&read("/proc/meminfo"))) {
        (Some(limit), Some(machine)) if limit >= machine => machine / SHARE_OF_MACHINE,
        (Some(limit), _) => limit / SHARE_OF_LIMIT,
        (None, Some(machine)) => machine / SHARE_OF_MACHINE,
        (None, None) => MAX_DEFAULT,
    };
    usize::try_from(budget.min(MAX_DEFAULT)).unwrap_or(usize::MAX)
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The lowest limit of the process' cgroup and those above it. `cgroups` and `mounts` are the contents of
/// /proc/self/cgroup and /proc/self/mountinfo; `read` reads a file with one number, and returns `None` for "max".
fn limit(cgroups: &str, mounts: &str, read: impl Fn(&Path) -> Option<u64>) -> Option<u64> {
    let mut least = None;
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let version2 = controllers.is_empty();
        if !version2 && !controllers.split(',').any(|one| one == "memory") {
            continue;
        }
        let file = if version2 { "memory.max" } else { "memory.limit_in_bytes" };
        let Some((root, at)) = mount(mounts, version2) else { continue };
        // In a container, the root of the mount is the container's own cgroup.
        let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
        let own = at.join(below);
        let tree = own.ancestors().take_while(|folder| folder.starts_with(&at)).take(MAX_DEPTH);
        let limits = tree.filter_map(|folder| read(&folder.join(file)));
        least = limits.chain(least).filter(|limit| *limit < NO_LIMIT).min();
    }
    least
}

/// The cgroup at the root of the mount, and the mount point, of the hierarchy with memory limits.
fn mount(mounts: &str, version2: bool) -> Option<(&str, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1)?);
        let matches = match version2 {
            true => name == "cgroup2",
            false => name == "cgroup" && options.split(',').any(|option| option == "memory"),
        };
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?, place.next()?);
        matches.then(|| (root, PathBuf::from(at)))
    })
}

/// The machine's memory in bytes, from /proc/meminfo.
fn machine(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
    const V1: &str = "32 23 0:29 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n";

    fn limit_with(cgroups: &str, mounts: &str, files: &[(&str, u64)]) -> Option<u64> {
        let files: HashMap<PathBuf, u64> =
            files.iter().map(|(path, number)| (PathBuf::from(path), *number)).collect();
        limit(cgroups, mounts, |path| files.get(path).copied())
    }

    #[test]
    fn the_least_limit_on_the_way_up_counts() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", 300),
            ("/sys/fs/cgroup/a/memory.max", 200),
            ("/sys/fs/cgroup/other/memory.max", 1),
        ];
        assert_eq!(limit_with("0::/a/b\n", V2, &files), Some(200));
        assert_eq!(limit_with("0::/a/b\n", V2, &files[..1]), Some(300));
        assert_eq!(limit_with("0::/c\n", V2, &files), None);
        assert_eq!(limit_with("", V2, &files), None);
        assert_eq!(limit_with("0::/a\n", "", &files), None);
    }

    #[test]
    fn both_versions_are_known_and_the_stricter_one_counts() {
        let cgroups = "4:memory:/job\n3:cpu:/x\n0::/\n";
        let files = [
            ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", 500),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", 9_223_372_036_854_771_712),
            ("/sys/fs/cgroup/memory.max", 700),
        ];
        let mounts = [V1, V2].concat();
        assert_eq!(limit_with(cgroups, &mounts, &files), Some(500));
        assert_eq!(limit_with(cgroups, &mounts, &files[1..2]), None);
    }

    #[test]
    fn a_container_finds_its_own_limit_at_the_mount() {
        let mounts = "29 23 0:26 /kube/pod1 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        let files = [("/sys/fs/cgroup/memory.max", 64)];
        for cgroups in ["0::/kube/pod1\n", "0::/\n", "0::/../pod2\n"] {
            assert_eq!(limit_with(cgroups, mounts, &files), Some(64), "{cgroups}");
        }
    }

    #[test]
    fn sizes_have_units_and_a_least_value() {
        assert_eq!(parse_size("4194304"), Ok(MIN_BUDGET));
        assert_eq!(parse_size("64Mi"), Ok(64 << 20));
        assert_eq!(parse_size("8192Ki"), Ok(8 << 20));
        for text in ["", "Mi", "1", "64MB", "-1", "1.5Gi", "99999999999Gi", "64 Mi"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert_eq!(machine("MemTotal:       16384 kB\nMemFree: 1 kB\n"), Some(16 << 20));
        assert!(default_budget() >= MIN_BUDGET);
    }
}
