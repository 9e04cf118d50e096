//! Whether somebody pressed Ctrl-C: what runs is ended in order, and what is done is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long it may go unnoticed while nothing is done.
const LOOK: Duration = Duration::from_millis(100);

/// A flag that a signal raises; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// Somebody pressed Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted; what was measured is kept, and --resume goes on from there")]
pub struct Interrupted;

impl Interrupt {
    /// Raises it.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// When it was raised.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.0.load(Ordering::Relaxed) { Err(Interrupted) } else { Ok(()) }
    }

    /// Lets that much time pass.
    ///
    /// # Errors
    /// When it is raised before or meanwhile.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Interrupted> {
        let end = Instant::now() + time;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.check()?;
            thread::sleep(left.min(LOOK));
        }
        self.check()
    }
}
