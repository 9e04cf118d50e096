//! Reads open connections: reading a pinned file makes the kernel visit sockets.
//!
//! ```text
//!   usual            read_leno_flow_read       read once: every accounted socket of the machine
//!   Linux 7.0 on     read_leno_flow_read_tcp   read once in each network namespace that has a note `namespace_<key>`
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

/// The program that visits all accounted sockets, and the one that visits the TCP sockets of one network namespace.
const STORAGE: &str = "leno_flow_read";
const NAMESPACE: &str = "leno_flow_read_tcp";
/// The prefix of the names of notes on enrolled network namespaces.
const NOTE: &str = "namespace_";
/// Size of the buffer for reading the iterator's output, which is always empty.
const READ_SIZE: usize = 4096;

/// Excludes the program that this kernel does not need from loading.
pub(super) fn choose(object: &mut OpenObject) {
    let over = if features::has_safe_storage_iterator() { NAMESPACE } else { STORAGE };
    for mut program in object.progs_mut().filter(|program| program.name() == over) {
        program.set_autoload(false);
    }
}

/// Attaches the iterator and pins it under a temporary name; returns its path.
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

/// Makes the iterator at `next` the one that is read, and removes the previous one.
pub(super) fn put_in_place(next: &Path, directory: &Path) -> Result<(), Error> {
    super::attach::rename(next, &path_of(directory, name()))?;
    let other = if name() == STORAGE { NAMESPACE } else { STORAGE };
    pins::remove(&path_of(directory, other))
}

/// Whether an iterator is pinned in this directory.
pub(super) fn is_pinned(directory: &Path) -> bool {
    [STORAGE, NAMESPACE].iter().any(|name| path_of(directory, name).symlink_metadata().is_ok())
}

/// Stores where an enrolled network namespace is, if this kernel needs a read in each. The note is not removed when the
/// namespace is withdrawn, since open connections are still accounted for. It is removed after the namespace has ended.
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

/// The names of the notes, and the paths in them.
fn noted(directory: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let all = pins::entries(directory)?.into_iter();
    let names = all.map(|path| pins::file_name(&path)).filter(|name| name.starts_with(NOTE));
    Ok(names.map(|name| (name.clone(), pins::read_note(directory, &name).into())).collect())
}

/// Makes the kernel visit every open socket.
pub(super) fn read(directory: &Path) -> Result<(), Error> {
    let action = "read the open connections";
    let by_namespace = path_of(directory, NAMESPACE);
    let read = match by_namespace.exists() {
        true => read_each(&by_namespace, &noted(directory)?),
        false => read_at(&path_of(directory, STORAGE)),
    };
    read.map_err(Error::io(action))
}

/// Reads the file in each network namespace: the kernel visits the sockets of the one in which the file is opened.
fn read_each(path: &Path, noted: &[(String, PathBuf)]) -> io::Result<()> {
    let inside = || {
        for (_, netns) in noted {
            // The namespace may have ended, and its connections with it.
            let Ok(netns) = File::open(netns) else { continue };
            match setns(netns, CloneFlags::CLONE_NEWNET) {
                Ok(()) => read_at(path)?,
                // The file of an ended namespace still exists, but is no namespace any longer.
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
            // After a million sockets the kernel returns EAGAIN, and the caller must read again.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The name of the program that this kernel needs.
fn name() -> &'static str {
    if features::has_safe_storage_iterator() { STORAGE } else { NAMESPACE }
}

/// The name does not begin with `link_`: it is attached to nothing that may disappear.
fn path_of(directory: &Path, program: &str) -> PathBuf {
    directory.join(format!("read_{program}"))
}
