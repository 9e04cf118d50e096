//! Finds and removes programs that earlier processes have left pinned.

use std::path::PathBuf;

use libbpf_rs::Link;
use libbpf_rs::query::LinkTypeInfo;

use crate::error::Error;
use crate::{PinRoot, flows, pins};

/// The pinned programs of one workload, or the flow programs of a mesh or a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverPrograms {
    /// The name under which they were attached.
    pub owner: String,
    /// The version of Leno that attached them.
    pub version: String,
    /// Whether they are flow programs; otherwise they capture a workload.
    pub flows: bool,
    /// Whether any of them is still attached. The kernel detaches a link when its cgroup or
    /// namespace is gone.
    pub attached: bool,
    /// The directory of the pins.
    pub directory: PathBuf,
}

/// All pinned programs, sorted by the name under which they were attached.
///
/// # Errors
/// When the directory cannot be read.
pub fn list(root: &PinRoot) -> Result<Vec<LeftoverPrograms>, Error> {
    let mut found = Vec::new();
    for directory in pins::entries(root.path())? {
        let attached = pins::links(&directory)?.iter().any(|path| is_attached(path));
        let noted = pins::read_note(&directory, "owner");
        let owner =
            if noted.is_empty() { pins::file_name(&directory).replace(':', ".") } else { noted };
        let version = pins::read_note(&directory, "version");
        let flows = flows::are_in(&directory);
        found.push(LeftoverPrograms { owner, version, flows, attached, directory });
    }
    found.sort_by(|a, b| a.owner.cmp(&b.owner));
    Ok(found)
}

/// Detaches and unpins all that `keep` rejects; returns them.
///
/// # Errors
/// When a pin cannot be removed.
pub fn prune(
    root: &PinRoot,
    keep: impl Fn(&LeftoverPrograms) -> bool,
) -> Result<Vec<LeftoverPrograms>, Error> {
    let mut removed = Vec::new();
    for leftover in list(root)? {
        if !keep(&leftover) {
            match leftover.flows {
                true => flows::remove(&leftover.directory)?,
                false => pins::remove_all(&leftover.directory)?,
            }
            removed.push(leftover);
        }
    }
    Ok(removed)
}

/// Whether the kernel still runs the program of a pinned link. A link whose cgroup or namespace is
/// gone reports the id 0 for it.
fn is_attached(path: &std::path::Path) -> bool {
    match Link::open(path).and_then(|link| link.info()) {
        Ok(info) => match info.info {
            LinkTypeInfo::Cgroup(cgroup) => cgroup.cgroup_id != 0,
            LinkTypeInfo::NetNs(netns) => netns.ino != 0,
            LinkTypeInfo::Tcx(port) => port.ifindex != 0,
            // This one is always attached, but counts nothing without the others.
            LinkTypeInfo::RawTracepoint(_) => false,
            _ => true,
        },
        Err(_) => false,
    }
}
