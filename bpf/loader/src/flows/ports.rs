//! Counts the frames of interfaces: at the end of an interface that is outside of the workload's network namespace,
//! each of the two programs is attached by a link; by a filter if the kernel has no such links.
//!
//! The programs are pinned as well as the links, so that an interface that is enrolled later gets the programs that are
//! attached to the others.
#![expect(unsafe_code, reason = "tcx links of a pinned program, and if_nametoindex(3)")]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::query::LinkTypeInfo;
use libbpf_rs::{Link, Object, Program};

use super::filters::{self, Direction, Filters};
use crate::error::Error;
use crate::{features, netns, pins};

/// A program and the direction to which it is attached. What a workload sends arrives at the outer end of its
/// interface, so it is ingress there.
const PROGRAMS: [(&str, Direction); 2] =
    [("leno_flow_sent", Direction::Ingress), ("leno_flow_received", Direction::Egress)];

/// An interface whose frames are those of one workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadInterface {
    /// The network namespace of the interface's outer end, as a file. It is the same for all interfaces of one owner.
    pub netns: PathBuf,
    /// The name of the interface.
    pub name: String,
}

impl WorkloadInterface {
    /// Attaches the programs. Links of an earlier interface with the same index are replaced; links that an earlier
    /// process has attached to this interface stay. Returns the index.
    pub(super) fn attach(&self, directory: &Path) -> Result<u32, Error> {
        let action = || format!("count the frames of {}", self.name);
        let netns = File::open(&self.netns).map_err(Error::io(action()))?;
        let programs = PROGRAMS.map(|(name, at)| (name, at, program_path(directory, name)));
        let attach = || -> Result<u32, Error> {
            let index = index_of(&self.name).map_err(Error::io(action()))?;
            let by_filters = !features::has_tcx();
            if by_filters {
                // Noted before the filters are attached, so that they are found even if this process is killed.
                Filters::of(&self.netns, index).note(directory)?;
            }
            for (name, at, pin) in programs {
                let path = link_path(directory, index, name);
                if is_at(&path, index) {
                    continue;
                }
                let program = Program::fd_from_pinned_path(&pin).map_err(Error::bpf(action()))?;
                if by_filters {
                    filters::put_here(index, at, program.as_fd()).map_err(Error::io(action()))?;
                    continue;
                }
                let link = link_at(program.as_fd(), index, at).map_err(Error::io(action()))?;
                pins::detach(&path)?;
                link.pin(&path).map_err(Error::io(action()))?;
            }
            Ok(index)
        };
        let index = netns::within(&netns, attach).map_err(Error::io(action()))??;
        if features::has_tcx() {
            // An earlier process may have used filters; with both, each frame would be counted twice.
            detach_filters(directory, index)?;
        }
        Ok(index)
    }
}

/// Attaches a program to the loopback interface of a network namespace that will end soon. Returns the replacement that
/// was used if the kernel has no tcx.
pub(crate) fn try_frames(
    program: BorrowedFd<'_>,
    netns: &File,
) -> io::Result<Option<&'static str>> {
    let (_, at) = PROGRAMS[0];
    netns::within(netns, || {
        let index = index_of("lo")?;
        if features::has_tcx() {
            return link_at(program, index, at).map(|_| None);
        }
        filters::put_here(index, at, program).map(|()| Some("clsact"))
    })?
}

fn detach_filters(directory: &Path, index: u32) -> Result<(), Error> {
    filters::detach_of(directory, |noted| noted == index)
}

/// Detaches both programs; succeeds if the interface is gone.
pub(super) fn detach(directory: &Path, index: u32) -> Result<(), Error> {
    detach_filters(directory, index)?;
    PROGRAMS.iter().try_for_each(|(name, _)| pins::detach(&link_path(directory, index, name)))
}

/// Detaches the programs from all interfaces except these.
pub(super) fn detach_others(directory: &Path, kept: &BTreeSet<u32>) -> Result<(), Error> {
    filters::detach_of(directory, |index| !kept.contains(&index))?;
    let kept: BTreeSet<PathBuf> = kept
        .iter()
        .flat_map(|index| PROGRAMS.map(|(name, _)| link_path(directory, *index, name)))
        .collect();
    let links = links(directory)?;
    links
        .iter()
        .filter(|(path, _)| !kept.contains(path))
        .try_for_each(|(path, _)| pins::detach(path))
}

/// The interfaces that have filters: each with the name of a program and the program's id.
pub(crate) fn filtered(directory: &Path) -> Result<Vec<(u32, &'static str, u32)>, Error> {
    let mut all = Vec::new();
    for filters in Filters::noted(directory)? {
        for (name, at) in PROGRAMS {
            let program = filters.program(at);
            let id = program.and_then(|program| Program::id_from_fd(program.as_fd()).ok());
            all.extend(id.map(|id| (filters.index, name, id)));
        }
    }
    Ok(all)
}

/// What got another program.
pub(super) enum ReplacedHook {
    Link(Link),
    Filter(Filters, Direction),
}

/// Whether a link is attached to the interface with this index. If its interface was removed, the kernel reports the
/// index 0.
fn is_at(link: &Path, index: u32) -> bool {
    let info = Link::open(link).and_then(|link| link.info());
    info.is_ok_and(|info| matches!(info.info, LinkTypeInfo::Tcx(port) if port.ifindex == index))
}

/// Replaces the pinned programs, and those at every interface, by the programs of an object. Calls `replaced` with each
/// link or filter and its previous program.
pub(super) fn replace(
    object: &Object,
    directory: &Path,
    mut replaced: impl FnMut(ReplacedHook, OwnedFd),
) -> Result<(), Error> {
    let links = links(directory)?;
    let filtered = Filters::noted(directory)?;
    for mut program in object.progs_mut() {
        let Some((name, at)) = PROGRAMS.into_iter().find(|(name, _)| program.name() == *name)
        else {
            continue;
        };
        let action = || format!("replace {name}");
        for (path, _) in links.iter().filter(|(_, of)| *of == name) {
            let mut link = Link::open(path).map_err(Error::bpf(action()))?;
            let info = link.info().map_err(Error::bpf(action()))?;
            if matches!(&info.info, LinkTypeInfo::Tcx(port) if port.ifindex == 0) {
                // The interface was removed.
                continue;
            }
            let before = Program::fd_from_id(info.prog_id).map_err(Error::bpf(action()))?;
            link.update_prog(&program).map_err(Error::bpf(action()))?;
            replaced(ReplacedHook::Link(link), before);
        }
        for filters in &filtered {
            let Some(before) = filters.program(at) else { continue };
            filters.put(at, program.as_fd()).map_err(Error::io(action()))?;
            replaced(ReplacedHook::Filter(filters.clone(), at), before);
        }
        let pin = program_path(directory, name);
        pins::remove(&pin)?;
        program.pin(&pin).map_err(Error::bpf(action()))?;
    }
    Ok(())
}

/// The pinned links of interfaces, each with the name of its program.
fn links(directory: &Path) -> Result<Vec<(PathBuf, &'static str)>, Error> {
    let of = |path: PathBuf| {
        let file = pins::file_name(&path);
        let rest = file.strip_prefix("link_port")?.split_once('_')?.1;
        let (name, _) = PROGRAMS.into_iter().find(|(name, _)| rest == *name)?;
        Some((path, name))
    };
    Ok(pins::entries(directory)?.into_iter().filter_map(of).collect())
}

fn program_path(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("program_{name}"))
}

fn link_path(directory: &Path, index: u32, name: &str) -> PathBuf {
    pins::link_path(directory, &format!("port{index}_{name}"))
}

pub(crate) fn index_of(interface: &str) -> io::Result<u32> {
    let name = CString::new(interface)?;
    // SAFETY: `name` is a C string that lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// A link that was created without libbpf-rs, which only creates links of programs that it has loaded itself.
#[derive(Debug)]
pub(crate) struct RawLink(OwnedFd);

impl RawLink {
    fn pin(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::ffi::OsStrExt as _;
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: the descriptor and the path live through the call.
        let result = unsafe { libbpf_sys::bpf_obj_pin(self.0.as_raw_fd(), path.as_ptr()) };
        if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-result)) }
    }
}

/// Attaches a program by a link to the frames that the workload of an interface sends.
pub(crate) fn link_to_sent(program: BorrowedFd<'_>, interface: u32) -> io::Result<RawLink> {
    link_at(program, interface, Direction::Ingress)
}

fn link_at(program: BorrowedFd<'_>, interface: u32, at: Direction) -> io::Result<RawLink> {
    let at = match at {
        Direction::Ingress => libbpf_sys::BPF_TCX_INGRESS,
        Direction::Egress => libbpf_sys::BPF_TCX_EGRESS,
    };
    let target = i32::try_from(interface).map_err(io::Error::other)?;
    // SAFETY: the descriptor lives through the call, and no options are given.
    let link =
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), target, at, std::ptr::null()) };
    if link < 0 {
        return Err(io::Error::from_raw_os_error(-link));
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
    Ok(RawLink(unsafe { OwnedFd::from_raw_fd(link) }))
}

#[cfg(test)]
mod tests;
