//! Ctrl-C: running programs are ended in order, and the records made so far are kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long an interrupt may go unnoticed while the run waits.
const LOOK: Duration = Duration::from_millis(100);

/// A flag that a signal sets; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The error after Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted; what was measured is kept, and --resume goes on from there")]
pub struct Interrupted;

impl Interrupt {
    /// Sets the flag.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Checks the flag.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Waits for the given time.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.check()?;
            thread::sleep(left.min(LOOK));
        }
        self.check()
    }
}
