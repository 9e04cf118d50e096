//! Ensures that only one process at a time changes, or takes inventory of, the programs and the table of flows.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::Error;

/// Longest wait for another process. Copying the largest table takes a few seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// The right to change the programs and tables of all owners, until it is dropped.
#[derive(Debug)]
pub struct PinLock {
    _lock: Flock<File>,
}

/// Waits for the lock. It is on the parent of `directory`, which all owners share, because a reader of events holds a
/// lock on `directory` itself for as long as it lives.
pub(super) fn take(directory: &Path) -> Result<PinLock, Error> {
    let action = "wait for another process that changes the flow programs";
    let above = directory.parent().unwrap_or(directory);
    let file = File::open(above).map_err(Error::io(action))?;
    // The kernel grants the lock in the order in which processes wait for it. Trying it again and again would mean to
    // have no place in that order, so a thread waits. If the time is over, that thread still gets the lock, and
    // releases it at once.
    let (locked, waits) = mpsc::channel();
    thread::spawn(move || locked.send(Flock::lock(file, FlockArg::LockExclusive)));
    let late = |_| Error::io(action)(Errno::EWOULDBLOCK.into());
    let lock = waits.recv_timeout(LIMIT).map_err(late)?;
    let lock = lock.map_err(|(_, errno)| Error::io(action)(errno.into()))?;
    Ok(PinLock { _lock: lock })
}
