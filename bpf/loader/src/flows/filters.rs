//! Attaches programs to interfaces of kernels without tcx (before Linux 6.6): as filters of the queueing discipline
//! clsact.
//!
//! A filter has no link: it stays until it, or its interface, is removed. So the pins contain a note
//! `filters_port<number>` for each interface with filters, whose text is the network namespace of the interface. The
//! discipline is never removed, since other software may have filters on it; without filters it does nothing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Program, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook};

use crate::error::Error;
use crate::{netns, pins};

/// The priority of Leno's filters, which is their place in a direction. tc and libbpf by themselves use 49,152 and the
/// numbers below, and others often use 1.
const PRIORITY: u32 = 19_534;
/// The priority of the filter that checks sources: just before the others.
const SOURCE_PRIORITY: u32 = PRIORITY - 1;
const HANDLE: u32 = 1;
const NOTE: &str = "filters_port";
/// The prefix of the programs' names, by which a filter is recognised as Leno's.
const OURS: &str = "leno_flow_";

/// A direction of an interface, from the point of view of its network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    fn point(self) -> TcAttachPoint {
        match self {
            Self::Ingress => TC_INGRESS,
            Self::Egress => TC_EGRESS,
        }
    }
}

/// The filters of one interface, for both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Filters {
    /// The network namespace of the interface, as a file.
    netns: PathBuf,
    /// The index of the interface.
    pub(super) index: u32,
}

impl Filters {
    pub(super) fn of(netns: &Path, index: u32) -> Self {
        Self { netns: netns.to_owned(), index }
    }

    /// The interfaces with filters, as noted among the pins.
    pub(super) fn noted(directory: &Path) -> Result<Vec<Self>, Error> {
        let of = |path: PathBuf| {
            let name = pins::file_name(&path);
            let index = name.strip_prefix(NOTE)?.parse().ok()?;
            Some(Self { netns: pins::read_note(directory, &name).into(), index })
        };
        Ok(pins::entries(directory)?.into_iter().filter_map(of).collect())
    }

    pub(super) fn note(&self, directory: &Path) -> Result<(), Error> {
        pins::write_note(directory, &self.note_name(), &self.netns.to_string_lossy())
    }

    fn note_name(&self) -> String {
        format!("{NOTE}{}", self.index)
    }

    /// Attaches a program, or replaces Leno's program that is attached, in one step.
    pub(super) fn put(&self, at: Direction, program: BorrowedFd<'_>) -> io::Result<()> {
        self.within(|_| put_here(self.index, at, program))?
    }

    /// Leno's program that is attached. `None` if there is none, or if the interface or its network namespace is gone.
    pub(super) fn program(&self, at: Direction) -> Option<OwnedFd> {
        let id = self.within(|any| ours(any, self.index, at)).ok().flatten()?;
        Program::fd_from_id(id).ok()
    }

    /// Detaches both programs if they are attached, and removes the note.
    fn detach(&self, directory: &Path) -> Result<(), Error> {
        let detach = |any: BorrowedFd<'_>| -> Result<(), libbpf_rs::Error> {
            for at in [Direction::Ingress, Direction::Egress] {
                if ours(any, self.index, at).is_some() {
                    hook(any, self.index, at).detach()?;
                }
            }
            Ok(())
        };
        let action = || format!("end the filters of interface {}", self.index);
        match self.within(detach) {
            Ok(detached) => detached.map_err(Error::bpf(action()))?,
            // The namespace is gone, and its interfaces with it. Its file may be left; entering it then fails with
            // EINVAL.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::InvalidInput
                ) => {}
            Err(error) => return Err(Error::io(action())(error)),
        }
        pins::remove(&directory.join(self.note_name()))
    }

    /// Runs `run` in the network namespace, with some descriptor: libbpf needs one to describe a hook, but does not use
    /// it for queries.
    fn within<T: Send>(&self, run: impl FnOnce(BorrowedFd<'_>) -> T + Send) -> io::Result<T> {
        let netns = File::open(&self.netns)?;
        netns::within(&netns, || run(netns.as_fd()))
    }
}

/// Attaches a program to an interface of this thread's network namespace, or replaces Leno's program there. Fails if
/// there is a program of another owner with the same priority.
pub(super) fn put_here(index: u32, at: Direction, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut hook = hook(program, index, at);
    hook.replace(ours(program, index, at).is_some());
    hook.create().and_then(|_| hook.attach()).map(drop).map_err(io::Error::other)
}

/// Attaches the program that drops frames with a forged source to a new interface of this thread's network namespace.
/// It is removed together with the interface.
pub(crate) fn put_source_filter(program: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    let mut hook = source_hook(program, index);
    hook.create().and_then(|_| hook.attach()).map(drop).map_err(io::Error::other)
}

/// Detaches what [`put_source_filter`] has attached.
pub(crate) fn remove_source_filter(any: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    source_hook(any, index).detach().map_err(io::Error::other)
}

fn source_hook(program: BorrowedFd<'_>, index: u32) -> TcHook {
    let mut hook = hook(program, index, Direction::Ingress);
    hook.priority(SOURCE_PRIORITY);
    hook
}

/// The id of Leno's program on an interface of this thread's network namespace. `any` is any descriptor.
fn ours(any: BorrowedFd<'_>, index: u32, at: Direction) -> Option<u32> {
    let id = hook(any, index, at).query().ok()?;
    let is_ours = |name: &str| name.starts_with(OURS);
    let mut loaded = ProgInfoIter::default();
    loaded.find(|one| one.id == id && is_ours(&one.name.to_string_lossy())).map(|one| one.id)
}

/// Detaches the noted filters of the interfaces for which `is_over` is true. If one cannot be detached, the others
/// still are.
///
/// # Errors
/// The first reason why one cannot be detached; its note stays.
pub(super) fn detach_of(directory: &Path, is_over: impl Fn(u32) -> bool) -> Result<(), Error> {
    let noted = Filters::noted(directory)?.into_iter().filter(|one| is_over(one.index));
    let failed: Vec<Error> = noted.filter_map(|one| one.detach(directory).err()).collect();
    failed.into_iter().next().map_or(Ok(()), Err)
}

fn hook(program: BorrowedFd<'_>, index: u32, at: Direction) -> TcHook {
    let mut hook = TcHook::new(program);
    hook.ifindex(i32::try_from(index).unwrap_or_default());
    hook.attach_point(at.point()).handle(HANDLE).priority(PRIORITY);
    hook
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn filters_that_cannot_be_reached_keep_no_others() {
        let directory = std::env::temp_dir().join(format!("leno-filters-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let (no_namespace, circle) = (directory.join("file"), directory.join("circle"));
        fs::write(&no_namespace, "").unwrap();
        symlink(&circle, &circle).unwrap();
        let notes = [(1, Path::new("/absent")), (2, &circle), (3, &no_namespace), (4, &circle)];
        for (index, netns) in notes {
            Filters::of(netns, index).note(&directory).unwrap();
        }
        let refused = detach_of(&directory, |index| index < 4).unwrap_err().to_string();
        assert_eq!(refused, "cannot end the filters of interface 2");
        let mut left: Vec<u32> =
            Filters::noted(&directory).unwrap().iter().map(|one| one.index).collect();
        left.sort_unstable();
        assert_eq!(left, [2, 4]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
