//! Lists the pinned programs and maps for operators.

use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::time::Duration;

use libbpf_rs::query::{LinkTypeInfo, ProgInfoIter};
use libbpf_rs::{Link, MapCore as _, MapHandle};

use crate::{Error, PinRoot, flows, leftover, pins};

/// A program that is attached by a pinned link, a pinned iterator or a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedProgram {
    /// The name under which it was attached, usually that of a workload or a mesh.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// The kernel's id of it; 0 if it is not loaded any longer.
    pub id: u32,
    /// What it is attached to: `cgroup 4711`, `namespace 4026532281`, `interface 7`, `tracepoint kfree_skb`, `reader`;
    /// or `nothing` if that was removed.
    pub attached_to: String,
    /// How many instructions the verifier followed; 0 if the kernel does not report it (before Linux 5.16).
    pub verified_instructions: u32,
    /// How often it ran while the kernel measured run times.
    pub runs: u64,
    /// The total time of these runs.
    pub took: Duration,
}

/// A pinned map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedMap {
    /// The name under which its programs were attached.
    pub owner: String,
    /// Its name.
    pub name: String,
    /// The kernel's id of it.
    pub id: u32,
    /// Its type, such as `Hash`.
    pub kind: String,
    /// Most entries; for a ring buffer its bytes.
    pub capacity: u32,
    /// The kernel memory that it uses now, as the kernel reports it.
    pub memory_bytes: u64,
}

/// The programs of all pinned links, by owner and name.
///
/// # Errors
/// If the pins cannot be read.
pub fn programs(root: &PinRoot) -> Result<Vec<PinnedProgram>, Error> {
    let loaded: Vec<_> = ProgInfoIter::default().collect();
    let row = |owner: &str, name, (id, attached_to): (u32, String)| {
        let program = loaded.iter().find(|program| program.id == id);
        PinnedProgram {
            owner: owner.to_owned(),
            name,
            id,
            attached_to,
            verified_instructions: program.map_or(0, |program| program.verified_insns),
            runs: program.map_or(0, |program| program.run_cnt),
            took: Duration::from_nanos(program.map_or(0, |program| program.run_time_ns)),
        }
    };
    let mut all = Vec::new();
    for leftover in leftover::list(root)? {
        for pin in pins::entries(&leftover.directory)? {
            let file = pins::file_name(&pin);
            let Some(name) = file.strip_prefix("link_").or_else(|| file.strip_prefix("read_"))
            else {
                continue;
            };
            let Some(info) = link(&pin) else { continue };
            all.push(row(&leftover.owner, name.to_owned(), info));
        }
        for (interface, program, id) in flows::filtered(&leftover.directory)? {
            let attached_to = format!("interface {interface}, clsact");
            all.push(row(&leftover.owner, format!("port{interface}_{program}"), (id, attached_to)));
        }
    }
    all.sort_by(|a, b| (&a.owner, &a.name).cmp(&(&b.owner, &b.name)));
    Ok(all)
}

/// The program of a pinned link, and what it is attached to; `None` if it was removed meanwhile.
fn link(pin: &Path) -> Option<(u32, String)> {
    let info = Link::open(pin).and_then(|link| link.info()).ok()?;
    let attached_to = match info.info {
        LinkTypeInfo::Cgroup(cgroup) if cgroup.cgroup_id != 0 => {
            format!("cgroup {}", cgroup.cgroup_id)
        }
        LinkTypeInfo::NetNs(netns) if netns.ino != 0 => format!("namespace {}", netns.ino),
        LinkTypeInfo::Tcx(port) if port.ifindex != 0 => format!("interface {}", port.ifindex),
        LinkTypeInfo::RawTracepoint(tracepoint) => format!("tracepoint {}", tracepoint.name),
        LinkTypeInfo::Cgroup(_) | LinkTypeInfo::NetNs(_) | LinkTypeInfo::Tcx(_) => {
            "nothing".to_owned()
        }
        _ => "reader".to_owned(),
    };
    Some((info.prog_id, attached_to))
}

/// All pinned maps, by owner and name.
///
/// # Errors
/// If the pins cannot be read.
pub fn maps(root: &PinRoot) -> Result<Vec<PinnedMap>, Error> {
    let mut all = Vec::new();
    for leftover in leftover::list(root)? {
        for pin in pins::entries(&leftover.directory)? {
            let file = pins::file_name(&pin);
            let Some(name) = file.strip_prefix("map_") else { continue };
            // A map whose pin was removed meanwhile is left out.
            let Ok(map) = MapHandle::from_pinned_path(&pin) else { continue };
            let info = map.info().map_err(Error::bpf(format!("read the map {name}")))?;
            all.push(PinnedMap {
                owner: leftover.owner.clone(),
                name: name.to_owned(),
                id: info.info.id,
                kind: format!("{:?}", info.map_type()),
                capacity: map.max_entries(),
                memory_bytes: memory_of(&map)?,
            });
        }
    }
    all.sort_by(|a, b| (&a.owner, &a.name).cmp(&(&b.owner, &b.name)));
    Ok(all)
}

/// The kernel memory of a map: the line `memlock` in its descriptor's `fdinfo`.
fn memory_of(map: &MapHandle) -> Result<u64, Error> {
    let path = format!("/proc/self/fdinfo/{}", map.as_fd().as_raw_fd());
    let text = fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
    let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
    Ok(line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or_default())
}
