//! Reading open connections: the file whose reading has the kernel visit their sockets, and where it is read.
//!
//! ```text
//!   usual            read_leno_flow_read       read once: every tracked socket of the machine
//!   Linux 7.0 on     read_leno_flow_read_tcp   read once in each namespace that a note `namespace_<key>` leads to
//! ```

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::thread;

use libbpf_rs::{Link, MapCore as _, Object, OpenObject};
use nix::sched::{CloneFlags, setns};

use super::attach::missing;
use crate::error::Error;
use crate::{features, pins};

/// The program that visits tracked sockets, and the one that visits the TCP sockets of a namespace.
const STORAGE: &str = "leno_flow_read";
const NAMESPACE: &str = "leno_flow_read_tcp";
/// What the names of notes of enrolled namespaces begin with.
const NOTE: &str = "namespace_";
/// Most bytes of a read of the iterator, which writes none.
const READ_SIZE: usize = 4096;

/// Leaves out the program that is not read on this kernel.
pub(super) fn choose(object: &mut OpenObject) {
    let over = if features::has_safe_storage_iterator() { NAMESPACE } else { STORAGE };
    for mut program in object.progs_mut().filter(|program| program.name() == over) {
        program.set_autoload(false);
    }
}

/// Pins the file that is read under a name of its own.
pub(super) fn pin_next(object: &Object, directory: &Path) -> Result<PathBuf, Error> {
    let path = directory.join("next_reader");
    pins::remove(&path)?;
    let mut link = attach(object)?;
    link.pin(&path).map_err(Error::bpf(format!("pin {}", name())))?;
    Ok(path)
}

fn attach(object: &Object) -> Result<Link, Error> {
    let program = object.progs_mut().find(|one| one.name() == name()).ok_or_else(missing)?;
    let link = if features::has_safe_storage_iterator() {
        let sockets = object.maps().find(|map| map.name() == "sockets").ok_or_else(missing)?;
        program.attach_iter(sockets.as_fd())
    } else {
        program.attach()
    };
    link.map_err(Error::bpf(format!("attach {}", name())))
}

/// Has the file at `next` be the one that is read.
pub(super) fn put_in_place(next: &Path, directory: &Path) -> Result<(), Error> {
    super::attach::rename(next, &path_of(directory, name()))?;
    let other = if name() == STORAGE { NAMESPACE } else { STORAGE };
    pins::remove(&path_of(directory, other))
}

/// Whether a file that is read is among the pins.
pub(super) fn is_pinned(directory: &Path) -> bool {
    [STORAGE, NAMESPACE].iter().any(|name| path_of(directory, name).symlink_metadata().is_ok())
}

/// Notes where an enrolled namespace is, if each is read by itself. The note outlives its withdrawal, since connections that
/// are open then stay accounted for, and ends after the namespace.
pub(super) fn note(directory: &Path, key: u64, netns: &Path) -> Result<(), Error> {
    if features::has_safe_storage_iterator() {
        return Ok(());
    }
    for (name, noted) in noted(directory)? {
        if noted == netns || !noted.exists() {
            pins::remove(&directory.join(name))?;
        }
    }
    pins::write_note(directory, &format!("{NOTE}{key}"), &netns.to_string_lossy())
}

/// Names and targets of the notes.
fn noted(directory: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let all = pins::entries(directory)?.into_iter();
    let names = all.map(|path| pins::file_name(&path)).filter(|name| name.starts_with(NOTE));
    Ok(names.map(|name| (name.clone(), pins::read_note(directory, &name).into())).collect())
}

/// Has the kernel visit every open socket.
pub(super) fn read(directory: &Path) -> Result<(), Error> {
    let action = "read the open connections";
    let by_namespace = path_of(directory, NAMESPACE);
    let read = match by_namespace.exists() {
        true => read_each(&by_namespace, &noted(directory)?),
        false => read_at(&path_of(directory, STORAGE)),
    };
    read.map_err(Error::io(action))
}

/// Reads the file in each namespace: the kernel visits the sockets of that in which it is opened.
fn read_each(path: &Path, noted: &[(String, PathBuf)]) -> io::Result<()> {
    let inside = || {
        for (_, netns) in noted {
            // It may have ended, and with it its connections.
            let Ok(netns) = File::open(netns) else { continue };
            match setns(netns, CloneFlags::CLONE_NEWNET) {
                Ok(()) => read_at(path)?,
                // The name is left of one that has ended.
                Err(nix::errno::Errno::EINVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    };
    thread::scope(|scope| scope.spawn(inside).join().expect("the thread does not panic"))
}

fn read_at(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut written = [0; READ_SIZE];
    loop {
        match file.read(&mut written) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            // After a million sockets the kernel has the caller read on.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The program of this kernel.
fn name() -> &'static str {
    if features::has_safe_storage_iterator() { STORAGE } else { NAMESPACE }
}

/// The file's name is not that of a link, since it is attached to nothing that could go.
fn path_of(directory: &Path, program: &str) -> PathBuf {
    directory.join(format!("read_{program}"))
}
