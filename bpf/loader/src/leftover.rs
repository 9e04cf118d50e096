//! Programs that earlier processes left pinned.

use std::path::PathBuf;

use libbpf_rs::Link;
use libbpf_rs::query::LinkTypeInfo;

use crate::error::Error;
use crate::{PinRoot, flows, pins};

/// The pinned programs of one workload, or those that account for the flows of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverPrograms {
    /// The name under which they were attached.
    pub owner: String,
    /// The version of Leno that attached them.
    pub version: String,
    /// Whether they account for flows; else they capture.
    pub flows: bool,
    /// Whether any of them is still attached. The kernel detaches a link when its cgroup or
    /// namespace is gone.
    pub attached: bool,
    /// Where the pins are.
    pub directory: PathBuf,
}

/// All that is pinned, by name.
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

/// Detaches and unpins the workloads that `keep` rejects; returns them.
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
            // It is never gone, and counts nothing where nothing else is attached.
            LinkTypeInfo::RawTracepoint(_) => false,
            _ => true,
        },
        Err(_) => false,
    }
}
