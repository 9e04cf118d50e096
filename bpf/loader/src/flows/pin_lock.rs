//! One process at a time changes the programs and the table of flows, or takes stock of them.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::error::Error;

/// Longest wait for another process: the largest table is carried over in a few seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

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
    let mut file = File::open(above).map_err(Error::io(action))?;
    let deadline = Instant::now() + LIMIT;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(PinLock { _lock: lock }),
            Err((back, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file = back,
            Err((_, errno)) => return Err(Error::io(action)(errno.into())),
        }
        thread::sleep(PAUSE);
    }
}
