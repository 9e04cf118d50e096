//! One process at a time changes the programs and the table of flows, or takes stock of them.

use std::fs::File;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::Error;

/// Longest wait for another process: the largest table is carried over in a few seconds.
const LIMIT: Duration = Duration::from_secs(30);

/// The right to change the programs and tables below a directory of pins, until it is dropped.
#[derive(Debug)]
pub struct PinLock {
    _lock: Flock<File>,
}

/// Waits for the right to change what is pinned in `directory`. The lock is on the directory above it, which all
/// owners share: the one on `directory` itself is held by a follower of events for as long as it lives.
pub(super) fn take(directory: &Path) -> Result<PinLock, Error> {
    let action = "wait for another process that changes the flow programs";
    let above = directory.parent().unwrap_or(directory);
    let file = File::open(above).map_err(Error::io(action))?;
    // The kernel gives the lock to those that wait in their order, which one that tries again and again has no part in.
    // If the wait is over, the thread goes on, and gives the lock back as soon as it has it.
    let (locked, waits) = mpsc::channel();
    thread::spawn(move || locked.send(Flock::lock(file, FlockArg::LockExclusive)));
    let late = |_| Error::io(action)(Errno::EWOULDBLOCK.into());
    let lock = waits.recv_timeout(LIMIT).map_err(late)?;
    let lock = lock.map_err(|(_, errno)| Error::io(action)(errno.into()))?;
    Ok(PinLock { _lock: lock })
}
