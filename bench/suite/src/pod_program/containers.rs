//! Finds the containers of processes, by the containers' IDs in the names of cgroups.
//!
//! ```text
//! /kubepods/besteffort/podUID/ID                          cgroupfs, v1 and v2
//! /kubepods.slice/.../kubepods-podUID.slice/cri-containerd-ID.scope          systemd
//! /../../kubepods.slice/...                               seen from another cgroup namespace
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use crate::kernel_counters::processes;

/// The number of digits of a container's ID.
const DIGITS: usize = 64;
/// What CRI-O puts before the ID in the name of the cgroup of a container's monitor. The monitor is not in the
/// container.
const MONITOR: &str = "crio-conmon-";

/// Whether the text has the form of a container's ID.
fn is_id(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
}

/// The container's ID in the name of a cgroup.
fn id_of(name: &str) -> Option<&str> {
    if name.starts_with(MONITOR) {
        return None;
    }
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let last = name.rsplit(['-', ':']).next().filter(|last| is_id(last));
    last.or_else(|| Some(name).filter(|name| is_id(name)))
}

/// The containers of a process, as pairs of the path of the parent cgroup and the container's ID.
pub(super) fn places(cgroups: &str) -> impl Iterator<Item = (&str, &str)> {
    // The lines have the form HIERARCHY:CONTROLLERS:PATH; the path may contain colons.
    let paths = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| {
        let ends = path.match_indices('/').map(|(at, _)| at);
        ends.filter_map(move |at| {
            let (before, name) = (&path[..at], path[at + 1..].split('/').next()?);
            Some((before, id_of(name)?))
        })
    })
}

/// The cgroups of a process in the format of proc(5); `None` if the process has ended.
pub(super) fn cgroups(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()
}

/// The running processes of each of these containers. Containers without a process are not in the result.
pub(super) fn pids<'a>(wanted: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, Vec<u32>> {
    let wanted: BTreeSet<&str> = wanted.into_iter().collect();
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    if wanted.is_empty() {
        return found;
    }
    for pid in processes() {
        let Some(cgroups) = cgroups(pid) else { continue };
        if let Some((_, id)) = places(&cgroups).find(|(_, id)| wanted.contains(id)) {
            found.entry(id.to_owned()).or_default().push(pid);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_known_in_every_way_in_which_cgroups_are_named() {
        let id = "0123456789abcdef".repeat(4);
        let pod = "/kubepods/besteffort/pod12";
        let slice = "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12.slice";
        for (line, within) in [
            (format!("4:memory:{pod}/{id}"), pod),
            (format!("0::{slice}/cri-containerd-{id}.scope"), slice),
            (format!("0::{slice}/crio-{id}.scope/container"), slice),
            (format!("0::/../../..{slice}/docker-{id}.scope"), &*format!("/../../..{slice}")),
            (
                format!(
                    "9:name=systemd:/system.slice/containerd.service/kubepods:cri-containerd:{id}"
                ),
                "/system.slice/containerd.service",
            ),
        ] {
            assert_eq!(places(&line).collect::<Vec<_>>(), [(within, &*id)], "{line}");
        }
        for line in [
            format!("0::{slice}/crio-conmon-{id}.scope"),
            format!("0::/{id}0"),
            format!("0::/{}", id.to_uppercase()),
            "0::/".to_owned(),
        ] {
            assert_eq!(places(&line).count(), 0, "{line}");
        }
        // The node of this process is itself a container.
        let other = "f".repeat(64);
        let nested = format!("0::/docker/{other}/kubelet{pod}/{id}");
        let ids: Vec<&str> = places(&nested).map(|(_, id)| id).collect();
        assert_eq!(ids, [&*other, &*id]);
    }
}
