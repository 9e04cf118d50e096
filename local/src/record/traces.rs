//! Finds what a mesh has left on the machine by the names of the objects, for a mesh whose record is lost.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use leno_supervise::status_field;

use super::{MeshResource, RecordedProcess};
use crate::error::Result;
use crate::layout::Layout;
use crate::netns;

/// The control group and the network namespaces of a mesh, and everything that is pinned under their names.
pub(super) fn made(layout: &Layout) -> Result<Vec<MeshResource>> {
    let group = layout.cgroup(&leno_capture::cgroup2_root()?);
    let mut made = Vec::new();
    if group.is_dir() {
        made.push(MeshResource::Cgroup(group));
    }
    let switch = layout.switch_netns();
    // Only the network namespaces of this mesh have this prefix, because the name of a mesh contains no dot.
    let prefix = format!("{switch}.");
    let entries = fs::read_dir(netns::DIRECTORY).into_iter().flatten().flatten();
    for name in entries.filter_map(|entry| entry.file_name().into_string().ok()) {
        if name.starts_with(&prefix) {
            made.extend([MeshResource::Capture(name.clone()), MeshResource::Netns(name)]);
        } else if name == switch {
            made.extend([MeshResource::Flows(layout.flows()), MeshResource::Netns(name)]);
        }
    }
    Ok(made)
}

/// The process that started the guard of a mesh. Only processes of root are considered, because processes of other
/// users could claim to guard any group.
pub(super) fn owner(layout: &Layout) -> Option<RecordedProcess> {
    let group = layout.cgroup(Path::new("/"));
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    processes.filter(|process| guards(process, &group)).find_map(|guard| {
        let pid = parent(&guard)?;
        let owner = Path::new("/proc").join(pid.to_string());
        // If the owner has ended, the guard has another process as its parent, which runs another program.
        let same =
            fs::read_link(owner.join("exe")).ok()? == fs::read_link(guard.join("exe")).ok()?;
        (same && is_of_root(&owner)).then(|| RecordedProcess::find(pid))?
    })
}

/// Whether the process of this directory in `/proc` is the guard of this control group. The mount point of the
/// hierarchy may differ.
fn guards(process: &Path, group: &Path) -> bool {
    let command = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut arguments = command.split(|byte| *byte == 0).skip(1);
    let own = group.as_os_str().as_encoded_bytes();
    arguments.next() == Some(&b"guard"[..])
        && arguments.next().is_some_and(|guarded| guarded.ends_with(own))
        && is_of_root(process)
}

fn is_of_root(process: &Path) -> bool {
    fs::metadata(process).is_ok_and(|process| process.uid() == 0)
}

fn parent(process: &Path) -> Option<i32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    status_field(&status, "PPid")?.parse().ok()
}
